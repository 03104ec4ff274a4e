"""The time of images drawn by loops over grid cells (ZipAR and MuLo-SD), from costs measured inside such loops."""

from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.artifacts.cost_curve import IN_GRID, Curve, InGridCosts, LowCosts
from underpaint.sim.latency.models import SizeMissing, read_curve
from underpaint.sim.report.statistics import ImageTimes

_REMEDY = "measure a whole curve with `underpaint costs --renew --full`"


class GridCounts(NamedTuple):
    """Counts of I images, summed over their decodings.

    Attributes:
        begun: `[I]`, passes over the condition.
        fed: `[I, T + 1]`, other passes by number of input tokens.
        drawn: `[I]`, drawn cells.
        judged: `[I]`, cells whose draft token was verified.
    """

    begun: IntArray
    fed: IntArray
    drawn: IntArray
    judged: IntArray

    @property
    def passes(self) -> IntArray:
        """[I] number of all passes."""
        count: IntArray = self.begun + self.fed.sum(axis=1)
        return count


class LowDrafts(NamedTuple):
    """The work of a low-resolution drafter: a target at 1 / `ratio` of the side length, and a resampler.

    Attributes:
        counts: Counts of the low-resolution target.
        ratio: The side length of an image divided by the drafter's.
        int8: Whether the drafter runs in 8 bits; None prefers 8 bits if measured.
        resampler: Name of the resampler.
        pictures: `[I]`, number of upsampled images.
    """

    counts: GridCounts
    ratio: int
    int8: bool | None
    resampler: str
    pictures: IntArray


def grid_times(costs: InGridCosts, counts: GridCounts, low: LowDrafts | None = None) -> ImageTimes:
    """Compute the time of each image; `SizeMissing` if the curve has no measurement for it."""
    target = _passes_ms(counts, costs.target_ms, costs.begin_ms, "target passes")
    host, none = _host_ms(costs, counts), np.zeros(target.size)
    drafter: FloatArray = none
    if low is not None:
        low_costs = _low_costs(costs, low)
        drafter = _passes_ms(
            low.counts, low_costs.target_ms, low_costs.begin_ms, f"passes at 1 / {low_costs.ratio} of the side"
        )
        drafter = drafter + low.pictures * _resample_ms(costs, low)
        host = host + _host_ms(costs, low.counts)
    return ImageTimes(target, drafter, host, none)


def _passes_ms(counts: GridCounts, curve: Curve, begin_ms: float, what: str) -> FloatArray:
    used = np.flatnonzero(counts.fed.any(axis=0))
    ms: FloatArray = counts.begun * begin_ms
    return ms + counts.fed[:, used] @ read_curve(curve, used, f"{IN_GRID}, {what}")


def _host_ms(costs: InGridCosts, counts: GridCounts) -> FloatArray:
    host = costs.host_ms
    ms: FloatArray = host.step * counts.passes + host.cell * counts.drawn + host.judged * counts.judged
    return ms


def _low_costs(costs: InGridCosts, low: LowDrafts) -> LowCosts:
    by_kind = {one.int8: one for one in costs.low if one.ratio == low.ratio}
    kinds = (True, False) if low.int8 is None else (low.int8,)
    for kind in kinds:
        if kind in by_kind:
            return by_kind[kind]
    bits = {True: " in 8 bits", False: " in float32", None: ""}[low.int8]
    raise SizeMissing(f"{IN_GRID}: holds no target at 1 / {low.ratio} of the side{bits}; {_REMEDY}")


def _resample_ms(costs: InGridCosts, low: LowDrafts) -> float:
    name = f"{low.resampler}/{low.ratio}"
    if name not in costs.resample_ms:
        raise SizeMissing(
            f"{IN_GRID}: holds no resampler '{name}', but {', '.join(costs.resample_ms) or 'none'}; {_REMEDY}, or take "
            "one of those"
        )
    return costs.resample_ms[name]
