"""Siblings under any acceptance: the test is a parameter, and so is what a rejection takes from the target's
distribution."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from underpaint.algos.accept.walk import SiblingOutcome, excess, normalised, proposal_distributions
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree


class Odds(NamedTuple):
    """Keep with probability min(1, chance_of / out_of); never where `chance_of` is 0."""

    chance_of: float
    out_of: float


class Acceptance(Protocol):
    """An acceptance of a proposal drawn from `draft` [V] under `target` [V], both float64 with sum 1."""

    def odds(self, target: FloatArray, draft: FloatArray, token: int, place: int) -> Odds:
        """The odds of keeping `token`; `place` counts the nodes above it, the root excluded."""
        ...

    def taken(self, target: FloatArray, draft: FloatArray, place: int) -> FloatArray:
        """[V]: what a rejection takes from `target`; the residual is norm([target - taken]_+).

        draft * accept is the choice of least total variation (arXiv 2601.09212): the output then misses the target by
        sum([draft * accept - target]_+), which no residual can undo. Where accept >= min(1, target / draft)
        everywhere, taking `draft` leaves the same.
        """
        ...


class RelaxedSiblings(NamedTuple):
    """`SiblingRule` for one acceptance, sibling after sibling, each against what the ones before it left."""

    acceptance: Acceptance

    def __call__(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        left = normalised(distribution)
        place = len(tree.path_to(node))
        for child, draft in zip(children, proposal_distributions(tree, node, children), strict=False):
            odds = self.acceptance.odds(left, draft, int(tree.tokens[child]), place)
            if chance.flip(odds.chance_of, At(Role.ACCEPT, child), out_of=odds.out_of):
                return SiblingOutcome(child, left)
            rest = excess(left, self.acceptance.taken(left, draft, place))
            if rest.any():  # else rounding alone spoke against a sure token, or (GSD) a rejection owes nothing
                left = normalised(rest)
        return SiblingOutcome(None, left)
