"""What passes over cells of a grid cost inside ZipAR's and MuLo-SD's loops: the `in_grid` part of a cost curve.

Loops take turns, one image each: row fronts of several windows, raster order among them, and drafts of the whole image
of which a share is refused and drawn again, in islands and serially. Every pass is timed by the tokens it is fed, host
row maths included; they change size from one to the next, and no drafter's come between. The slowest twentieth of every
size is left out of its mean.

    target_ms: [[T, ms], ...], up to a whole draft
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role, sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.mulo import Repair, RowDraft, draft_and_repair
from underpaint.algos.spatial.target import Feed
from underpaint.algos.spatial.zipar import zipar
from underpaint.runtime.conditions import EncodedCondition
from underpaint.runtime.costs.samples import FEWEST, typical
from underpaint.runtime.engines.target import EngineGridTarget, EngineTarget

WINDOWS: Final = (1, 2, 3, 4, 6, 8)
REPAIRS: Final = (Repair(radius=0, window=2), Repair(order="serial", window=2))
REFUSED: Final = (0.1, 0.4)


@dataclass(slots=True)
class TimedCells:
    """A `GridTarget` whose passes are timed: ms by size."""

    target: EngineGridTarget
    samples: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    vocab_size: int = field(init=False)
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.grid = self.target.vocab_size, self.target.grid

    def begin(self) -> FloatArray:
        return self.target.begin()

    def score(self, feed: Feed) -> FloatArray:
        started = perf_counter()
        distributions = self.target.score(feed)
        self.samples[feed.cells.size].append(1e3 * (perf_counter() - started))
        return distributions

    def commit(self, rows: IntArray) -> None:
        self.target.commit(rows)


@dataclass(frozen=True, slots=True)
class RefuseShare:
    """A `CellRule` that refuses a share of all cells, whatever they hold."""

    share: float
    draws: np.random.Generator

    def judge(
        self,
        cells: IntArray,
        tokens: IntArray,
        draft_distributions: FloatArray | None,
        distributions: FloatArray,
        chance: Chance,
    ) -> Iterator[bool]:
        yield from (self.draws.random(cells.size) >= self.share).tolist()

    def residual(
        self, cell: int, token: int, draft_distribution: FloatArray | None, distribution: FloatArray
    ) -> FloatArray:
        return distribution


@dataclass(frozen=True, slots=True)
class EvenRows:
    """A `RowDrafter` that draws every cell from all tokens alike, and says nothing of distributions."""

    vocab_size: int
    width: int

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        cells = range(rows.start * self.width, rows.stop * self.width)
        even = np.full(self.vocab_size, 1.0 / self.vocab_size)
        return RowDraft(np.array([chance.draw(even, At(Role.DRAFT, cell)) for cell in cells], dtype=np.int64), None)


def measure(
    target: EngineTarget, rounds: int, conditions: Sequence[EncodedCondition], report: Callable[[], None]
) -> dict[int, list[float]]:
    """Samples in ms by size, of `rounds` images of every loop, after one of each that is not kept.

    conditions: of the images, in turn. report: is told of every round.
    """
    timed = TimedCells(EngineGridTarget(target))
    grid = timed.grid
    drafter = EvenRows(timed.vocab_size, grid.width)
    for turn in range(rounds + 1):
        if turn == 1:
            timed.samples.clear()
        target.prepare(conditions[turn % len(conditions)])
        chance = sampling(0, turn)
        for window in (*(window for window in WINDOWS if window < grid.width), grid.width):
            zipar(timed, window, chance)
        for share in REFUSED:
            for repair in REPAIRS:
                rule = RefuseShare(share, np.random.default_rng(turn))
                draft_and_repair(timed, drafter, rule, repair, grid.height, chance)
        report()
    return dict(timed.samples)


def to_dict(samples: dict[int, list[float]], rounds: int) -> dict[str, Any]:
    """What was found, as JSON holds it: of sizes with enough samples."""
    held = {size: samples[size] for size in sorted(samples) if len(samples[size]) >= FEWEST}
    return {"rounds": rounds, "target_ms": [[size, round(typical(ms), 4)] for size, ms in held.items()]}
