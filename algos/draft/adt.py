"""ADT-Tree: EAGLE-2's tree with a depth and width that follow the acceptance of neighbouring trees."""

from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.batched.dynamic_trees import grow_dynamic
from underpaint.algos.batched.spec import BatchedPolicy, ImageBatch, TreeBatch
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.draft.eagle2 import grow_eagle2
from underpaint.algos.draft.settings import at_least
from underpaint.algos.draft.spec import POLICIES, PolicySpec
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.registry import MOST_NODES, Bounds, NodesOrNone, Tune, check_bounds
from underpaint.algos.registry import Nodes as NodeCount
from underpaint.algos.tree import DraftTree, Verdict

Acceptance: TypeAlias = Literal["ratio", "length"]
Init: TypeAlias = Literal["horizontal", "vertical", "random"]
RowStart: TypeAlias = Literal["carry", "upper", "default"]
AcceptanceOf: TypeAlias = Literal["neighbour", "last_tree"]
Nodes: TypeAlias = Literal["fixed", "proportional"]


class TreeState(NamedTuple):
    """The size that a tree was grown with, and the acceptance it had."""

    depth: int
    width: int
    accepted: float | None
    """alpha, in the unit of the `acceptance` setting; None if no tree has been verified yet."""


@dataclass(slots=True)
class AdtTree:
    """Adjacency-adaptive dynamic draft trees (arXiv 2512.21857): EAGLE-2's tree with `depth` levels and top-`width`.

    Equation 2: From (depth, width) of the neighbour's tree and its acceptance alpha, alpha >= beta makes the next tree
    `step_depth` deeper and `step_width` narrower; alpha < beta makes it shallower and wider. Both are clamped. Each
    image starts at (`start_depth`, `start_width`) without adapting, unless `init` is "random". The authors released no
    code and published no beta, steps or bounds: all open choices are settings.

    Attributes:
        acceptance: The unit of alpha and beta: accepted / depth of the verified tree ("ratio"), or accepted nodes
            ("length").
        init: The state to adapt: the left neighbour's ("horizontal"), the upper neighbour's ("vertical"; the left one's
            if no tree decided the upper cell), or a random pair within the bounds, at `At(Role.DRAFT, 0)` ("random").
        row_start: The replacement for the left neighbour at the first cell of a row: the last tree ("carry"), the upper
            cell's state ("upper"; the start state if no tree decided it), or the start state ("default"). At all other
            cells the left cell was decided by the last tree, so its state is the last tree's state.
        acceptance_of: Whether alpha is that of the neighbour whose state is used, or always that of the last tree.
        nodes: Always `total_tokens` drafted nodes ("fixed"), or a number proportional to depth * width, equal to
            `total_tokens` at the start state ("proportional").
        beta: The acceptance from which the next tree is deeper and narrower, in the unit of `acceptance`, >= 0.
        step_depth: The number of levels by which equation 2 changes the depth, >= 0.
        step_width: The number by which equation 2 changes the width, >= 0.
        min_depth: The least depth in levels, >= 1.
        max_depth: The greatest depth in levels, at least `start_depth`.
        start_depth: The depth of the start state in levels, at least `min_depth`.
        min_width: The least width, >= 1.
        max_width: The greatest width, at least `start_width`.
        start_width: The width of the start state, at least `min_width`.
        total_tokens: Draft nodes to verify, without the root, >= 1; see `nodes`.
    """

    acceptance: Acceptance = "ratio"
    init: Annotated[Init, Tune(("horizontal", "vertical"))] = "horizontal"
    row_start: RowStart = "carry"
    acceptance_of: AcceptanceOf = "neighbour"
    nodes: Nodes = "fixed"
    beta: Annotated[float, Bounds(0.0, MOST_NODES)] = 0.5
    step_depth: NodesOrNone = 1
    step_width: NodesOrNone = 1
    min_depth: NodeCount = 1
    max_depth: Annotated[NodeCount, Tune((4, 6, 8, 10))] = 8
    start_depth: Annotated[NodeCount, Tune((2, 4, 6))] = 4
    min_width: NodeCount = 1
    max_width: Annotated[NodeCount, Tune((1, 2, 4, 10))] = 10
    start_width: Annotated[NodeCount, Tune((1, 2, 6))] = 6
    total_tokens: Annotated[NodeCount, Tune((4, 6, 8, 16, 59))] = 59
    _states: list[TreeState | None] = field(init=False, repr=False, default_factory=list)
    _row: int = field(init=False, repr=False, default=1)
    _cell: int = field(init=False, repr=False, default=1)
    _last: TreeState = field(init=False, repr=False, default=TreeState(1, 1, None))
    _shape: tuple[int, int] = field(init=False, repr=False, default=(1, 1))

    def __post_init__(self) -> None:
        check_bounds("policy 'adt'", self)
        at_least("adt", self.min_depth, start_depth=self.start_depth)
        at_least("adt", self.min_width, start_width=self.start_width)
        at_least("adt", self.start_depth, max_depth=self.max_depth)
        at_least("adt", self.start_width, max_width=self.max_width)

    def begin(self, grid: Grid) -> None:
        """Start an image. The first cell has no tree, because it follows the condition directly."""
        self._states = [None] * grid.cells
        self._row = grid.width
        self._cell = 1
        self._last = self._start()

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the next tree; draws only if `init` is "random"."""
        depth, width = self._adapted(self._neighbour(chance))
        self._shape = (depth, width)
        total = self.total_tokens
        if self.nodes == "proportional":
            total = ceil(total * depth * width / (self.start_depth * self.start_width))
        return grow_eagle2(drafter, root, budget, depth, width, total)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """Learn from a verdict; a tree without drafts does not change the state."""
        if tree.size > 1:
            accepted = len(verdict.path)
            share = accepted / tree.depth if self.acceptance == "ratio" else float(accepted)
            self._last = TreeState(*self._shape, share)
        self._cell = cell + len(verdict.path) + 1
        for decided in range(cell, min(self._cell, len(self._states))):
            self._states[decided] = self._last

    def _start(self) -> TreeState:
        return TreeState(self.start_depth, self.start_width, None)

    def _upper(self) -> TreeState | None:
        above = self._cell - self._row
        return self._states[above] if above >= 0 else None

    def _neighbour(self, chance: Chance) -> TreeState:
        """Return the state from which the tree for the next cell is adapted."""
        if self.init == "random":
            depths, widths = self.max_depth - self.min_depth + 1, self.max_width - self.min_width + 1
            depth, width = divmod(chance.draw(np.ones(depths * widths), At(Role.DRAFT, 0)), widths)
            return TreeState(self.min_depth + depth, self.min_width + width, self._last.accepted)
        state = self._last
        if self.init == "vertical":
            state = self._upper() or state
        elif self._cell % self._row == 0 and self.row_start != "carry":
            state = (self._upper() if self.row_start == "upper" else None) or self._start()
        return state if self.acceptance_of == "neighbour" else state._replace(accepted=self._last.accepted)

    def _adapted(self, state: TreeState) -> tuple[int, int]:
        """Apply equation 2 of the paper."""
        if state.accepted is None:
            return state.depth, state.width
        sign = 1 if state.accepted >= self.beta else -1
        depth = state.depth + sign * self.step_depth
        width = state.width - sign * self.step_width
        return (
            min(max(depth, self.min_depth), self.max_depth),
            min(max(width, self.min_width), self.max_width),
        )


class BatchedAdt:
    """ADT-Tree's tree with a state that is carried along the raster (arXiv 2512.21857, equation 2)."""

    def __init__(self, policy: AdtTree) -> None:
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
        policy = self._policy
        depth, width = self._depth[active], self._width[active]
        total = np.full(active.size, policy.total_tokens)
        if policy.nodes == "proportional":
            total = np.ceil(total * depth * width / (policy.start_depth * policy.start_width)).astype(np.int64)
        return grow_dynamic(batch, active, depth, width, total)

    def observe(self, trees: TreeBatch, accepted: IntArray) -> None:
        # A tree without drafts does not change the state.
        policy = self._policy
        share = accepted / np.maximum(trees.depth, 1) if policy.acceptance == "ratio" else accepted.astype(np.float64)
        sign = np.where(share >= policy.beta, 1, -1) * (trees.nodes > 1)
        depth, width = self._depth[trees.images], self._width[trees.images]
        self._depth[trees.images] = np.clip(depth + sign * policy.step_depth, policy.min_depth, policy.max_depth)
        self._width[trees.images] = np.clip(width - sign * policy.step_width, policy.min_width, policy.max_width)


def _batched(policy: AdtTree) -> BatchedPolicy | None:
    return BatchedAdt(policy) if (policy.init, policy.row_start) == ("horizontal", "carry") else None


SPEC = POLICIES.register(
    PolicySpec(
        name="adt",
        device="underpaint.runtime.device.ranked_growth:adt_plan",
        make=AdtTree,
        drawn="top_k",
        source="arXiv 2512.21857, equations 2 and 3 (no public code)",
        deviations="beta, steps and bounds are unpublished: the defaults are ours; every open choice is a setting",
        examples=(
            {"start_depth": 2, "max_depth": 3, "start_width": 2, "max_width": 3, "total_tokens": 6},
            {"start_depth": 1, "max_depth": 3, "max_width": 2, "start_width": 2, "nodes": "proportional", "beta": 0.3},
            {"start_depth": 2, "max_depth": 3, "max_width": 3, "start_width": 2, "acceptance": "length", "beta": 1.5},
            {"start_depth": 2, "max_depth": 3, "max_width": 3, "start_width": 2, "init": "vertical"},
        ),
        batched=_batched,
    )
)
