"""The image while it is decoded: which cells are decided, which are in the target's cache, what the next pass feeds.

The distribution of cell c is read where the token of cell c - 1 is fed. Four kinds of rows are fed:

- a decided cell before the last wanted one that is not in the cache yet: seen by all later rows, and committed;
- a decided cell that is in the cache already, fed again to read the distribution after it: seen by itself only, not
committed
  (its cached keys stay as they are);
- a draft: seen by later drafts of its own group, committed if its token is kept;
- a proxy, where the cell before is undecided (the start of a row front): the token of the last decided cell before
  it, at the position of the missing one; seen by itself only, never committed (ZipAR, arXiv 2412.04062).
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
    """One image in the making, over one target.

    tokens: [cells] int64, NO_TOKEN where undecided. cached: [cells] bool. known: distributions that need no pass, by
    cell.
    passes: tokens fed by each pass; the first, over the condition, counts as 0.
    """

    target: GridTarget
    tokens: IntArray
    cached: BoolArray
    known: dict[int, FloatArray]
    passes: list[int]
    _fed: tuple[IntArray, IntArray, IntArray] | None = field(default=None, repr=False)

    @classmethod
    def begin(cls, target: GridTarget, prefix: IntArray | None = None) -> "Canvas":
        """Start an image; `prefix` [n] int64: tokens of the first cells in raster order, decided already."""
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
        """The image's grid."""
        return self.target.grid

    @property
    def decided(self) -> BoolArray:
        """[cells]."""
        mask: BoolArray = self.tokens != NO_TOKEN
        return mask

    def put(self, cell: int, token: int) -> None:
        """Decide a cell, once and for all."""
        if self.tokens[cell] != NO_TOKEN:
            raise RuntimeError(f"canvas: cell {cell} is decided already")
        self.tokens[cell] = token

    def put_all(self, cells: IntArray, tokens: IntArray) -> None:
        """Decide `cells` [n], all different, by `tokens` [n]."""
        if np.any(self.tokens[cells] != NO_TOKEN):
            raise RuntimeError(f"canvas: some of cells {cells.tolist()} are decided already")
        self.tokens[cells] = tokens

    def distributions(self, wanted: IntArray) -> FloatArray:
        """The distributions [n, V] of the undecided cells `wanted` [n] (ascending), each given all decided cells before
        it."""
        found = self._distributions(wanted, None, None)
        self.keep()
        return found

    def draft_distributions(self, wanted: IntArray, drafts: IntArray, groups: IntArray) -> FloatArray:
        """As `distributions`, where a cell also sees the drafts of its own group before it. `keep` must follow the
        verdict.

        drafts: [cells] int64, NO_TOKEN where there is none. groups: [cells] int64 >= 0; a cell whose neighbour before
        it is drafted in another group is read behind a proxy.
        """
        return self._distributions(wanted, drafts, groups)

    def keep(self) -> None:
        """Commit the rows of the last pass whose token is now the decided one, save those in the cache before it."""
        if self._fed is None:
            return
        rows, cells, tokens = self._fed
        kept = (self.tokens[cells] == tokens) & ~self.cached[cells]
        if kept.any():
            self.target.commit(rows[kept])
            self.cached[cells[kept]] = True
        self._fed = None

    def recompute(self, cells: IntArray) -> None:
        """Have the keys of these decided cells [n] computed again, all at once: the next pass feeds them."""
        self.cached[cells] = False

    def _distributions(self, wanted: IntArray, drafts: IntArray | None, groups: IntArray | None) -> FloatArray:
        held = [cell in self.known for cell in wanted.tolist()] if self.known else []
        if not any(held):
            return self._score(wanted - 1, drafts, groups)
        found, asked = np.empty((wanted.size, self.target.vocab_size)), ~np.array(held)
        for place in np.flatnonzero(held):
            found[place] = self.known.pop(int(wanted[place]))
        if asked.any():
            found[asked] = self._score(wanted[asked] - 1, drafts, groups)
        return found

    def _score(self, before: IntArray, drafts: IntArray | None, groups: IntArray | None) -> FloatArray:
        """One pass: the distributions [n, V] behind the cells `before` [n] (ascending)."""
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
        own = (~proxied).nonzero()[0]
        self._fed = (own, cells[own], tokens[own])
        cached = self.cached[None, :] & (np.arange(decided.size)[None, :] < cells[:, None])
        return Feed(cells, tokens, visible, cached)

    def _decided_before(self, cells: IntArray) -> IntArray:
        """For each of `cells` [n] the last decided cell before it."""
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
