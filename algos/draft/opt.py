"""OPT-Tree: grows levels while each adds enough to the expected accepted length."""

from dataclasses import dataclass
from typing import Annotated

from underpaint.algos.chance import Chance
from underpaint.algos.draft.spec import POLICIES, PolicySpec
from underpaint.algos.draft.tree_builder import TreeBuilder, best_first
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.registry import Nodes, Share, Tune, check_bounds
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class OptTree:
    """The `total_tokens` best path products, grown until a level adds less than `threshold` to their sum.

    arXiv 2406.17276: the sum of path products estimates the accepted length. Each level expands the nodes that are
    among the best so far, because no other node can have a descendant there.

    Attributes:
        total_tokens: Draft nodes to verify, without the root, >= 1.
        threshold: Accepted tokens that a level must add before another one is grown; a good choice is the cost of a
            drafter pass in units of a target pass.
        max_depth: The most levels, >= 1, with one drafter pass each.
    """

    total_tokens: Annotated[Nodes, Tune((4, 6, 8, 12, 20, 50))] = 50
    threshold: Annotated[Share, Tune((0.2, 0.3, 0.4, 0.5, 0.7))] = 0.7
    max_depth: Nodes = 10

    def __post_init__(self) -> None:
        check_bounds("policy 'opt'", self)

    def begin(self, grid: Grid) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the tree, without any random draw."""
        total = max(0, min(self.total_tokens, budget.max_nodes - 1))
        deepest = min(self.max_depth, budget.max_depth, total)
        growing = TreeBuilder(drafter, root)
        frontier, length, gain, expanded = 1, 0.0, self.threshold, 0
        while growing.depth < deepest and gain >= self.threshold and growing.add_level(frontier, total):
            expanded += len(growing.levels[-1].expanded)
            scores = growing.scores()
            best = best_first(scores, total)
            gain = float(scores[best].sum()) - length
            length += gain
            frontier = min(int((best >= growing.levels[-1].first).sum()), budget.max_nodes - expanded)
            if frontier <= 0:
                break
        return growing.tree(total)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...


SPEC = POLICIES.register(
    PolicySpec(
        name="opt",
        device="underpaint.runtime.device.opt_growth:opt_plan",
        make=OptTree,
        drawn="top_k",
        source="arXiv 2406.17276",
        deviations="expands at most as many nodes as fit into the target's largest pass; a level expands only nodes "
        "among the best so far, not its own n best, which gives the same tree with fewer expansions; keeps the last "
        "level although it adds less than the threshold",
        examples=({"total_tokens": 6, "threshold": 0.2, "max_depth": 3},),
    )
)
