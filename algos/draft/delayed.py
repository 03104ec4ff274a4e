"""Delayed trees: one drawn path, with several independent paths below its end."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from underpaint.algos.batched.spec import BatchedPolicy
from underpaint.algos.batched.static_trees import BatchedStaticTree
from underpaint.algos.chance import Chance
from underpaint.algos.draft.shape import fill_sampled
from underpaint.algos.draft.spec import POLICIES, PolicySpec
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.registry import Nodes, NodesOrNone, Tune, check_bounds
from underpaint.algos.tree import DraftTree, Shape, Verdict


@dataclass(frozen=True, slots=True)
class DelayedTree:
    """A path of `trunk` tokens, and below it `paths` paths of `branch` tokens, all drawn from the drafter.

    arXiv 2602.16994, definition 5.2: a (K, L1, L2) delayed tree; trunk 0 gives K independent paths. Siblings are drawn
    with replacement, so they may be equal. It makes one drafter pass per level.
    """

    paths: Annotated[Nodes, Tune((1, 2, 3, 4))] = 2
    trunk: Annotated[NodesOrNone, Tune((0, 1, 2, 4))] = 2
    branch: Annotated[Nodes, Tune((1, 2, 4))] = 2

    def __post_init__(self) -> None:
        check_bounds("policy 'delayed'", self)

    def begin(self, grid: Grid) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the tree. Node i is drawn at `At(Role.DRAFT, i)`."""
        return fill_sampled(self.shape_within(budget), drafter, root, chance, drawn="iid")

    def shape_within(self, budget: Budget) -> Shape:
        """Return the shape that fits `budget`; a small budget shortens the branches first, all equally."""
        trunk = max(0, min(self.trunk, budget.max_depth, budget.max_nodes - 1))
        branch = max(0, min(self.branch, budget.max_depth - trunk, (budget.max_nodes - 1 - trunk) // self.paths))
        return delayed_shape(self.paths, trunk, branch)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...


@lru_cache(maxsize=64)
def delayed_shape(paths: int, trunk: int, branch: int) -> Shape:
    """Return the shape of a delayed tree, level by level."""
    parents = list(range(-1, trunk))
    parents += [trunk] * (paths if branch else 0)
    for _ in range(branch - 1):
        parents += range(len(parents) - paths, len(parents))
    return tuple(parents)


def _batched(policy: DelayedTree) -> BatchedPolicy:
    shape = delayed_shape(policy.paths, policy.trunk, policy.branch)
    return BatchedStaticTree(shape, sampled=True, repeats=True)


SPEC = POLICIES.register(
    PolicySpec(
        name="delayed",
        greedy_variant="chain_top1",
        device="underpaint.runtime.device.static_growth:delayed_plan",
        make=DelayedTree,
        drawn="iid",
        source="arXiv 2602.16994, definition 5.2",
        deviations="paths, trunk and branch are fixed; the paper's trained selector of the three is left out",
        examples=({"paths": 2, "trunk": 0, "branch": 2}, {"paths": 2, "trunk": 1, "branch": 1}),
        batched=_batched,
    )
)
