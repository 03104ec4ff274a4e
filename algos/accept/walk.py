"""The walk down a draft tree that every token-wise rule shares: try the siblings, descend, or draw and stop."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree, Verdict


class SiblingOutcome(NamedTuple):
    """What came of trying one node's children."""

    accepted: int | None
    """The child that was accepted; None if all were rejected."""
    residual: FloatArray
    """[V] weights (any scale) to draw the extra token from; read only when `accepted` is None."""


class SiblingRule(Protocol):
    """Tries the children of one node in order."""

    def __call__(
        self, tree: DraftTree, node: int, children: Sequence[int], distribution: FloatArray, chance: Chance
    ) -> SiblingOutcome:
        """Flip at `At(Role.ACCEPT, child)`; `distribution` [V] is the target's after `node`, not to be written to."""
        ...


def walk(tree: DraftTree, probs: FloatArray, chance: Chance, siblings: SiblingRule) -> Verdict:
    """Accept from the root downwards while a child is accepted; then one extra token.

    The extra token comes from the residual of the node whose children were all rejected, or, below a leaf, from
    the target's own distribution (the bonus token).
    """
    below = tree.children()
    path: list[int] = []
    node = 0
    while below[node]:
        accepted, residual = siblings(tree, node, below[node], probs[node], chance)
        if accepted is None:
            return Verdict(tuple(path), chance.draw(residual, At(Role.RESIDUAL, node)))
        path.append(accepted)
        node = accepted
    return Verdict(tuple(path), chance.draw(probs[node], At(Role.BONUS, node)))
