"""Draft trees of many images, put together level by level."""

from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.batched.spec import TreeBatch, TreeLevel


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
