"""Images in lockstep: their tokens, contexts, and draws from their distributions, as arrays over all images."""

from functools import lru_cache

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.drawn import ResidualState
from underpaint.algos.batched.pooling import NeighbourPool
from underpaint.algos.batched.sparse_table import Table, over_rows
from underpaint.algos.batched.spec import FirstResidual, PooledMasses
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.tree import NO_TOKEN
from underpaint.sim.batched.draws import MOST_LOOKED_UP, Draws
from underpaint.sim.synthetic.table_model import TableModel


class TableLookups:
    """The `BatchTables` of a table model: its distributions, and values derived from them."""

    def __init__(self, model: TableModel, most_children: int) -> None:
        self.model, self.target, self.draft = model, model.target, model.draft
        self._small = model.target.size <= MOST_LOOKED_UP
        self.draw = Draws(model.target)
        self._draft_draws: dict[int, Draws] = {}
        self._first_residuals: dict[int, FirstResidual] = {}
        self._pools: tuple[NeighbourPool, PooledMasses] | None = None
        self.best: IntArray = over_rows(model.target, lambda rows: rows.argmax(axis=1))
        self.masses = _sums(model.target)
        self.draft_masses: FloatArray = np.array([_sums(table) for table in model.draft])
        likeliest = np.array([_top(table, min(most_children, model.vocab_size)) for table in model.draft])
        self.top_tokens: IntArray = likeliest[..., 0].astype(np.int64)
        self.top_probs: FloatArray = likeliest[..., 1]

    def draft_depth(self, level: int) -> int:
        """Index of the drafter's table for level `level`."""
        return min(level, len(self.model.draft) - 1)

    def draw_drafts(self, depth: int, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """Draw tokens from the drafter's distributions of `rows` in table `depth`; see `Draws`."""
        if depth not in self._draft_draws:
            self._draft_draws[depth] = Draws(self.model.draft[depth])
        return self._draft_draws[depth](rows, uniforms)

    def first_residual(self, depth: int) -> FirstResidual | None:
        """The residual after a first rejection, for each row of table `depth`; None if the tables are too large."""
        if not self._small:
            return None
        if depth not in self._first_residuals:
            every = np.arange(self.masses.size)
            target, draft = (table[every].astype(np.float64) for table in (self.model.target, self.model.draft[depth]))
            state = ResidualState(target, self.masses, draft, self.draft_masses[depth])
            state = state.less(state.offered())
            self._first_residuals[depth] = FirstResidual(state.left, state.mass, Draws(state.left))
        return self._first_residuals[depth]

    def pools(self, pool: NeighbourPool) -> PooledMasses | None:
        """The masses that `pool` pools around each token of each row; None if the tables are too large."""
        if not self._small:
            return None
        target = self.model.target
        if self._pools is None or self._pools[0] is not pool:
            rows, tokens = (one.reshape(-1) for one in np.indices(target.shape))
            _, mass, count = pool(target, rows, tokens, self.masses[rows])
            self._pools = pool, PooledMasses(mass, count)
        return self._pools[1]


@lru_cache(maxsize=2)
def lookups(model: TableModel, most_children: int) -> TableLookups:
    """The lookups of a model, cached for its next batch."""
    return TableLookups(model, most_children)


def _sums(table: Table) -> FloatArray:
    """[R] float64 sums of the rows of a table."""
    return over_rows(table, lambda rows: rows.sum(axis=1, dtype=np.float64))


def _top(table: Table, count: int) -> FloatArray:
    """[R, count, 2] the likeliest tokens of each row, and their probabilities."""
    return over_rows(table, lambda rows: np.stack(top(rows, count), axis=2))


class TableBatch:
    """The `ImageBatch` of a table model: B images that are decoded together.

    `cell` [B] is the first undecided cell of each image; the root of the next tree is the cell before it.
    """

    def __init__(self, tables: TableLookups, first_image: int, count: int, draws: np.random.Generator) -> None:
        model = tables.model
        self.tables, self.model, self.draws = tables, model, draws
        self.images: IntArray = np.arange(first_image, first_image + count) % model.images
        self.cell: IntArray = np.zeros(count, dtype=np.int64)
        self._width, self._cells = model.grid.width, model.grid.cells
        # A row of NO_TOKEN is stored above each image: the cell above c is at index c, and c itself one row later.
        self._pitch = self._width + self._cells
        self._tokens: IntArray = np.full(count * self._pitch, NO_TOKEN)
        self.canvas: IntArray = self._tokens.reshape(count, self._pitch)[:, self._width :]
        # A table row is the cell's start plus an entry of `_left` for the token before the cell. The second half of
        # `_left` holds the value of NO_TOKEN for every token; it serves the first cell of a row.
        self._starts: IntArray = np.pad(model.starts[self.images], ((0, 0), (0, self._width))).reshape(-1)
        first = np.arange(self._pitch) % self._width == 0
        self._half: IntArray = np.tile(first * np.int64(model.vocab_size), count)
        left_terms = model.left_terms
        self._left: IntArray = np.append(left_terms[:-1], np.full(model.vocab_size, left_terms[NO_TOKEN]))

    def running(self) -> IntArray:
        """Indices of the unfinished images."""
        return np.flatnonzero(self.cell < self._cells)

    def first_rows(self) -> IntArray:
        """[B] the table rows of cell 0."""
        none = np.full(self.images.size, NO_TOKEN)
        return self.model.rows(self.images, np.zeros_like(none), none, none)

    def roots(self, active: IntArray) -> IntArray:
        """[A] the last committed token of each active image."""
        return self._tokens.take(active * self._pitch + self.cell.take(active) + (self._width - 1))

    def rows_after(self, active: IntArray, level: int | IntArray, tokens: IntArray) -> IntArray:
        """Table rows of the cells `level` (or [A] levels) past the first undecided one, after `tokens` [A] or [A, F].

        They equal those of `TableModel.rows`; the cells above must be decided.
        """
        at = active * self._pitch + self.cell.take(active) + level
        base = self._starts.take(at) + self.model.classes.take(self._tokens.take(at))
        half = self._half.take(at)
        if tokens.ndim == 2:
            base, half = base[:, None], half[:, None]
        rows: IntArray = self._left.take(tokens + half)
        rows += base
        return rows

    def budget_depth(self, active: IntArray) -> IntArray:
        """[A] largest depth of a tree; it leaves one cell for the extra token."""
        return self._cells - 1 - self.cell.take(active)

    def commit(self, active: IntArray, path: IntArray, accepted: IntArray, extra: IntArray) -> None:
        """Commit the first `accepted` [A] tokens of each `path` [A, L], and the `extra` token [A]."""
        first = active * self._pitch + self.cell.take(active) + self._width
        for level in range(int(accepted.max(initial=0))):
            here = np.flatnonzero(accepted > level)
            self._tokens[first[here] + level] = path[here, level]
        self._tokens[first + accepted] = extra
        self.cell[active] += accepted + 1
