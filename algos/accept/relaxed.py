"""Relaxed rules on siblings, for any acceptance and any choice of the mass that a rejection takes from the target."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from underpaint.algos.accept.walk import SiblingOutcome, excess, normalised, proposal_distributions
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree


class Odds(NamedTuple):
    """Keep with probability min(1, chance_of / out_of); never if `chance_of` is 0."""

    chance_of: float
    out_of: float


class Acceptance(Protocol):
    """The acceptance of a proposal drawn from `draft` [V] under `target` [V], both float64 with sum 1."""

    def odds(self, target: FloatArray, draft: FloatArray, token: int, place: int) -> Odds:
        """Return the odds of keeping `token`; `place` is the number of nodes above it, without the root."""
        ...

    def taken(self, target: FloatArray, draft: FloatArray, place: int) -> FloatArray:
        """Return [V]: the mass that a rejection takes from `target`; the residual is norm([target - taken]_+).

        draft * accept gives the least total variation (arXiv 2601.09212): the output then differs from the target by
        sum([draft * accept - target]_+), which no residual can reduce. If accept >= min(1, target / draft)
        everywhere, taking `draft` leaves the same residual.
        """
        ...


class RelaxedSiblings(NamedTuple):
    """`SiblingRule` for an `Acceptance`: tries siblings in order, each against the rest left by the earlier ones."""

    acceptance: Acceptance

    def __call__(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        residual = normalised(distribution)
        place = len(tree.path_to(node))
        for child, draft in zip(children, proposal_distributions(tree, node, children), strict=False):
            odds = self.acceptance.odds(residual, draft, int(tree.tokens[child]), place)
            if chance.flip(odds.chance_of, At(Role.ACCEPT, child), out_of=odds.out_of):
                return SiblingOutcome(child, residual)
            rest = excess(residual, self.acceptance.taken(residual, draft, place))
            if rest.any():  # else rounding alone rejected a certain token, or (GSD) the residual is empty
                residual = normalised(rest)
        return SiblingOutcome(None, residual)
