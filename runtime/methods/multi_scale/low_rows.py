"""Rows drafted at a low resolution: a low target draws them, and an upsampler enlarges them."""

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
    """A `Resampler` that wraps another one and times its calls."""

    inner: Resampler
    timer: PassTimer = field(default_factory=PassTimer)

    @property
    def map(self) -> ResolutionMap:
        """The two grids."""
        return self.inner.map

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        """Call `enlarge` of the wrapped resampler and add its time to the timer."""
        with self._timed():
            return self.inner.enlarge(low, rows)

    def reduce(self, high: IntArray, rows: range) -> IntArray:
        """Call `reduce` of the wrapped resampler and add its time to the timer."""
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
    """An `algos.spatial.mulo.RowDrafter` that draws low-resolution rows, given the image so far, and enlarges them.

    Decided high-resolution rows are reduced to the low resolution, and the low target takes them as its own tokens.
    The drafts have no distribution, because an upsampler returns tokens. The low target draws with the noise of cycle 1
    of the image, so it shares none with the repair.

    Attributes:
        target: The low target.
        resampler: The resampler between the two grids.
        window: Window of the low target's row fronts; the low grid's width is raster order.
        adaptive: See `zipar`.
        low: The low tokens of the last call.
        passes: Number of tokens that each pass of that call processed, 0 for the prefill.

    Raises:
        ValueError: Target and resampler have different grids, or the window does not fit the low grid.
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
        """See `RowDrafter`. Raises ValueError unless `rows` correspond to whole low rows."""
        low_rows = self.resampler.map.low_rows(rows)
        low_result = zipar(
            self.target,
            self.window,
            chance.cycle(1),
            adaptive=self.adaptive,
            role=Role.DRAFT,
            prefix=self.resampler.reduce(tokens, range(low_rows.start)),
            stop_row=low_rows.stop,
        )
        self.low, self.passes = low_result.tokens, low_result.passes
        return RowDraft(self.resampler.enlarge(low_result.tokens, low_rows))
