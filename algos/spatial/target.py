"""The protocol of a target that scores any set of grid cells, given any set of committed cells, in one pass."""

from typing import NamedTuple, Protocol

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.protocols import Grid


class Feed(NamedTuple):
    """One pass over T tokens at the positions of their cells, with at most one token per cell.

    The model is shifted, like LlamaGen: the token fed at cell c gives the distribution of cell c + 1. Every row sees
    the condition and itself. A row never sees a cell both as a new row and in the KV cache.
    """

    cells: IntArray
    """[T] int64, ascending: the cells (positions)."""
    tokens: IntArray
    """[T] int64, the token fed at each cell."""
    visible: BoolArray
    """[T, T]: row t attends to new row u. True on the diagonal, False above it."""
    cached: BoolArray
    """[T, cells]: row t attends to the cached keys of a cell."""


class GridTarget(Protocol):
    """A target model over a grid, whose condition is already set.

    It owns a KV cache with one slot per cell. Each pass says which slots are valid, so slots need not be cleared, and a
    static cache is enough: the engine turns `visible` and `cached` into two attention biases, and `commit` writes at
    most T rows. Nothing is copied or moved.
    """

    @property
    def vocab_size(self) -> int:
        """The vocabulary size V."""
        ...

    @property
    def grid(self) -> Grid:
        """The size of the image to generate."""
        ...

    def begin(self) -> FloatArray:
        """Start an image and return the distribution [V] of cell 0, which follows the condition."""
        ...

    def score(self, feed: Feed) -> FloatArray:
        """Run one pass; row t of [T, V] is the distribution of cell `feed.cells[t] + 1` (no meaning past the last)."""
        ...

    def commit(self, rows: IntArray) -> None:
        """Write the keys and values of the rows [R] of the last pass into their cells' slots, replacing old ones."""
        ...
