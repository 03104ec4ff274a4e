"""Chains of draft tokens: sampled, or the likeliest token each time."""

from dataclasses import dataclass
from typing import Annotated

from underpaint.algos.batched.spec import BatchedPolicy
from underpaint.algos.batched.static_trees import BatchedStaticTree
from underpaint.algos.chance import Chance
from underpaint.algos.draft.shape import chain_shape, fill_sampled
from underpaint.algos.draft.spec import POLICIES, PolicySpec
from underpaint.algos.draft.tree_builder import likeliest_chain
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.registry import Nodes, Tune, check_bounds
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class Chain:
    """Speculative sampling's chain: each of `length` tokens is drawn from the drafter's distribution.

    arXiv 2211.17192, algorithm 1.

    Attributes:
        length: gamma >= 1, the draft tokens per cycle, with one drafter pass each.
    """

    length: Annotated[Nodes, Tune((2, 3, 4, 5, 8))] = 4

    def __post_init__(self) -> None:
        check_bounds("policy 'chain'", self)

    def begin(self, grid: Grid) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the chain. Node i is drawn at `At(Role.DRAFT, i)`; its distribution is row i of `draft_probs`."""
        return fill_sampled(chain_shape(_length(self.length, budget)), drafter, root, chance, drawn="iid")

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...


@dataclass(frozen=True, slots=True)
class LikeliestChain:
    """A chain of the drafter's likeliest tokens: point proposals, equal to an EAGLE-2 tree with top-1.

    Attributes:
        length: Draft tokens per cycle, >= 1, with one drafter pass each.
    """

    length: Annotated[Nodes, Tune((2, 3, 4, 5, 8))] = 4

    def __post_init__(self) -> None:
        check_bounds("policy 'chain_top1'", self)

    def begin(self, grid: Grid) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the chain, without any random draw."""
        return likeliest_chain(drafter, root, _length(self.length, budget))

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...


def _length(length: int, budget: Budget) -> int:
    return max(0, min(length, budget.max_depth, budget.max_nodes - 1))


def _batched(policy: Chain) -> BatchedPolicy:
    return BatchedStaticTree(chain_shape(policy.length), sampled=True)


def _batched_likeliest(policy: LikeliestChain) -> BatchedPolicy:
    return BatchedStaticTree(chain_shape(policy.length), sampled=False, one_call=True)


SAMPLED = POLICIES.register(
    PolicySpec(
        name="chain",
        greedy_variant="chain_top1",
        device="underpaint.runtime.device.static_growth:chain_plan",
        make=Chain,
        drawn="iid",
        source="arXiv 2211.17192, algorithm 1",
        chain=True,
        examples=({"length": 1}, {"length": 3}),
        batched=_batched,
    )
)
LIKELIEST = POLICIES.register(
    PolicySpec(
        name="chain_top1",
        device="underpaint.runtime.device.ranked_growth:likeliest_chain_plan",
        make=LikeliestChain,
        drawn="top_k",
        source="arXiv 2211.17192 with a one-hot draft distribution",
        chain=True,
        examples=({"length": 1}, {"length": 3}),
        batched=_batched_likeliest,
    )
)
