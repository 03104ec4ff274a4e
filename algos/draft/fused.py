"""Static trees that a drafter fills in one call.

Each draft is judged by the distribution it was drawn from, so one call for several levels is as lossless as single
calls. The two may draw different drafts: the shipped drafters round the inputs of their products to 8 bits, so a
difference in the last bit can become a full quantisation step. Distributions then differ by at most about 0.01 in total
variation; the median is 3e-7. With float32 products they differ by less than 1e-5
(`tests/zoo/test_one_call_drafts.py`).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft.tree_builder import fuses_trees
from underpaint.algos.protocols import Expander, FusedTreeSpec
from underpaint.algos.tree import Shape


class FilledTree(NamedTuple):
    """The arrays of a `DraftTree`, with the distributions [F, V] of each level."""

    tokens: IntArray
    parents: IntArray
    draft_rows: IntArray
    distributions: list[FloatArray]


class _FusedLayout(NamedTuple):
    """The layout of a shape in levels of F expanded nodes with at most C children each.

    places: [L, F], as in `FusedTreeSpec`. most: C. expanded: Nodes expanded in each level below the root's.
    uniform_index, token_index: [N - 1], the flat index of each draft node in the uniforms [L, F, C], and in the tokens
    of all levels (the first level has one row). draft_rows: [N], as in `DraftTree`.
    """

    places: IntArray
    most: int
    expanded: tuple[int, ...]
    uniform_index: IntArray
    token_index: IntArray
    parents: IntArray
    draft_rows: IntArray


def fill_fused(
    shape: Shape, drafter: Expander, root: int, uniforms_of: Callable[[range], list[float]] | None = None
) -> FilledTree | None:
    """Fill `shape` in one call; return None if that would not give the same tree as filling it level by level.

    Args:
        shape: The parents of the tree's nodes.
        drafter: The drafter that fills the tree.
        root: The token of the root.
        uniforms_of: Gives the uniforms by which nodes are drawn; None takes the likeliest tokens.

    Returns:
        The filled tree. None if the drafter cannot do it, if `shape` is only the root, or if some distribution has too
        few tokens: then the later nodes have other numbers, and so other noise.
    """
    if not fuses_trees(drafter) or len(shape) == 1:
        return None
    plan = _plan(shape)
    if plan.most > drafter.vocab_size:
        return None
    uniforms = np.zeros((*plan.places.shape, plan.most))
    if uniforms_of is not None:
        uniforms.put(plan.uniform_index, uniforms_of(range(1, len(shape))))
    growth = FusedTreeSpec(plan.places, uniforms, ranked=False, drawn=uniforms_of is not None)
    first, *below = drafter.expand_tree(root, growth)
    if not np.concatenate([first.masses, *[level.masses for level in below]]).take(plan.token_index).all():
        return None
    tokens = np.empty(len(shape), dtype=np.int64)
    tokens[0] = root
    tokens[1:] = np.concatenate([first.tokens, *[level.tokens for level in below]]).take(plan.token_index)
    distributions = [
        first.distributions,
        *[level.distributions[:count] for level, count in zip(below, plan.expanded, strict=True)],
    ]
    return FilledTree(tokens, plan.parents, plan.draft_rows, distributions)


@lru_cache(maxsize=256)
def _plan(shape: Shape) -> _FusedLayout:
    below = children(shape)
    levels: list[list[int]] = []
    here = [0]
    while here:
        levels.append(here)
        here = [child for node in here for child in below[node] if below[child]]
    most = max(len(each) for each in below)
    places = np.zeros((len(levels), max(len(level) for level in levels)), dtype=np.int64)
    where, draft_rows, rows = np.zeros((3, len(shape)), dtype=np.int64), [-1] * len(shape), 0
    for number, level in enumerate(levels):
        for row, node in enumerate(level):
            draft_rows[node], rows = rows, rows + 1
            for column, child in enumerate(below[node]):
                where[:, child] = number, row, column
        if number + 1 < len(levels):
            following = np.array(levels[number + 1])
            places[number, : following.size] = where[1, following] * most + where[2, following]
    nodes = places.shape[1]
    level, row, column = where[:, 1:]
    lines = np.where(level == 0, 0, (level - 1) * nodes + row + 1)
    uniform_index = (level * nodes + row) * most + column
    parents, distributions = np.array(shape), np.array(draft_rows)
    for array in (parents, distributions):
        array.flags.writeable = False
    return _FusedLayout(
        places,
        most,
        tuple(len(each) for each in levels[1:]),
        uniform_index,
        lines * most + column,
        parents,
        distributions,
    )


@lru_cache(maxsize=256)
def children(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """Return the children of each node of `shape`."""
    below: list[list[int]] = [[] for _ in shape]
    for node, above in enumerate(shape):
        if above >= 0:
            below[above].append(node)
    return tuple(tuple(each) for each in below)
