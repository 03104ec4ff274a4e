"""Static trees that a drafter fills in one call.

Each draft is judged by the distribution that it was drawn from, so a call of several levels is as lossless as single
ones. The two may draw different drafts: the shipped drafters round the inputs of their products to 8 bits, and a last
bit of difference can become a whole step of these. Distributions then differ by about 0.01 in total variation at most,
where the median is 3e-7. With products in float32 they differ by less than 1e-5 (`tests/zoo/test_one_call_drafts.py`).
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
    """A tree: see `DraftTree`, with the distributions [F, V] of each level."""

    tokens: IntArray
    parents: IntArray
    draft_rows: IntArray
    distributions: list[FloatArray]


class _FusedLayout(NamedTuple):
    """How a shape lies in levels of F expanded nodes with at most C children each.

    places: [L, F], as `FusedTreeSpec` takes them. most: C. expanded: nodes expanded in each level below the root's.
    drawn_at,
    found_at: [N - 1], where each drafted node lies among the uniforms [L, F, C], and among the tokens of all levels, of
    which the first has one row. draft_rows: [N], as `DraftTree` has it.
    """

    places: IntArray
    most: int
    expanded: tuple[int, ...]
    drawn_at: IntArray
    found_at: IntArray
    parents: IntArray
    draft_rows: IntArray


def fill_fused(
    shape: Shape, drafter: Expander, root: int, uniforms_of: Callable[[range], list[float]] | None = None
) -> FilledTree | None:
    """`shape` filled in one call, or None where that is not the tree that its levels are.

    uniforms_of: by which nodes are drawn; None takes the likeliest tokens. None is returned where the drafter cannot,
    and where some distribution has too few tokens: then the numbers of the nodes behind it, and their noise, are
    others.
    """
    if not fuses_trees(drafter) or len(shape) == 1:
        return None
    plan = _plan(shape)
    if plan.most > drafter.vocab_size:
        return None
    uniforms = np.zeros((*plan.places.shape, plan.most))
    if uniforms_of is not None:
        uniforms.put(plan.drawn_at, uniforms_of(range(1, len(shape))))
    growth = FusedTreeSpec(plan.places, uniforms, ranked=False, drawn=uniforms_of is not None)
    first, *below = drafter.expand_tree(root, growth)
    if not np.concatenate([first.masses, *[level.masses for level in below]]).take(plan.found_at).all():
        return None
    tokens = np.empty(len(shape), dtype=np.int64)
    tokens[0] = root
    tokens[1:] = np.concatenate([first.tokens, *[level.tokens for level in below]]).take(plan.found_at)
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
    drawn_at = (level * nodes + row) * most + column
    parents, distributions = np.array(shape), np.array(draft_rows)
    for kept in (parents, distributions):
        kept.flags.writeable = False
    return _FusedLayout(
        places, most, tuple(len(each) for each in levels[1:]), drawn_at, lines * most + column, parents, distributions
    )


@lru_cache(maxsize=256)
def children(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """The children of each node."""
    below: list[list[int]] = [[] for _ in shape]
    for node, above in enumerate(shape):
        if above >= 0:
            below[above].append(node)
    return tuple(tuple(each) for each in below)
