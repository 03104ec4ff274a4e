"""Protocols of batched forms: one rule or one policy for the draft trees of many images, as array operations.

The images of a batch read their distributions from shared tables: row r of the target's table is the distribution of
the token after one context. A batched form has the same output distribution as its reference, but uses other noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.sparse_table import Table, Tables
from underpaint.algos.tree import Drawn

if TYPE_CHECKING:  # avoids a circular import: pools read batches
    from underpaint.algos.batched.pooling import NeighbourPool


class TreeLevel(NamedTuple):
    """One level of the draft trees of the first n images: the children of the expanded nodes, one drafter pass."""

    tokens: IntArray
    """[n, F, k] candidate tokens; the likeliest or first drawn sibling first."""
    in_tree: BoolArray
    """[n, F, k]: whether the candidate is a node of the tree; if not, its later siblings are not either."""
    rows: IntArray
    """[n, F]: the table row with the distributions after the expanded node."""
    above: IntArray
    """[n, F]: the expanded node's flat index among the candidates of the previous level (0 for the root)."""


class TreeBatch(NamedTuple):
    """Draft trees of A images, sorted by falling number of levels.

    Attributes:
        images: [A], the image of each tree.
        levels: The levels of the trees; each covers the images that have this level.
        depth: [A], the depth of each tree, in levels.
        nodes: [A], the number of nodes of each tree, including the root.
        passes: Per level, [n], the number of expanded nodes.
        one_call: [A] bool, whether the policy requests the tree as a greedy chain, which some drafters can draft in
            one call.
    """

    images: IntArray
    levels: list[TreeLevel]
    depth: IntArray
    nodes: IntArray
    passes: list[IntArray]
    one_call: BoolArray


class DrawRows(Protocol):
    """A function that draws from many distributions at once."""

    def __call__(self, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """Draw one token of positive probability from each of `rows`, for each of `uniforms` in [0, 1)."""
        ...


class FirstResidual(NamedTuple):
    """The residual after one rejected draw from the drafter's distribution. It depends only on the context.

    Attributes:
        left: [R, V], the residual of each row.
        mass: [R], the row sums of `left`.
        draw: Draws from `left`.
    """

    left: FloatArray
    mass: FloatArray
    draw: DrawRows


class PooledMasses(NamedTuple):
    """The pooled mass and number of codes for every token of every row, as flat arrays.

    Attributes:
        masses: [R * V], the pooled mass.
        codes: [R * V], the number of pooled codes.
    """

    masses: FloatArray
    codes: IntArray


class BatchTables(Protocol):
    """The distributions of all contexts, R rows of V tokens each, and values derived from them."""

    @property
    def target(self) -> Table:
        """The target's distributions [R, V], one row per context."""
        ...

    @property
    def draft(self) -> Tables:
        """[D, R, V]: the drafter's distributions, by the index that `draft_depth` returns."""
        ...

    @property
    def best(self) -> IntArray:
        """[R], the target's likeliest token in each row."""
        ...

    @property
    def masses(self) -> FloatArray:
        """[R] float64, the row sums of `target`."""
        ...

    @property
    def draft_masses(self) -> FloatArray:
        """[D, R] float64, the row sums of `draft`."""
        ...

    @property
    def draw(self) -> DrawRows:
        """Draws from the rows of `target`."""
        ...

    @property
    def top_tokens(self) -> IntArray:
        """[D, R, k], the drafter's likeliest tokens in each row."""
        ...

    @property
    def top_probs(self) -> FloatArray:
        """[D, R, k], the probabilities of `top_tokens`."""
        ...

    def draft_depth(self, level: int) -> int:
        """Return the index of the drafter's table for level `level`."""
        ...

    def draw_drafts(self, depth: int, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """Draw one token from the drafter's distribution of each row in table `depth`."""
        ...

    def first_residual(self, depth: int) -> FirstResidual | None:
        """Return the residual of each row in table `depth` after one rejection; None if it was not prepared."""
        ...

    def pools(self, pool: NeighbourPool) -> PooledMasses | None:
        """Return the pooled masses under the target; None if they were not prepared."""
        ...


class RandomArrays(Protocol):
    """The methods of `numpy.random.Generator` that batched forms use."""

    def random(self, size: int | tuple[int, ...]) -> FloatArray:
        """Return uniform numbers in [0, 1)."""
        ...

    def standard_exponential(self, size: tuple[int, ...]) -> FloatArray:
        """Return exponential draws with mean 1."""
        ...


class ImageBatch(Protocol):
    """B images that are decoded in parallel."""

    @property
    def tables(self) -> BatchTables:
        """The tables that hold the distributions of all images."""
        ...

    @property
    def draws(self) -> RandomArrays:
        """The source of randomness of the batch."""
        ...

    def roots(self, active: IntArray) -> IntArray:
        """Return [A], the last committed tokens of the images `active` [A]."""
        ...

    def rows_after(self, active: IntArray, level: int | IntArray, tokens: IntArray) -> IntArray:
        """Return the table rows after `tokens` [A] or [A, F], `level` (or [A]) cells past the first undecided cell."""
        ...

    def budget_depth(self, active: IntArray) -> IntArray:
        """Return [A], the largest depth of a tree: one cell is reserved for the extra token."""
        ...


class BatchedVerdicts(NamedTuple):
    """Verdicts on A trees: the first `accepted` [A] tokens of `path` [A, L] count; `extra` [A] is the extra token."""

    path: IntArray
    accepted: IntArray
    extra: IntArray


class BatchedRule(Protocol):
    """An acceptance rule for a batch of draft trees."""

    def __call__(self, batch: ImageBatch, trees: TreeBatch) -> BatchedVerdicts:
        """Return the verdicts on the A trees in `trees`."""
        ...


class BatchedPolicy(Protocol):
    """A tree policy for a batch. The sizes are upper bounds, which can be checked before anything runs."""

    @property
    def most_children(self) -> int:
        """The largest number of children of a node."""
        ...

    @property
    def most_nodes(self) -> int:
        """The largest number of nodes of a tree, including the root."""
        ...

    @property
    def deepest(self) -> int:
        """The largest number of levels of a tree."""
        ...

    def begin(self, images: int, cells: int) -> None:
        """Start `images` images with `cells` cells each."""
        ...

    def grow(self, batch: ImageBatch, active: IntArray) -> TreeBatch:
        """Return the trees of the images `active` [A]; their order may differ from `active`."""
        ...

    def observe(self, trees: TreeBatch, accepted: IntArray) -> None:
        """Learn from the verdicts: `accepted` [A] accepted nodes of each tree."""
        ...


BatchedRuleOf: TypeAlias = Callable[[Any, Drawn], BatchedRule | None]
"""(rule, drawn) -> its batched form on trees drawn this way; None if there is none at these settings, and the decoding
loop must be used."""

BatchedPolicyOf: TypeAlias = Callable[[Any], BatchedPolicy | None]
"""policy -> its batched form; None if there is none at these settings."""


def no_batched_rule(rule: Any, drawn: Drawn) -> BatchedRule | None:
    """The `batched` field of a rule without a batched form."""
    return None


def no_batched_policy(policy: Any) -> BatchedPolicy | None:
    """The `batched` field of a policy without a batched form."""
    return None


class LevelOrder(NamedTuple):
    """Images sorted by falling number of levels.

    Attributes:
        order: [A], the indices of the images in this order; a full slice if all have equally many levels.
        sizes: The number of images that have each level.
    """

    order: IntArray | slice
    sizes: list[int]


def by_levels(levels: IntArray) -> LevelOrder:
    """Return the order of images with `levels` [A] levels each, and how many have level 0, 1, ..."""
    sizes = (levels.size - np.bincount(levels).cumsum())[:-1].tolist()
    if not sizes or sizes[-1] == levels.size:
        return LevelOrder(slice(None), sizes)  # a view is cheaper than a copy
    return LevelOrder((-levels).astype(np.int16).argsort(kind="stable"), sizes)


def assemble(images: IntArray, levels: list[TreeLevel], passes: list[IntArray], one_call: BoolArray) -> TreeBatch:
    """Return the `TreeBatch` of the trees of `images` [A] with these levels."""
    depth, nodes = np.zeros(images.size, dtype=np.int64), np.ones(images.size, dtype=np.int64)
    for number, level in enumerate(levels):
        count = level.in_tree.reshape(level.in_tree.shape[0], -1).sum(axis=1)
        nodes[: count.size] += count
        depth[: count.size][count > 0] = number + 1
    return TreeBatch(images, levels, depth, nodes, passes, one_call)
