"""A target that scores any set of grid cells given any set of committed cells, in one pass."""

from typing import NamedTuple, Protocol

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.protocols import Grid


class Feed(NamedTuple):
    """One pass over T tokens, each at the position of its cell; no two at one cell.

    The model is shifted, as LlamaGen is: the token fed at cell c yields the distribution of cell c + 1. Every row sees
    the condition and itself. A row never sees a cell both among the new rows and in the cache.
    """

    cells: IntArray
    """[T] int64, ascending: the positions."""
    tokens: IntArray
    """[T] int64."""
    visible: BoolArray
    """[T, T]: row t attends to new row u. True on the diagonal, False above it."""
    cached: BoolArray
    """[T, cells]: row t attends to the cached keys of a cell."""


class GridTarget(Protocol):
    """A target model over a grid, conditioned already.

    It owns a cache with one slot a cell. Which slots count is said anew in every pass, so a slot needs no clearing,
    and a static cache serves: the engine turns `visible` and `cached` into two biases, and `commit` writes T rows at
    most. Nothing is copied or moved.
    """

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    @property
    def grid(self) -> Grid:
        """The image to draw."""
        ...

    def begin(self) -> FloatArray:
        """Start an image; the distribution [V] of cell 0, which follows the condition."""
        ...

    def score(self, feed: Feed) -> FloatArray:
        """One pass: [T, V], row t the distribution of cell `feed.cells[t] + 1` (of no meaning after the last cell)."""
        ...

    def commit(self, rows: IntArray) -> None:
        """Write the keys and values of these rows [R] of the last pass into their cells' slots, over what was there."""
        ...
