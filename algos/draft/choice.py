"""The decision of a policy about a cycle's tree, made before anything is drafted."""

from typing import Final, Literal, NamedTuple, TypeAlias

from underpaint.algos.tree import Drawn, Shape

Kind: TypeAlias = Literal["plain", "chain", "tree", "drawn", "window"]
"""A plain step, a greedy chain, a tree of likeliest tokens, drawn siblings, or a Jacobi window."""


class Choice(NamedTuple):
    """The decision of a policy about one cycle's tree.

    Attributes:
        kind: What is drafted.
        levels: The levels of a chain, the most levels of a tree, or the drafts of a window.
        shape: The shape of a tree of drawn siblings.
        drawn: How the siblings of such a tree are drawn.
    """

    kind: Kind
    levels: int = 0
    shape: Shape = (-1,)
    drawn: Drawn = "top_k"


NOTHING: Final = Choice("plain")
"""A plain step: one token from the target alone."""
