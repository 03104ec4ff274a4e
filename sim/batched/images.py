"""Many images in lockstep: their tokens, their contexts, and draws from their distributions, all as arrays."""

from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.tree import NO_TOKEN
from underpaint.sim.batched.draws import MOST_LOOKED_UP, Draws
from underpaint.sim.batched.residuals import Owed
from underpaint.sim.synthetic.table_model import TableModel


class Block(NamedTuple):
    """One level of the draft trees of the first n images: the children of the nodes expanded, one drafter pass."""

    tokens: IntArray
    """[n, F, k], the likeliest or first drawn sibling first."""
    kept: BoolArray
    """[n, F, k]: whether the candidate is a node of the tree; no sibling is where one before it is not."""
    rows: IntArray
    """[n, F]: the row of the tables that holds the distributions after the expanded node."""
    above: IntArray
    """[n, F]: the expanded node's flat place among the candidates of the level before (0 for the root)."""


class FusedTree(NamedTuple):
    """Draft trees, those of more levels first.

    images: [A], whose trees they are. blocks: per level, of as many images as have it. depth: [A] levels; nodes: [A],
        root included. passes: per level, [n] nodes expanded.
    one_call: [A], whether the policy asks for the tree as a chain of likeliest tokens, which some drafters draft in one
        call.
    """

    images: IntArray
    blocks: list[Block]
    depth: IntArray
    nodes: IntArray
    passes: list[IntArray]
    one_call: BoolArray


def closed(images: IntArray, blocks: list[Block], passes: list[IntArray], one_call: BoolArray) -> FusedTree:
    """The trees of `images` [A] that these blocks make."""
    depth, nodes = np.zeros(images.size, dtype=np.int64), np.ones(images.size, dtype=np.int64)
    for level, block in enumerate(blocks):
        count = block.kept.reshape(block.kept.shape[0], -1).sum(axis=1)
        nodes[: count.size] += count
        depth[: count.size][count > 0] = level + 1
    return FusedTree(images, blocks, depth, nodes, passes, one_call)


class Tiers(NamedTuple):
    """Images in the order of their levels, the most first. order: [A]; sizes: how many have each level."""

    order: IntArray | slice
    sizes: list[int]


def tiers(levels: IntArray) -> Tiers:
    """The order of images with `levels` [A] each, and how many have level 0, 1, ..."""
    sizes = (levels.size - np.bincount(levels).cumsum())[:-1].tolist()
    if not sizes or sizes[-1] == levels.size:
        return Tiers(slice(None), sizes)  # a view is cheaper than a copy
    return Tiers((-levels).astype(np.int16).argsort(kind="stable"), sizes)


class Rest(NamedTuple):
    """What is owed after one sibling from the drafter's distribution was rejected, which hangs on the context alone.

    left: [R, V], of sum `owing` [R]. draw: draws from it.
    """

    left: FloatArray
    owing: FloatArray
    draw: Draws


class Tables:
    """A model's tables made ready for lookups: cumulated distributions, argmaxima, the likeliest draft tokens."""

    def __init__(self, model: TableModel, most_children: int) -> None:
        self.model = model
        self.draw = Draws(model.target)
        self._draft_draws: dict[int, Draws] = {}
        self._rests: dict[int, Rest] = {}
        self.best: IntArray = model.target.argmax(axis=1)
        self.masses: FloatArray = model.target.sum(axis=1, dtype=np.float64)
        self.draft_masses: FloatArray = model.draft.sum(axis=2, dtype=np.float64)
        found = [top(distributions, min(most_children, model.vocab_size)) for distributions in model.draft]
        self.top_tokens: IntArray = np.stack([one.tokens for one in found])
        self.top_probs: FloatArray = np.stack([one.probs for one in found])

    def draft_depth(self, level: int) -> int:
        """Which of the drafter's tables serves level `level`."""
        return int(min(level, self.model.draft.shape[0] - 1))

    def draw_drafts(self, depth: int, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """One token from the drafter's distribution of each row in table `depth`, as `draw` does from the target's."""
        if depth not in self._draft_draws:
            self._draft_draws[depth] = Draws(self.model.draft[depth])
        return self._draft_draws[depth](rows, uniforms)

    def rest(self, depth: int) -> Rest | None:
        """What a rejection leaves in each row of table `depth`; None where the tables are too large to do them all."""
        if self.model.target.size > MOST_LOOKED_UP:
            return None
        if depth not in self._rests:
            target, draft = (
                distributions.astype(np.float64) for distributions in (self.model.target, self.model.draft[depth])
            )
            owed = Owed(target, self.masses, draft, self.draft_masses[depth])
            owed = owed.less(owed.offered())
            self._rests[depth] = Rest(owed.left, owed.owing, Draws(owed.left))
        return self._rests[depth]


class Batch:
    """The images being decoded. `cell` [B] is the first undecided one; the root of the next tree stands before it."""

    def __init__(self, tables: Tables, first_image: int, count: int, draws: np.random.Generator) -> None:
        model = tables.model
        self.tables, self.model, self.draws = tables, model, draws
        self.images: IntArray = np.arange(first_image, first_image + count) % model.images
        self.cell: IntArray = np.zeros(count, dtype=np.int64)
        self._width, self._cells = model.grid.width, model.grid.cells
        # A row of no tokens stands above each image: what is above cell c is at place c, cell c itself a row further.
        self._pitch = self._width + self._cells
        self._held: IntArray = np.full(count * self._pitch, NO_TOKEN)
        self.canvas: IntArray = self._held.reshape(count, self._pitch)[:, self._width :]
        # What each place's row is made of: its cell's start, and for the token before it an entry of `_left`, whose
        # second half stands for no token whatever it is: nothing is before the first cell of a row.
        self._starts: IntArray = np.pad(model.starts[self.images], ((0, 0), (0, self._width))).reshape(-1)
        first = np.arange(self._pitch) % self._width == 0
        self._half: IntArray = np.tile(first * np.int64(model.vocab_size), count)
        left = model.classes[:-1] * model.stride
        self._left: IntArray = np.append(left, np.full_like(left, model.classes[NO_TOKEN] * model.stride))

    def running(self) -> IntArray:
        """The images that are not finished."""
        return np.flatnonzero(self.cell < self._cells)

    def first_rows(self) -> IntArray:
        """[B] the rows of cell 0."""
        none = np.full(self.images.size, NO_TOKEN)
        return self.model.rows(self.images, np.zeros_like(none), none, none)

    def roots(self, active: IntArray) -> IntArray:
        """[A] the last committed tokens."""
        return self._held.take(active * self._pitch + self.cell.take(active) + (self._width - 1))

    def rows_after(self, active: IntArray, level: int | IntArray, tokens: IntArray) -> IntArray:
        """The rows of the cells `level`, or [A] levels, past the first undecided one, after `tokens` [A] or [A, F].

        As `TableModel.rows` finds them; the cells above must be decided.
        """
        at = active * self._pitch + self.cell.take(active) + level
        base = self._starts.take(at) + self.model.classes.take(self._held.take(at))
        half = self._half.take(at)
        if tokens.ndim == 2:
            base, half = base[:, None], half[:, None]
        rows: IntArray = self._left.take(tokens + half)
        rows += base
        return rows

    def budget_depth(self, active: IntArray) -> IntArray:
        """[A] how deep a tree may be: one cell is left for the extra token."""
        return self._cells - 1 - self.cell.take(active)

    def commit(self, active: IntArray, path: IntArray, kept: IntArray, extra: IntArray) -> None:
        """Write `kept` [A] tokens of each `path` [A, L] and the `extra` [A] one."""
        first = active * self._pitch + self.cell.take(active) + self._width
        for level in range(int(kept.max(initial=0))):
            here = np.flatnonzero(kept > level)
            self._held[first[here] + level] = path[here, level]
        self._held[first + kept] = extra
        self.cell[active] += kept + 1
