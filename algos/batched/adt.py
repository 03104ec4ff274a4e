"""ADT-Tree over many images at once."""

from typing import TYPE_CHECKING

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.batched.dynamic_trees import grow_dynamic
from underpaint.algos.batched.spec import ImageBatch, TreeBatch

if TYPE_CHECKING:
    from underpaint.algos.draft.adt import AdtTree


class BatchedAdt:
    """ADT-Tree's tree, whose state is carried along the raster (arXiv 2512.21857, equation 2)."""

    def __init__(self, policy: "AdtTree") -> None:
        self._policy = policy
        self.most_children = policy.max_width
        widest = policy.max_depth * policy.max_width / (policy.start_depth * policy.start_width)
        self.most_nodes = 1 + int(np.ceil(policy.total_tokens * (widest if policy.nodes == "proportional" else 1.0)))
        self.deepest = policy.max_depth
        self.begin(1, 1)

    def begin(self, images: int, cells: int) -> None:
        self._depth = np.full(images, self._policy.start_depth)
        self._width = np.full(images, self._policy.start_width)

    def grow(self, batch: ImageBatch, active: IntArray) -> TreeBatch:
        own = self._policy
        depth, width = self._depth[active], self._width[active]
        total = np.full(active.size, own.total_tokens)
        if own.nodes == "proportional":
            total = np.ceil(total * depth * width / (own.start_depth * own.start_width)).astype(np.int64)
        return grow_dynamic(batch, active, depth, width, total)

    def observe(self, trees: TreeBatch, accepted: IntArray) -> None:
        # A tree with no proposal leaves the state as it was.
        own = self._policy
        share = accepted / np.maximum(trees.depth, 1) if own.acceptance == "ratio" else accepted.astype(np.float64)
        sign = np.where(share >= own.beta, 1, -1) * (trees.nodes > 1)
        depth, width = self._depth[trees.images], self._width[trees.images]
        self._depth[trees.images] = np.clip(depth + sign * own.step_depth, own.min_depth, own.max_depth)
        self._width[trees.images] = np.clip(width - sign * own.step_width, own.min_width, own.max_width)
