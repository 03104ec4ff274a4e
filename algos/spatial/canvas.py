"""The image during decoding: which cells are decided, which are in the target's KV cache, what the next pass feeds.

The distribution of cell c is read where the token of cell c - 1 is fed. A pass feeds four kinds of rows:

- a decided cell before the last wanted one that is not in the cache yet: visible to all later rows, and committed;
- a decided cell that is already in the cache, fed again to read the distribution after it: visible only to itself, not
  committed (its cached keys stay as they are);
- a draft: visible to later drafts of its own group, committed if its token is kept;
- a proxy, if the cell before is undecided (at the start of a row front): the token of the last decided cell before
  it, at the position of the missing one; visible only to itself, never committed (ZipAR, arXiv 2412.04062).
"""

from dataclasses import dataclass, field

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.target import Feed, GridTarget
from underpaint.algos.tree import NO_TOKEN, are_distributions

_NO_GROUP = -1


@dataclass(slots=True)
class Canvas:
    """One image during decoding with one target.

    Attributes:
        target: The target model.
        tokens: [cells] int64, NO_TOKEN if undecided.
        cached: [cells] bool, whether the cell is in the KV cache.
        precomputed: By cell, distributions [V] that need no pass.
        passes: Tokens fed by each pass; the prefill counts as 0.
    """

    target: GridTarget
    tokens: IntArray
    cached: BoolArray
    precomputed: dict[int, FloatArray]
    passes: list[int]
    _fed: tuple[IntArray, IntArray, IntArray] | None = field(default=None, repr=False)

    @classmethod
    def begin(cls, target: GridTarget, prefix: IntArray | None = None) -> "Canvas":
        """Start an image and return its canvas.

        Args:
            target: The target model.
            prefix: [n] int64, already decided tokens of the first cells in raster order; None for none.

        Raises:
            ValueError: The prefix is not valid for the target, or the target's first distribution is invalid.
        """
        cells = target.grid.cells
        tokens = np.full(cells, NO_TOKEN, dtype=np.int64)
        if prefix is not None:
            if prefix.ndim != 1 or prefix.size > cells:
                raise ValueError(f"prefix: expected at most {cells} tokens [n], got shape {prefix.shape}")
            if prefix.size and (prefix.min() < 0 or prefix.max() >= target.vocab_size):
                raise ValueError(f"prefix: expected 0 <= token < {target.vocab_size}, got {prefix.tolist()}")
            tokens[: prefix.size] = prefix
        distribution = target.begin()
        _check_distributions(distribution[None], 1, target.vocab_size)
        return cls(target, tokens, np.zeros(cells, dtype=np.bool_), {0: distribution}, [0])

    @property
    def grid(self) -> Grid:
        """The size of the image in cells."""
        return self.target.grid

    @property
    def decided(self) -> BoolArray:
        """[cells] bool, whether each cell is decided."""
        mask: BoolArray = self.tokens != NO_TOKEN
        return mask

    def put(self, cell: int, token: int) -> None:
        """Decide a cell; a decided cell cannot be changed."""
        if self.tokens[cell] != NO_TOKEN:
            raise RuntimeError(f"canvas: cell {cell} is decided already")
        self.tokens[cell] = token

    def put_all(self, cells: IntArray, tokens: IntArray) -> None:
        """Decide `cells` [n], all different, with the tokens `tokens` [n]."""
        if np.any(self.tokens[cells] != NO_TOKEN):
            raise RuntimeError(f"canvas: some of cells {cells.tolist()} are decided already")
        self.tokens[cells] = tokens

    def distributions(self, cells: IntArray) -> FloatArray:
        """Return the distributions [n, V] of undecided `cells` [n], ascending, given earlier decided cells."""
        distributions = self._distributions(cells, None, None)
        self.keep()
        return distributions

    def draft_distributions(self, cells: IntArray, drafts: IntArray, groups: IntArray) -> FloatArray:
        """Return the distributions of undecided cells, each of which also sees earlier drafts of its own group.

        Otherwise like `distributions`, but call `keep` after the verdict. If the cell before a cell is drafted in
        another group, the cell is read after a proxy.

        Args:
            cells: [n], undecided cells, ascending.
            drafts: [cells] int64 over the whole grid, NO_TOKEN if there is none.
            groups: [cells] int64 >= 0 over the whole grid, the group of each cell.

        Returns:
            The distributions [n, V].
        """
        return self._distributions(cells, drafts, groups)

    def keep(self) -> None:
        """Commit the rows of the last pass whose token is now decided, except those already in the cache."""
        if self._fed is None:
            return
        rows, cells, tokens = self._fed
        kept_mask = (self.tokens[cells] == tokens) & ~self.cached[cells]
        if kept_mask.any():
            self.target.commit(rows[kept_mask])
            self.cached[cells[kept_mask]] = True
        self._fed = None

    def recompute(self, cells: IntArray) -> None:
        """Have the keys of these decided cells [n] recomputed together: the next pass feeds them again."""
        self.cached[cells] = False

    def _distributions(self, cells: IntArray, drafts: IntArray | None, groups: IntArray | None) -> FloatArray:
        is_known = [cell in self.precomputed for cell in cells.tolist()] if self.precomputed else []
        if not any(is_known):
            return self._score(cells - 1, drafts, groups)
        distributions, unknown = np.empty((cells.size, self.target.vocab_size)), ~np.array(is_known)
        for place in np.flatnonzero(is_known):
            distributions[place] = self.precomputed.pop(int(cells[place]))
        if unknown.any():
            distributions[unknown] = self._score(cells[unknown] - 1, drafts, groups)
        return distributions

    def _score(self, before: IntArray, drafts: IntArray | None, groups: IntArray | None) -> FloatArray:
        """Run one pass and return the distributions [n, V] after the cells `before` [n] (ascending)."""
        feed = self._feed(before, drafts, groups)
        self.passes.append(feed.cells.size)
        distributions = self.target.score(feed)
        _check_distributions(distributions, feed.cells.size, self.target.vocab_size)
        rows = distributions if feed.cells.size == before.size else distributions[feed.cells.searchsorted(before)]
        return rows.astype(np.float64)

    def _feed(self, before: IntArray, drafts: IntArray | None, groups: IntArray | None) -> Feed:
        decided, last = self.decided, int(before[-1])
        fed = decided & ~self.cached
        fed[last + 1 :] = False
        fresh = fed.copy()
        fed[before] = True
        cells = fed.nonzero()[0]
        tokens = self.tokens[cells]
        visible = (cells[None, :] < cells[:, None]) & fresh[cells][None, :]
        if drafts is not None and groups is not None:
            after = np.minimum(cells + 1, groups.size - 1)
            drafted = ~decided[cells] & (drafts[cells] != NO_TOKEN) & (groups[cells] == groups[after])
            tokens = np.where(drafted, drafts[cells], tokens)
            group = np.where(drafted, groups[cells], _NO_GROUP)
            same = (group[:, None] == group[None, :]) & drafted[None, :]
            visible |= (cells[None, :] < cells[:, None]) & same
        visible.reshape(-1)[:: cells.size + 1] = True
        proxied = tokens == NO_TOKEN
        if proxied.any():
            tokens[proxied] = self.tokens[self._decided_before(cells[proxied])]
        rows = (~proxied).nonzero()[0]
        self._fed = (rows, cells[rows], tokens[rows])
        cached = self.cached[None, :] & (np.arange(decided.size)[None, :] < cells[:, None])
        return Feed(cells, tokens, visible, cached)

    def _decided_before(self, cells: IntArray) -> IntArray:
        """Return for each of `cells` [n] the last decided cell before it."""
        last = np.maximum.accumulate(np.where(self.decided, np.arange(self.tokens.size), -1))[cells]
        if last.min() < 0:
            raise ValueError(f"canvas: no cell is decided before {cells.tolist()}; decide in row-front order")
        return last


def _check_distributions(distributions: FloatArray, rows: int, vocab_size: int) -> None:
    if distributions.shape != (rows, vocab_size):
        raise ValueError(
            f"distributions: expected {(rows, vocab_size)} (one distribution per row fed), got {distributions.shape}"
        )
    if not are_distributions(distributions):
        raise ValueError(
            f"distributions: expected rows of non-negative numbers that sum to 1, got sums "
            f"{distributions.sum(axis=-1).tolist()} and minimum {float(distributions.min())!r}; pass them "
            "through rows.sampling_probs"
        )
