"""Rows drafted at a lower resolution: a low target draws them, an up-sampler turns them into high tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import Chance, Role
from underpaint.algos.spatial.mulo import RowDraft
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.spatial.row_front import check_window
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.spatial.zipar import zipar
from underpaint.runtime.engines.engine import PassTimer
from underpaint.runtime.resampling.resampler import Resampler


@dataclass(slots=True)
class TimedResampler:
    """Implements `Resampler` by another one, whose calls are timed."""

    inner: Resampler
    timer: PassTimer = field(default_factory=PassTimer)

    @property
    def map(self) -> ResolutionMap:
        """The two grids."""
        return self.inner.map

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        """What the wrapped resampler returns; its time is counted."""
        with self._timed():
            return self.inner.enlarge(low, rows)

    def reduce(self, high: IntArray, rows: range) -> IntArray:
        """What the wrapped resampler returns; its time is counted."""
        with self._timed():
            return self.inner.reduce(high, rows)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = perf_counter()
        yield
        self.timer.seconds += perf_counter() - started
        self.timer.passes += 1


@dataclass(slots=True)
class LowRows:
    """Implements `algos.spatial.mulo.RowDrafter`: draws low rows, given the high image so far, and enlarges them.

    The high rows are read at the low resolution once they are decided, and given to the low target as what it drew
    itself. window: of its row fronts; the low grid's width is raster order. adaptive: see `zipar`.
    The proposals have no distribution: an up-sampler returns tokens. The low draws take the noise of cycle 1 of the
    image, so they share none with the repair. low: what the last call drew; passes: the tokens that each of its passes
    was fed, 0 for the first, over the condition.
    Raises ValueError on a target and a sampler of other grids, and on a window beyond the low grid.
    """

    target: GridTarget
    resampler: Resampler
    window: int
    adaptive: bool = False
    low: IntArray | None = field(default=None, init=False)
    passes: tuple[int, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        if self.target.grid != self.resampler.map.low:
            raise ValueError(
                f"low rows: the low target draws {tuple(self.target.grid)} cells, the sampler reads "
                f"{tuple(self.resampler.map.low)}; choose two of one resolution"
            )
        check_window(self.window, self.target.grid, "draft_window")

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        """See `RowDrafter`. Raises ValueError unless `rows` are whole low rows."""
        low_rows = self.resampler.map.low_rows(rows)
        drawn = zipar(
            self.target,
            self.window,
            chance.cycle(1),
            adaptive=self.adaptive,
            role=Role.DRAFT,
            prefix=self.resampler.reduce(tokens, range(low_rows.start)),
            stop_row=low_rows.stop,
        )
        self.low, self.passes = drawn.tokens, drawn.passes
        return RowDraft(self.resampler.enlarge(drawn.tokens, low_rows))
