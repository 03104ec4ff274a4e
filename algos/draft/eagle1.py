"""Static trees: EAGLE-1's sampled tree, and the same tree with likeliest tokens."""

from dataclasses import dataclass
from typing import Annotated

from underpaint.algos.batched.spec import BatchedPolicy
from underpaint.algos.batched.static_trees import BatchedStaticTree
from underpaint.algos.chance import Chance
from underpaint.algos.draft.shape import fill_sampled, fill_top_k, ranked_shape, within
from underpaint.algos.draft.spec import POLICIES, PolicySpec
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.registry import Nodes, Tune, check_bounds
from underpaint.algos.tree import DraftTree, Verdict

WIDTHS = (8, 16, 14, 11, 8)
"""57 nodes in 5 levels, the size that LANTERN++ (arXiv 2502.06352) uses."""
SHAPES = ((1, 1, 1, 1), (2, 1, 1), (2, 1, 1, 1), (2, 2, 1, 1, 1), (3, 2, 1, 1), (4, 4, 2, 1, 1))
"""The values that `underpaint tune` tries."""


@dataclass(frozen=True, slots=True)
class Eagle1:
    """A static tree with siblings drawn without replacement from the drafter's distribution (arXiv 2401.15077).

    Attributes:
        widths: Nodes at each level, from the root's children down, each >= 1. One drafter pass per level. Children go
            to the nodes with the least rank sum along the path (see `ranked_shape`), as in Medusa's and EAGLE-1's
            trees.
    """

    widths: Annotated[tuple[Nodes, ...], Tune(SHAPES)] = WIDTHS

    def __post_init__(self) -> None:
        _check(self, "eagle1", self.widths)

    def begin(self, grid: Grid) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the tree. Node i is drawn at `At(Role.DRAFT, i)`."""
        return fill_sampled(within(ranked_shape(tuple(self.widths)), budget), drafter, root, chance)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...


@dataclass(frozen=True, slots=True)
class StaticTopK:
    """The tree of `Eagle1` with the likeliest tokens: the control for EAGLE-2's reranking at equal shape."""

    widths: Annotated[tuple[Nodes, ...], Tune(SHAPES)] = WIDTHS

    def __post_init__(self) -> None:
        _check(self, "static_top_k", self.widths)

    def begin(self, grid: Grid) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the tree, without any random draw."""
        return fill_top_k(within(ranked_shape(tuple(self.widths)), budget), drafter, root)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...


def _check(instance: object, policy: str, widths: tuple[int, ...]) -> None:
    if not widths:
        raise ValueError(f"policy '{policy}': widths must name at least one level, got none")
    check_bounds(f"policy '{policy}'", instance)


def _batched(policy: Eagle1) -> BatchedPolicy:
    return BatchedStaticTree(ranked_shape(tuple(policy.widths)), sampled=True)


def _batched_top_k(policy: StaticTopK) -> BatchedPolicy:
    return BatchedStaticTree(ranked_shape(tuple(policy.widths)), sampled=False)


SAMPLED = POLICIES.register(
    PolicySpec(
        name="eagle1",
        greedy_variant="static_top_k",
        device="underpaint.runtime.device.static_growth:widths_plan",
        make=Eagle1,
        drawn="without_replacement",
        source="arXiv 2401.15077 (EAGLE-1); arXiv 2502.06352 (LANTERN++) on images",
        deviations="the shape follows a rule (smallest sum of ranks, a fixed number of nodes per level), not a "
        "published list of paths",
        examples=({"widths": (2, 2)}, {"widths": (3,)}),
        batched=_batched,
    )
)
LIKELIEST = POLICIES.register(
    PolicySpec(
        name="static_top_k",
        device="underpaint.runtime.device.static_growth:widths_plan",
        make=StaticTopK,
        drawn="top_k",
        source="arXiv 2401.10774 (Medusa): a static tree of likeliest tokens",
        deviations="the shape follows the same rule as 'eagle1'",
        examples=({"widths": (3, 4, 2)},),
        batched=_batched_top_k,
    )
)
