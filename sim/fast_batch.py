"""Many images in lockstep: their tokens, their contexts, and draws from their laws, all as arrays."""

from typing import NamedTuple

import numpy as np

from algos.arrays import BoolArray, FloatArray, IntArray
from algos.draft.top import top
from algos.tree import NO_TOKEN
from sim.table_world import TableWorld

_BELOW_ONE = 1.0 - 1e-9


class Block(NamedTuple):
    """One level of A draft trees: the children of the nodes that were expanded, one drafter pass."""

    tokens: IntArray
    """[A, F, k]."""
    kept: BoolArray
    """[A, F, k]: whether the candidate is a node of the tree."""
    rows: IntArray
    """[A, F]: the row of the tables that holds the laws after the expanded node."""
    above: IntArray
    """[A, F]: the expanded node's flat place among the candidates of the level before (0 for the root)."""
    child: IntArray
    """[A, F, k]: which expanded node of the next level a candidate is; -1 for none. Filled as the next level is."""


class Grown(NamedTuple):
    """A draft trees. depth: [A] levels; nodes: [A], root included; passes: per level, [A] nodes expanded.

    one_call: [A], whether the policy asks for the tree as a chain of likeliest tokens, which some drafters draft in one
        call.
    """

    blocks: list[Block]
    depth: IntArray
    nodes: IntArray
    passes: list[IntArray]
    one_call: BoolArray


def closed(blocks: list[Block], passes: list[IntArray], one_call: BoolArray) -> Grown:
    """The trees of these blocks, one for each of `one_call` [A]."""
    images = one_call.size
    depth, nodes = np.zeros(images, dtype=np.int64), np.ones(images, dtype=np.int64)
    for level, block in enumerate(blocks):
        count = block.kept.reshape(images, -1).sum(axis=1)
        nodes += count
        depth[count > 0] = level + 1
    return Grown(blocks, depth, nodes, passes, one_call)


class Tables:
    """A world's tables made ready for lookups: cumulated laws, argmaxima, the likeliest draft tokens."""

    def __init__(self, world: TableWorld, most_children: int) -> None:
        self.world = world
        self._target_steps = _steps(world.target)
        self._draft_steps: dict[int, FloatArray] = {}
        self.best: IntArray = world.target.argmax(axis=1)
        found = [top(laws, min(most_children, world.vocab_size)) for laws in world.draft]
        self.top_tokens: IntArray = np.stack([one.tokens for one in found])
        self.top_probs: FloatArray = np.stack([one.probs for one in found])

    def draft_depth(self, level: int) -> int:
        """Which of the drafter's tables serves level `level`."""
        return int(min(level, self.world.draft.shape[0] - 1))

    def draw(self, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """One token from the target's law of each row; its probability is never 0."""
        return self._drawn(self._target_steps, rows, uniforms)

    def draw_drafts(self, depth: int, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """One token from the drafter's law of each row in table `depth`; its probability is never 0."""
        if depth not in self._draft_steps:
            self._draft_steps[depth] = _steps(self.world.draft[depth])
        return self._drawn(self._draft_steps[depth], rows, uniforms)

    def _drawn(self, steps: FloatArray, rows: IntArray, uniforms: FloatArray) -> IntArray:
        found = steps.searchsorted(rows + np.minimum(uniforms, _BELOW_ONE), side="right")
        tokens: IntArray = found - rows * self.world.vocab_size
        return tokens


def _steps(laws: FloatArray) -> FloatArray:
    """[R * V] cumulated laws, row r from r to r + 1: one search serves draws from any rows."""
    totals = laws.sum(axis=1, dtype=np.float64, keepdims=True)
    steps: FloatArray = np.arange(laws.shape[0])[:, None] + laws.cumsum(axis=1, dtype=np.float64) / totals
    return steps.reshape(-1)


class Batch:
    """The images being decoded. `cell` [B] is the first undecided one; the root of the next tree stands before it."""

    def __init__(self, tables: Tables, first_image: int, count: int, draws: np.random.Generator) -> None:
        self.tables, self.world, self.draws = tables, tables.world, draws
        self.images: IntArray = np.arange(first_image, first_image + count) % self.world.images
        self.canvas: IntArray = np.full((count, self.world.grid.cells), NO_TOKEN)
        self.cell: IntArray = np.zeros(count, dtype=np.int64)

    def running(self) -> IntArray:
        """The images that are not finished."""
        return np.flatnonzero(self.cell < self.world.grid.cells)

    def first_rows(self) -> IntArray:
        """[B] the rows of cell 0."""
        none = np.full(self.images.size, NO_TOKEN)
        return self.world.rows(self.images, np.zeros_like(none), none, none)

    def roots(self, active: IntArray) -> IntArray:
        """[A] the last committed tokens."""
        return self.canvas[active, self.cell[active] - 1]

    def rows_after(self, active: IntArray, level: int, tokens: IntArray) -> IntArray:
        """[A, ...] the rows of the cells `level` past the first undecided one, after `tokens` [A, ...].

        Cells past the image's end, which no budget allows, read the last one's context.
        """
        width = self.world.grid.width
        cells = np.minimum(self.cell[active] + level, self.world.grid.cells - 1)
        upper = np.where(cells >= width, self.canvas[active, np.maximum(cells - width, 0)], NO_TOKEN)
        shape = (-1, *(1,) * (tokens.ndim - 1))
        return self.world.rows(self.images[active].reshape(shape), cells.reshape(shape), tokens, upper.reshape(shape))

    def budget_depth(self, active: IntArray) -> IntArray:
        """[A] how deep a tree may be: one cell is left for the extra token."""
        return self.world.grid.cells - self.cell[active] - 1

    def commit(self, active: IntArray, path: IntArray, kept: IntArray, extra: IntArray) -> None:
        """Write `kept` [A] tokens of each `path` [A, L] and the `extra` [A] one."""
        for level in range(int(kept.max(initial=0))):
            here = np.flatnonzero(kept > level)
            self.canvas[active[here], self.cell[active[here]] + level] = path[here, level]
        self.canvas[active, self.cell[active] + kept] = extra
        self.cell[active] += kept + 1
