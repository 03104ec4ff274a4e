"""EAGLE-2's dynamic tree of likeliest tokens."""

from dataclasses import dataclass
from typing import Annotated

from underpaint.algos.batched.dynamic_trees import BatchedEagle2
from underpaint.algos.batched.spec import BatchedPolicy
from underpaint.algos.chance import Chance
from underpaint.algos.draft.spec import POLICIES, PolicySpec
from underpaint.algos.draft.tree_builder import TreeBuilder, likeliest_chain
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.registry import Nodes, Tune, check_bounds
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class Eagle2:
    """Expand the best `top_k` nodes of each level by their `top_k` likeliest tokens, then keep the best nodes overall.

    arXiv 2406.16858, sections 4.1 (expansion) and 4.2 (reranking). A node's score is the product of the draft
    probabilities along its path.

    Attributes:
        depth: Levels, >= 1, one drafter pass each. The authors' `depth` is one less, as it does not count the first.
        top_k: Nodes expanded per level, and children of each, >= 1; 1 gives a chain.
        total_tokens: Draft nodes to verify, without the root, >= 1.
    """

    depth: Annotated[Nodes, Tune((3, 4, 5, 6, 8))] = 5
    top_k: Annotated[Nodes, Tune((1, 2, 4, 10))] = 10
    total_tokens: Annotated[Nodes, Tune((3, 4, 6, 10, 20, 59))] = 59

    def __post_init__(self) -> None:
        check_bounds("policy 'eagle2'", self)

    def begin(self, grid: Grid) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the tree, without any random draw."""
        return grow_eagle2(drafter, root, budget, self.depth, self.top_k, self.total_tokens)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...


def grow_eagle2(drafter: Expander, root: int, budget: Budget, depth: int, top_k: int, total_tokens: int) -> DraftTree:
    """Return the EAGLE-2 tree with at most `depth` levels, one drafter pass each, and `total_tokens` draft nodes."""
    total = max(0, min(total_tokens, budget.max_nodes - 1))
    levels = min(depth, budget.max_depth, total)
    if top_k == 1:
        return likeliest_chain(drafter, root, levels)
    growing = TreeBuilder(drafter, root)
    growing.add_levels(levels, top_k)
    return growing.tree(total)


def _batched(policy: Eagle2) -> BatchedPolicy:
    return BatchedEagle2(policy.depth, policy.top_k, policy.total_tokens)


SPEC = POLICIES.register(
    PolicySpec(
        name="eagle2",
        device="underpaint.runtime.device.ranked_growth:eagle2_plan",
        make=Eagle2,
        drawn="top_k",
        source="arXiv 2406.16858",
        deviations="tokens of draft probability 0 are not proposed; `depth` counts all levels, the authors' all but "
        "the first, so their value plus one gives the same tree with as many drafter passes",
        examples=({"depth": 3, "top_k": 2, "total_tokens": 5}, {"depth": 2, "top_k": 1}),
        batched=_batched,
    )
)
