"""The walk of the deterministic rules: every node is kept or not by its own test, and the longest kept path wins."""

from collections import deque
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, get_args

from underpaint.algos.tree import DraftTree

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
