"""`roofline`'s trees of drawn siblings: how their size is forecast, and how they are drafted."""

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
"""Acceptance is rounded to this many steps, so that few different trees have to be planned; plans are cached."""
LATER_ACCEPTANCE: Final = 0.25
"""The prior probability that a sibling is accepted once the earlier ones were rejected."""
TRIED_ACCEPTANCE: Final = (0.8, 0.1)
"""The acceptance by which a tree is planned before anything is known, in order to collect observations."""
NO_TREE: Final = StaticTree((-1,), 0.0, 1.0)


@dataclass(slots=True)
class DrawnTrees:
    """Sequoia's tree with most expected tokens per ms (arXiv 2402.12374, section 3), replanned as acceptance changes.

    The acceptance of the first sibling follows the neighbouring cells, that of later siblings the image.

    Attributes:
        first: Estimates the probability that the first drawn sibling is accepted, by level.
        costs: Costs of target passes by nodes, and `draft_ms` per level.
        call_ms: Cost of a drafting call, in addition to its levels.
        siblings: The most children of a node, >= 1.
        max_depth: The most levels.
        prior: Weight, in tried siblings, of `LATER_ACCEPTANCE`, > 0.
        with_replacement: Siblings are independent draws (SpecInfer, arXiv 2305.09781); otherwise they all differ.
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
        """Return [siblings], the probability that each sibling, in drawing order, is the accepted one at `cell`."""
        chances, left = [self.first.first_chance(cell)], 1.0
        for tried, accepted in zip(self._tried[1:], self._accepted[1:], strict=True):
            left -= chances[-1]
            chances.append(left * (self.prior * LATER_ACCEPTANCE + accepted) / (self.prior + tried))
        return tuple(chances)

    def best(self, cell: int) -> StaticTree:
        """Return the tree with the most expected tokens per ms at `cell`; only the root if no draft pays."""
        rounded = tuple(round(chance * STEPS) / STEPS for chance in self.acceptance(cell))
        return best_static_tree(rounded, self.costs, self.max_depth, self.costs.max_nodes, self.call_ms)

    def trial_tree(self) -> StaticTree:
        """Return the tree to try before anything is known; it has at least one draft node."""
        planned = best_static_tree(TRIED_ACCEPTANCE, self.costs, self.max_depth, self.costs.max_nodes, self.call_ms)
        return planned if len(planned.shape) > 1 else planned._replace(shape=chain_shape(1))

    def drawn_as(self, shape: Shape) -> Drawn:
        """Return how `shape` is drawn; a chain is always "iid", because its nodes are independent draws."""
        is_iid = self.with_replacement or shape == chain_shape(len(shape) - 1)
        return "iid" if is_iid else "without_replacement"

    def draft_tree(self, drafter: Expander, root: int, shape: Shape, chance: Chance) -> DraftTree:
        """Draft a tree of this shape. Node i is drawn at `At(Role.DRAFT, i)`."""
        return fill_sampled(shape, drafter, root, chance, self.drawn_as(shape))

    def learn(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """Learn from the verdict on a drawn tree, if the rule judges children in drawing order."""
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
