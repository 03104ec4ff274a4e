"""What a batched form is: one rule or one policy over the draft trees of many images, as array operations.

The images of a batch read their distributions from shared tables: row r of the target's table is the distribution of
the token after one context. A batched form has the distribution of its reference, not its noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.sparse_table import Table, Tables
from underpaint.algos.tree import Drawn

if TYPE_CHECKING:  # pools read batches
    from underpaint.algos.batched.pooling import NeighbourPool


class TreeLevel(NamedTuple):
    """One level of the draft trees of the first n images: the children of the nodes expanded, one drafter pass."""

    tokens: IntArray
    """[n, F, k], the likeliest or first drawn sibling first."""
    in_tree: BoolArray
    """[n, F, k]: whether the candidate is a node of the tree; no sibling is where one before it is not."""
    rows: IntArray
    """[n, F]: the row of the tables that holds the distributions after the expanded node."""
    above: IntArray
    """[n, F]: the expanded node's flat place among the candidates of the level before (0 for the root)."""


class TreeBatch(NamedTuple):
    """Draft trees of A images, those of more levels first.

    images: [A], whose trees they are. levels: each of as many images as have it. depth: [A], in levels; nodes: [A],
    root included. passes: per level, [n] nodes expanded. one_call: [A] bool, whether the policy asks for the tree as a
    chain of likeliest tokens, which some drafters draft in one call.
    """

    images: IntArray
    levels: list[TreeLevel]
    depth: IntArray
    nodes: IntArray
    passes: list[IntArray]
    one_call: BoolArray


class DrawRows(Protocol):
    """Draws from many distributions at once."""

    def __call__(self, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """One token from the distribution of each of `rows`, for each of `uniforms` in [0, 1); its probability is
        never 0."""
        ...


class FirstResidual(NamedTuple):
    """What one rejected draw from the drafter's distribution leaves, which depends on the context alone.

    left: [R, V], of sum `mass` [R]. draw: draws from it.
    """

    left: FloatArray
    mass: FloatArray
    draw: DrawRows


class PooledMasses(NamedTuple):
    """What a pool of neighbours holds around every token of every row, flat: masses, codes: [R * V]."""

    masses: FloatArray
    codes: IntArray


class BatchTables(Protocol):
    """The distributions of all contexts, R rows of V tokens each, and what is looked up in them."""

    @property
    def target(self) -> Table:
        """[R, V]."""
        ...

    @property
    def draft(self) -> Tables:
        """[D, R, V]: the drafter's, by the depth that `draft_depth` names."""
        ...

    @property
    def best(self) -> IntArray:
        """[R], the target's likeliest tokens."""
        ...

    @property
    def masses(self) -> FloatArray:
        """[R] float64, the sums of `target`'s rows."""
        ...

    @property
    def draft_masses(self) -> FloatArray:
        """[D, R] float64, the sums of `draft`'s rows."""
        ...

    @property
    def draw(self) -> DrawRows:
        """Draws from `target`."""
        ...

    @property
    def top_tokens(self) -> IntArray:
        """[D, R, k], the drafter's likeliest tokens."""
        ...

    @property
    def top_probs(self) -> FloatArray:
        """[D, R, k], their probabilities."""
        ...

    def draft_depth(self, level: int) -> int:
        """Which of the drafter's tables serves level `level`."""
        ...

    def draw_drafts(self, depth: int, rows: IntArray, uniforms: FloatArray) -> IntArray:
        """One token from the drafter's distribution of each row in table `depth`."""
        ...

    def first_residual(self, depth: int) -> FirstResidual | None:
        """What a rejection leaves in each row of table `depth`; None where it is not prepared."""
        ...

    def pools(self, pool: NeighbourPool) -> PooledMasses | None:
        """What a pool holds under the target; None where it is not prepared."""
        ...


class RandomArrays(Protocol):
    """The part of `numpy.random.Generator` that batched forms draw from."""

    def random(self, size: int | tuple[int, ...]) -> FloatArray:
        """Uniforms in [0, 1)."""
        ...

    def standard_exponential(self, size: tuple[int, ...]) -> FloatArray:
        """Exponential draws of mean 1."""
        ...


class ImageBatch(Protocol):
    """B images being decoded side by side."""

    @property
    def tables(self) -> BatchTables:
        """Where their distributions are."""
        ...

    @property
    def draws(self) -> RandomArrays:
        """The batch's randomness."""
        ...

    def roots(self, active: IntArray) -> IntArray:
        """[A] the last committed tokens of the images `active` [A]."""
        ...

    def rows_after(self, active: IntArray, level: int | IntArray, tokens: IntArray) -> IntArray:
        """The rows of the cells `level`, or [A] levels, past the first undecided one, after `tokens` [A] or [A, F]."""
        ...

    def budget_depth(self, active: IntArray) -> IntArray:
        """[A] how deep a tree may be: one cell is left for the extra token."""
        ...


class BatchedVerdicts(NamedTuple):
    """Verdicts on A trees: `path` [A, L] tokens, of which the first `accepted` [A] count, and the `extra` [A] token."""

    path: IntArray
    accepted: IntArray
    extra: IntArray


class BatchedRule(Protocol):
    """A rule for a batch."""

    def __call__(self, batch: ImageBatch, trees: TreeBatch) -> BatchedVerdicts:
        """Decide `trees` [A]."""
        ...


class BatchedPolicy(Protocol):
    """A tree policy for a batch. Sizes are upper bounds, to be checked before anything runs."""

    @property
    def most_children(self) -> int:
        """Children of a node at most."""
        ...

    @property
    def most_nodes(self) -> int:
        """Nodes of a tree at most, root included."""
        ...

    @property
    def deepest(self) -> int:
        """Levels at most."""
        ...

    def begin(self, images: int, cells: int) -> None:
        """Start `images` images of `cells` cells each."""
        ...

    def grow(self, batch: ImageBatch, active: IntArray) -> TreeBatch:
        """The trees of the images `active` [A], in an order of their own."""
        ...

    def observe(self, trees: TreeBatch, accepted: IntArray) -> None:
        """Learn from the verdicts: `accepted` [A] nodes of each tree."""
        ...


BatchedRuleOf: TypeAlias = Callable[[Any, Drawn], BatchedRule | None]
"""(rule, drawn) -> its batched form on trees whose siblings are drawn so; None where there is none at these settings,
and the decoding loop has to do."""

BatchedPolicyOf: TypeAlias = Callable[[Any], BatchedPolicy | None]
"""policy -> its batched form; None where there is none at these settings."""


def no_batched_rule(rule: Any, drawn: Drawn) -> BatchedRule | None:
    """The `batched` of a rule that has no batched form."""
    return None


def no_batched_policy(policy: Any) -> BatchedPolicy | None:
    """The `batched` of a policy that has no batched form."""
    return None


class LevelOrder(NamedTuple):
    """Images in the order of their levels, the most first. order: [A]; sizes: how many have each level."""

    order: IntArray | slice
    sizes: list[int]


def by_levels(levels: IntArray) -> LevelOrder:
    """The order of images with `levels` [A] each, and how many have level 0, 1, ..."""
    sizes = (levels.size - np.bincount(levels).cumsum())[:-1].tolist()
    if not sizes or sizes[-1] == levels.size:
        return LevelOrder(slice(None), sizes)  # a view is cheaper than a copy
    return LevelOrder((-levels).astype(np.int16).argsort(kind="stable"), sizes)


def assemble(images: IntArray, levels: list[TreeLevel], passes: list[IntArray], one_call: BoolArray) -> TreeBatch:
    """The trees of `images` [A] that these levels make; see `TreeBatch`."""
    depth, nodes = np.zeros(images.size, dtype=np.int64), np.ones(images.size, dtype=np.int64)
    for number, level in enumerate(levels):
        count = level.in_tree.reshape(level.in_tree.shape[0], -1).sum(axis=1)
        nodes[: count.size] += count
        depth[: count.size][count > 0] = number + 1
    return TreeBatch(images, levels, depth, nodes, passes, one_call)
