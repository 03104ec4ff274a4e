"""EAGLE-2's tree with a given mean depth: the control for trees whose depth follows the acceptance."""

from dataclasses import dataclass, field
from math import floor
from typing import Annotated

from underpaint.algos.chance import Chance
from underpaint.algos.draft.eagle2 import grow_eagle2
from underpaint.algos.draft.spec import POLICIES, PolicySpec
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.registry import MOST_NODES, Bounds, Nodes, check_bounds
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(slots=True)
class ScheduledTree:
    """EAGLE-2's tree (arXiv 2406.16858) with a depth that follows a fixed schedule, whatever is accepted.

    A fractional mean depth mixes the two nearest integers as evenly as possible: cycle t of an image (from 0) gets
    floor((t + 1) mean_depth) - floor(t mean_depth) levels, at least one. The policy draws and learns nothing. Compared
    with an adaptive policy of the same mean depth and number of nodes, it shows what the adaptation is worth.

    Attributes:
        mean_depth: Mean number of levels, >= 1. The last cycles of an image have no room for deep trees, so the mean
            measured over an image is slightly lower.
        top_k: Nodes expanded per level, and children of each, >= 1; 1 gives a chain.
        total_tokens: The most draft nodes, without the root, >= 1.
    """

    mean_depth: Annotated[float, Bounds(1.0, MOST_NODES)] = 3.5
    top_k: Nodes = 1
    total_tokens: Nodes = 59
    _cycle: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        check_bounds("policy 'scheduled'", self)

    def begin(self, grid: Grid) -> None:
        """See `Policy`; restarts the schedule."""
        self._cycle = 0

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """See `Policy`; makes no random draw."""
        depth = max(1, floor((self._cycle + 1) * self.mean_depth) - floor(self._cycle * self.mean_depth))
        self._cycle += 1
        return grow_eagle2(drafter, root, budget, depth, self.top_k, self.total_tokens)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """See `Policy`; the schedule ignores verdicts."""


SPEC = POLICIES.register(
    PolicySpec(
        name="scheduled",
        device="underpaint.runtime.device.ranked_growth:scheduled_plan",
        make=ScheduledTree,
        drawn="top_k",
        source="a control of ours, on EAGLE-2's tree (arXiv 2406.16858)",
        deviations="EAGLE-2's depth is one number; here it alternates between two",
    )
)
