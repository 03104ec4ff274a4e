"""The walks down a draft tree that rules share: sibling by sibling from the root, or the longest path of kept nodes."""

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

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


Choice: TypeAlias = Literal["longest", "first"]
"""Which of several siblings that pass the test: the one on the longest kept path, or the first."""


def check_choice(what: str, choose: Choice) -> None:
    """Raise ValueError unless `choose` is one of `Choice`."""
    if choose not in get_args(Choice):
        raise ValueError(f"{what}: choose must be one of {', '.join(get_args(Choice))}, got {choose!r}")


class Passing(Protocol):
    """The test of one node's children."""

    def __call__(self, node: int, children: Sequence[int]) -> Sequence[int]:
        """Those of `children` that pass, in their order."""
        ...


def kept_ends(tree: DraftTree, passing: Passing, choose: Choice = "longest") -> list[int]:
    """The deepest nodes that pass with all their ancestors, in order of index; [0] if no child of the root passes.

    Only the children of kept nodes are tested.
    """
    below = tree.children()
    level = deque([0])
    while level:
        ends = list(level)
        level.clear()
        for node in ends:
            if below[node]:
                passed = passing(node, below[node])
                level.extend(passed[:1] if choose == "first" else passed)
    return sorted(ends)
