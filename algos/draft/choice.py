"""The decision of a policy about a cycle's tree, made before anything is drafted."""

from typing import Final, Literal, NamedTuple, TypeAlias

from underpaint.algos.tree import Drawn, Shape

Kind: TypeAlias = Literal["plain", "chain", "tree", "drawn", "window"]
"""A plain step, a greedy chain, a tree of likeliest tokens, drawn siblings, or a Jacobi window."""


class Choice(NamedTuple):
    """levels: Of a chain, the most of a tree, or drafts of a window. shape, drawn: Of a tree of drawn siblings."""

    kind: Kind
    levels: int = 0
    shape: Shape = (-1,)
    drawn: Drawn = "top_k"


NOTHING: Final = Choice("plain")
"""A plain step: one token from the target alone."""
