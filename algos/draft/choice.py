"""What a policy settles of a cycle's tree before anything is drafted."""

from typing import Final, Literal, NamedTuple, TypeAlias

from underpaint.algos.tree import Drawn, Shape

Kind: TypeAlias = Literal["plain", "chain", "tree", "drawn", "window"]
"""A plain step, a chain of likeliest tokens, a tree of them, drawn siblings, or a Jacobi window."""


class Choice(NamedTuple):
    """levels: of a chain, of a tree at most, or drafts of a window. shape, drawn: of a tree of drawn siblings."""

    kind: Kind
    levels: int = 0
    shape: Shape = (-1,)
    drawn: Drawn = "top_k"


NOTHING: Final = Choice("plain")
"""One token by the target alone."""
