"""Trees of drawn siblings as large as pays: `roofline`'s forecast of them, and how they are drafted."""

from dataclasses import dataclass, field
from typing import Final

from underpaint.algos.chance import Chance
from underpaint.algos.draft.acceptance_estimator import AcceptanceEstimator
from underpaint.algos.draft.costs import CostCurve
from underpaint.algos.draft.sequoia import StaticTree, best_static_tree
from underpaint.algos.draft.shape import chain_shape, fill_sampled
from underpaint.algos.protocols import Expander
from underpaint.algos.tree import DraftTree, Drawn, Shape, Verdict

STEPS: Final = 20
"""Acceptance is rounded to so many steps, so that the same few trees are planned once and kept."""
LATER_ACCEPTANCE: Final = 0.25
"""The probability that a sibling is accepted once those before it were rejected, before any was tried."""
TRIED_ACCEPTANCE: Final = (0.8, 0.1)
"""By which a tree is planned before anything is known, so that there is something to learn from."""
NO_TREE: Final = StaticTree((-1,), 0.0, 1.0)


@dataclass(slots=True)
class DrawnTrees:
    """Sequoia's tree of most expected tokens per millisecond (arXiv 2402.12374, section 3), planned anew as acceptance
    moves: that of the first sibling follows the neighbouring cells, that of later ones the image.

    first: of the likelihood that the first sibling drawn is accepted, by level. costs: of target passes by nodes, and
    `draft_ms` for each level; call_ms: of a call that drafts, beyond its levels. siblings: of a node at most, >= 1.
    max_depth: levels at most. prior: weight, in siblings tried, of the belief `LATER_ACCEPTANCE`, > 0.
    with_replacement: siblings are independent draws (SpecInfer, arXiv 2305.09781); else each is another token.
    """

    first: AcceptanceEstimator
    costs: CostCurve
    call_ms: float
    siblings: int
    max_depth: int
    prior: float
    with_replacement: bool = False
    _tried: list[int] = field(init=False, repr=False)
    _accepted: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._tried, self._accepted = [0] * self.siblings, [0] * self.siblings

    def acceptance(self, cell: int) -> tuple[float, ...]:
        """[siblings] the probability that each sibling, in the order drawn, is the one accepted at `cell`."""
        found, left = [self.first.first_chance(cell)], 1.0
        for tried, accepted in zip(self._tried[1:], self._accepted[1:], strict=True):
            left -= found[-1]
            found.append(left * (self.prior * LATER_ACCEPTANCE + accepted) / (self.prior + tried))
        return tuple(found)

    def best(self, cell: int) -> StaticTree:
        """The tree of most expected tokens per ms at `cell`; the root alone where none pays."""
        rounded = tuple(round(chance * STEPS) / STEPS for chance in self.acceptance(cell))
        return best_static_tree(rounded, self.costs, self.max_depth, self.costs.max_nodes, self.call_ms)

    def trial_tree(self) -> StaticTree:
        """The tree to try before anything is known, which has a node at least."""
        planned = best_static_tree(TRIED_ACCEPTANCE, self.costs, self.max_depth, self.costs.max_nodes, self.call_ms)
        return planned if len(planned.shape) > 1 else planned._replace(shape=chain_shape(1))

    def drawn_as(self, shape: Shape) -> Drawn:
        """A chain's nodes are independent draws: it is "iid" in any case."""
        is_iid = self.with_replacement or shape == chain_shape(len(shape) - 1)
        return "iid" if is_iid else "without_replacement"

    def draft_tree(self, drafter: Expander, root: int, shape: Shape, chance: Chance) -> DraftTree:
        """Node i is drawn at `At(Role.DRAFT, i)`."""
        return fill_sampled(shape, drafter, root, chance, self.drawn_as(shape))

    def learn(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """Take in what was decided of a drawn tree whose children are judged in the order drawn."""
        below, hits = tree.children(), list[bool]()
        for node, accepted in zip((0, *verdict.path), (*verdict.path, -1), strict=True):
            if not below[node]:
                break
            for rank, child in enumerate(below[node][: self.siblings]):
                self._tried[rank] += 1
                self._accepted[rank] += child == accepted
                if child == accepted:
                    break
            hits.append(below[node][0] == accepted)
        self.first.learn(cell, hits)
