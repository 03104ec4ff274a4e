"""Measures passes over grid cells inside the loops of ZipAR and MuLo-SD: the `in_grid` part of a cost curve.

Loops take turns, one image each: row fronts with several windows, including raster order, and MuLo-SD with every
smaller target that drafts for this one, in 8 bits and in float32. A share of its drafts is refused and drawn again, in
islands and serially. Every pass is timed by its number of input tokens; the rest of an image is host time. Plain
autoregression runs in every round, and `samples.at_mean_speed` brings times to its speed inside the tree loops. The
slowest 5 % of every size are left out of its mean.

    target_ms: [[T, ms], ...], up to a whole draft
    begin_ms: the pass over the condition
    low: for smaller targets, [{ratio, int8, target_ms, begin_ms}, ...]
    resample_ms: enlarging a whole picture, by "KIND/RATIO"
    host_ms: {step, cell, judged}: per pass, per drawn cell, and per cell whose draft is judged
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes, table_columns
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role, sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.cell_rule import PooledCells
from underpaint.algos.spatial.mulo import Repair, RowDraft, RowDrafter, draft_and_repair
from underpaint.algos.spatial.target import Feed
from underpaint.algos.spatial.zipar import zipar
from underpaint.runtime.conditions import EncodedCondition
from underpaint.runtime.costs.in_cycle import MOST_CYCLES, draw
from underpaint.runtime.costs.loops import PLAIN
from underpaint.runtime.costs.samples import CycleKind, CycleSamples, at_mean_speed, curve, nonnegative_fit, typical
from underpaint.runtime.engines.engine import PassTimer
from underpaint.runtime.engines.target import EngineGridTarget, EngineTarget
from underpaint.runtime.methods.multi_scale.low_rows import LowRows, TimedResampler
from underpaint.runtime.resampling.resampler import Resampler

WINDOWS: Final = (1, 2, 3, 4, 6, 8)
REPAIRS: Final = (Repair(radius=0, window=2), Repair(order="serial", window=2))
REFUSED: Final = (0.1, 0.4)
CELLS: Final = "cells"
"""Name of the target's passes, and family of the host's samples."""
BEGIN: Final = "begin"
RESAMPLE: Final = "resample"


class LowTarget(NamedTuple):
    """A smaller target that drafts, with 1 / `ratio` of the side, in 8 bits or not, and its resamplers by kind."""

    ratio: int
    int8: bool
    target: EngineTarget
    resamplers: Mapping[str, Resampler]

    @property
    def name(self) -> str:
        """Name of its samples."""
        return f"low/{self.ratio}/{'int8' if self.int8 else 'float32'}"


@dataclass(slots=True)
class TimedCells:
    """A `GridTarget` that times its passes into `samples` under the name `what`, without the host's row maths.

    Attributes:
        target: The target.
        samples: Where the times in ms are added.
        what: Name of the passes in `samples`.
        seconds: Duration of the passes in seconds since last set to 0.
        passes: Number of passes since last set to 0.
        vocab_size: The number of codes, V.
        grid: The grid of the image.
    """

    target: EngineGridTarget
    samples: CycleSamples
    what: str
    seconds: float = 0.0
    passes: int = 0
    vocab_size: int = field(init=False)
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.grid = self.target.vocab_size, self.target.grid

    def begin(self) -> FloatArray:
        before = self.target.engine.cost.seconds
        distribution = self.target.begin()
        self._add(f"{BEGIN} {self.what}", 1, self.target.engine.cost.seconds - before)
        return distribution

    def score(self, feed: Feed) -> FloatArray:
        before = self.target.engine.cost.seconds
        distributions = self.target.score(feed)
        self._add(self.what, feed.cells.size, self.target.engine.cost.seconds - before)
        return distributions

    def _add(self, what: str, size: int, seconds: float) -> None:
        self.samples.passes[what, size].append(1e3 * seconds)
        self.seconds += seconds
        self.passes += 1

    def commit(self, rows: IntArray) -> None:
        self.target.commit(rows)


@dataclass(frozen=True, slots=True)
class RefuseShare:
    """A `CellRule` that runs `rule`, but then refuses a random share of all cells, whatever the verdicts."""

    rule: PooledCells
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
        judged = list(self.rule.judge(cells, tokens, draft_distributions, distributions, chance))
        yield from (self.draws.random(len(judged)) >= self.share).tolist()

    def residual(
        self, cell: int, token: int, draft_distribution: FloatArray | None, distribution: FloatArray
    ) -> FloatArray:
        return distribution


@dataclass(frozen=True, slots=True)
class EvenRows:
    """A `RowDrafter` that draws every cell uniformly from all tokens, and returns no distributions."""

    vocab_size: int
    width: int

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        cells = range(rows.start * self.width, rows.stop * self.width)
        even = np.full(self.vocab_size, 1.0 / self.vocab_size)
        return RowDraft(np.array([chance.draw(even, At(Role.DRAFT, cell)) for cell in cells], dtype=np.int64), None)


def measure(
    target: EngineTarget,
    low: Sequence[LowTarget],
    rounds: int,
    conditions: Sequence[EncodedCondition],
    report: Callable[[], None],
    plain_ms: float,
) -> CycleSamples:
    """Samples of `rounds` images of every loop, after one warm-up image each.

    Args:
        target: The target.
        low: Smaller targets that draft for it; without any, rows are drafted at random.
        rounds: Number of images of every loop.
        conditions: Conditions of the images, used in turn.
        report: Called after every round.
        plain_ms: Time of a step of plain autoregression inside the tree loops; all samples are scaled to this speed.
    """
    bursts = list[CycleSamples]()
    for turn in range(rounds + 1):
        samples = burst(target, low, conditions[turn % len(conditions)], turn)
        if turn:
            bursts.append(samples)
        report()
    return at_mean_speed(bursts, plain_ms)


def burst(target: EngineTarget, low: Sequence[LowTarget], condition: EncodedCondition, image: int) -> CycleSamples:
    """Samples of one image per loop, between two images of plain autoregression."""
    codes = np.random.default_rng(0).standard_normal((target.vocab_size, 8))
    rule = PooledCells(nearest_codes(codes, table_columns(target.vocab_size)), 0.5)
    samples = CycleSamples()
    for one in (target, *(smaller.target for smaller in low)):
        one.prepare(condition)
    draw(target, None, PLAIN, image, samples, MOST_CYCLES)
    _draw_all(EngineGridTarget(target), low, rule, image, samples)
    draw(target, None, PLAIN, image, samples, MOST_CYCLES)
    return samples


def _draw_all(
    target: EngineGridTarget, low: Sequence[LowTarget], rule: PooledCells, turn: int, samples: CycleSamples
) -> None:
    """Draw one image with each loop; rule: judges drafts, but its verdicts are not used."""
    high, chance = TimedCells(target, samples, CELLS), sampling(0, turn)
    grid = high.grid
    for window in _windows(grid.width):
        started = perf_counter()
        zipar(high, window, chance)
        _host(samples, started, (high,), 0.0, grid.cells, judged=False)
    shares = [(repair, share) for share in REFUSED for repair in REPAIRS]
    drafts = _drafts(low, turn, samples) or [_Draft(EvenRows(high.vocab_size, grid.width))] * len(shares)
    for place, draft in enumerate(drafts):
        repair, share = shares[(place + turn) % len(shares)]
        refusing = RefuseShare(rule, share, np.random.default_rng(turn))
        started = perf_counter()
        done = draft_and_repair(high, draft.drafter, refusing, repair, grid.height, chance)
        drawn_cells = sum(int(cycle.region.sum()) for cycle in done.cycles)
        if draft.target is None or draft.resampler is None:
            _host(samples, started, (high,), 0.0, drawn_cells + grid.cells, judged=True)
            continue
        samples.passes[draft.name, 1].append(1e3 * draft.resampler.seconds)
        passes = high, draft.target
        _host(samples, started, passes, draft.resampler.seconds, drawn_cells + draft.target.grid.cells, judged=True)


class _Draft(NamedTuple):
    """A drafter of whole pictures, the target and resampler behind it, and the name of the resampler's samples."""

    drafter: RowDrafter
    target: TimedCells | None = None
    resampler: PassTimer | None = None
    name: str = ""


def _drafts(low: Sequence[LowTarget], turn: int, samples: CycleSamples) -> list[_Draft]:
    """Drafters for every smaller target and several windows; its resamplers take turns."""
    drafts = []
    for one in low:
        kinds = list(one.resamplers)
        for place, window in enumerate(_windows(one.target.grid.width)):
            kind = kinds[(turn + place) % len(kinds)]
            timed = TimedCells(EngineGridTarget(one.target), samples, one.name)
            resampler = TimedResampler(one.resamplers[kind])
            rows = LowRows(timed, resampler, window)
            drafts.append(_Draft(rows, timed, resampler.timer, f"{RESAMPLE} {kind}/{one.ratio}"))
    return drafts


def _windows(width: int) -> tuple[int, ...]:
    """The windows below a grid's width, and the width itself, which is raster order."""
    return (*(window for window in WINDOWS if window < width), width)


def _host(
    samples: CycleSamples, started: float, passed: Sequence[TimedCells], others: float, cells: int, *, judged: bool
) -> None:
    """Store an image's host time (all except its passes and `others` seconds), by its passes and drawn cells."""
    seconds = perf_counter() - started - others - sum(one.seconds for one in passed)
    kind = CycleKind(CELLS, sum(one.passes for one in passed), cells, judged)
    samples.host[kind].append(1e3 * seconds)
    for one in passed:
        one.seconds, one.passes = 0.0, 0


def to_dict(
    samples: CycleSamples, low: Sequence[LowTarget], grid: Grid, rounds: int, alone: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Return the samples as JSON, for sizes with enough of them.

    Args:
        samples: The samples of `measure`.
        low: The smaller targets that were timed.
        grid: The grid of the target.
        rounds: Number of images of every loop.
        alone: [[size, ms], ...] of target passes repeated alone; see `curve`.
    """
    kinds = {kind: ms for kind, ms in samples.host.items() if kind.family == CELLS}
    parts = np.array([[kind.levels, kind.nodes, kind.pooled * grid.cells] for kind in kinds], dtype=np.float64)
    step, cell, judged = (round(ms, 5) for ms in nonnegative_fit(parts, list(kinds.values())).tolist())
    resampled = {what: ms for (what, _), ms in samples.passes.items() if what.startswith(RESAMPLE)}
    return {
        "rounds": rounds,
        **_passes(samples, CELLS, alone),
        "low": [{"ratio": one.ratio, "int8": one.int8, **_passes(samples, one.name)} for one in low],
        "resample_ms": {what.removeprefix(f"{RESAMPLE} "): round(typical(ms), 4) for what, ms in resampled.items()},
        "host_ms": {"step": step, "cell": cell, "judged": judged},
    }


def _passes(samples: CycleSamples, what: str, alone: Sequence[Sequence[float]] = ()) -> dict[str, Any]:
    begin = samples.passes[f"{BEGIN} {what}", 1]
    return {"target_ms": curve(samples, what, alone), "begin_ms": round(typical(begin), 4)}
