"""Statistics of decoding runs: counts per image, without times, which latency models convert to times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.sim.latency.models import Costs

INTERVAL_DEVIATIONS = 1.96
"""Half the width of a 95 % confidence interval of a mean, in standard errors."""
_COUNTS: Final = ("cycles", "accepted", "depth", "verify", "draft", "chained")
"""The arrays of `Runs`."""


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Counts of I decoded images.

    Attributes:
        cells: Number of cells of an image.
        cycles: [I] number of cycles with a draft. The first pass, over the condition alone, is not a cycle.
        accepted: [I] number of accepted draft tokens.
        depth: [I] sum of the depths of the draft trees.
        verify: [I, N + 1] number of target passes by nodes, including the first pass.
        draft: [I, N + 1] number of drafter passes by nodes; a chain drafted in one call counts once per level.
        chained: [I, N + 1] number of calls that draft a chain, by levels.
        decodings: How often each image was decoded; counts are sums over them.
    """

    cells: int
    cycles: IntArray
    accepted: IntArray
    depth: IntArray
    verify: IntArray
    draft: IntArray
    chained: IntArray
    decodings: int = 1

    @classmethod
    def zeros(cls, cells: int, images: int, most_nodes: int) -> "Runs":
        """Create counts of 0, for passes over at most `most_nodes` nodes."""
        one, by_size = (np.zeros((images, *more), dtype=np.int64) for more in ((), (most_nodes + 1,)))
        return cls(cells, one, one.copy(), one.copy(), by_size, by_size.copy(), by_size.copy())

    @property
    def images(self) -> int:
        """I, the number of images."""
        return int(self.cycles.size)

    def and_more(self, more: "Runs") -> "Runs":
        """Concatenate these images and `more`."""
        if more.cells != self.cells:
            raise ValueError(f"runs: expected images of {self.cells} cells, got {more.cells}")
        if more.decodings != self.decodings:
            raise ValueError(f"runs: expected images decoded {self.decodings} times, got {more.decodings}")
        joined: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(more, name)]) for name in _COUNTS}
        return replace(self, **joined)

    def pooled(self, images: int) -> "Runs":
        """Sum the decodings of each image of a pool, decoded in turns; only images are independent, for intervals.

        ValueError unless all images were decoded equally often.
        """
        times, remainder = divmod(self.images, images)
        if remainder or not times:
            raise ValueError(f"runs: expected a multiple of {images} images, got {self.images}")

        sums = dict[str, Any](decodings=times * self.decodings)
        for name in _COUNTS:
            counts = getattr(self, name)
            sums[name] = counts.reshape(times, images, *counts.shape[1:]).sum(axis=0)
        return replace(self, **sums)

    def times(self, costs: Costs) -> "ImageTimes":
        """Compute the time of each image with a latency model; ValueError if the model lacks a size. If the images of a
        batch wait for the last of them, each time grows by the mean factor of that wait.
        """
        target, drafter = _priced(self.verify, costs.verify_ms), _priced(self.draft, costs.draft_ms)
        host = (self.cycles + self.decodings) * costs.overhead_ms
        alone = target + drafter + host
        return ImageTimes(target, drafter, host, alone * (slowest_of(alone, costs.waits_for) - 1.0))


class ImageTimes(NamedTuple):
    """[I] ms of each image: in target passes, in drafter passes, on the host, and waiting for the last of a batch."""

    target: FloatArray
    drafter: FloatArray
    host: FloatArray
    waiting: FloatArray

    @property
    def total(self) -> FloatArray:
        """[I] ms, the sum of all parts."""
        total: FloatArray = self.target + self.drafter + self.host + self.waiting
        return total


def slowest_of(ms: FloatArray, batch: int) -> float:
    """Expected time of the slowest image of a batch, divided by the mean time of an image.

    Args:
        ms: `[I]` float64, time of each image alone, in a slot of the batch.
        batch: Number of images that start together, drawn at random from the I images without replacement. If I is
            smaller than a batch, they are drawn with replacement.

    Returns:
        A factor of at least 1: the exact mean of the order statistic.
    """
    images, rising = ms.size, np.sort(ms)
    if batch == 1 or images == 1:
        return 1.0
    places = np.arange(1, images + 1)
    if batch > images:
        shares = (places / images) ** batch - ((places - 1) / images) ** batch
    else:
        # Image i is the slowest if the others are among the i - 1 faster ones: C(i - 1, batch - 1) / C(images, batch).
        shares = np.zeros(images)
        shares[-1] = batch / images
        for place in range(images - 1, batch - 1, -1):
            shares[place - 1] = shares[place] * (place - batch + 1) / place
    return float(shares @ rising / rising.mean())


def _priced(counts: IntArray, price: Callable[[IntArray], FloatArray]) -> FloatArray:
    """[I] ms of passes, from their counts by nodes [I, N + 1]."""
    used = np.flatnonzero(counts.any(axis=0))
    if not used.size:
        return np.zeros(counts.shape[0])
    ms: FloatArray = counts[:, used] @ price(used)
    return ms


class Estimate(NamedTuple):
    """A mean and the ends of its 95 % confidence interval (equal to the mean if there is only one image)."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval, as a share of the mean."""
        return (self.high - self.low) / 2.0 / self.mean


def ratio(above: FloatArray | IntArray, below: FloatArray | IntArray) -> Estimate:
    """The ratio of the sums of paired values [I], with an interval over images by the delta method."""
    value = float(above.sum() / below.sum())
    if above.size < 2:
        return Estimate(value, value, value)
    errors = above - value * below
    half = INTERVAL_DEVIATIONS * float(errors.std(ddof=1)) / float(below.mean()) / np.sqrt(above.size)
    return Estimate(value, value - half, value + half)


def tokens_per_cycle(runs: Runs) -> Estimate:
    """Accepted draft tokens plus the extra token, per cycle with a draft."""
    return ratio(runs.accepted + runs.cycles, runs.cycles)


def mean_depth(runs: Runs) -> Estimate:
    """Mean depth of the draft tree per cycle."""
    return ratio(runs.depth, runs.cycles)


def speedup(runs: Runs, costs: Costs) -> Estimate:
    """The speedup over plain autoregression with the same latency model."""
    return times_faster(runs, runs.times(costs).total, plain_ms(costs))


def plain_ms(costs: Costs) -> float:
    """Time of a step of plain autoregression, in ms."""
    return float(costs.verify_ms(np.array([1]))[0]) + costs.step_overhead_ms


def times_faster(runs: Runs, image_ms: FloatArray, step_ms: float) -> Estimate:
    """The speedup over plain autoregression, from the times of images [I] and of a plain step."""
    return ratio(np.full(runs.images, runs.decodings * runs.cells * step_ms), image_ms)


@dataclass(frozen=True, slots=True)
class BlockMoments:
    """The moments of I values for a mean and its interval.

    Attributes:
        mean: The mean of the values.
        squares: Sum of squared distances from the mean.
    """

    mean: float
    squares: float


_Parts: TypeAlias = tuple[float, float, float, float]


def _added(one: _Parts, other: _Parts) -> _Parts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the runs of I images of `cells` cells; their memory does not grow with I.

    Attributes:
        cells: Number of cells of an image.
        images: I, the number of images.
        cycles, accepted, depth: See `Runs`.
        nodes: Positions of all target passes.
        target_passes: Number of target passes.
        drafter_passes: Number of drafter passes.
        image_ms: Moments of an image's time, by machine.
        parts_ms: Total ms by part of `ImageTimes`, by machine.
    """

    cells: int
    images: int
    cycles: int
    accepted: int
    depth: int
    nodes: int
    target_passes: int
    drafter_passes: int
    image_ms: Mapping[str, BlockMoments]
    parts_ms: Mapping[str, _Parts]

    @classmethod
    def of(cls, runs: Runs, times: Mapping[str, ImageTimes]) -> "Totals":
        """Sum `runs` and the times of their images, by machine."""
        image_ms = {name: one.total for name, one in times.items()}
        return cls(
            runs.cells,
            runs.images,
            int(runs.cycles.sum()),
            int(runs.accepted.sum()),
            int(runs.depth.sum()),
            int((runs.verify @ np.arange(runs.verify.shape[1])).sum()),
            int(runs.verify.sum()),
            int(runs.draft.sum()),
            {
                name: BlockMoments(float(ms.mean()), float(((ms - ms.mean()) ** 2).sum()))
                for name, ms in image_ms.items()
            },
            {
                name: (float(a.sum()), float(b.sum()), float(c.sum()), float(d.sum()))
                for name, (a, b, c, d) in times.items()
            },
        )

    def and_more(self, more: "Totals") -> "Totals":
        """Add `more` images, which must have as many cells and the same machines."""
        images = self.images + more.images
        image_ms = {}
        for name, moments in self.image_ms.items():
            other = more.image_ms[name]
            apart = other.mean - moments.mean  # Chan, Golub and LeVeque's update
            mean = moments.mean + apart * more.images / images
            squares = moments.squares + other.squares + apart**2 * self.images * more.images / images
            image_ms[name] = BlockMoments(mean, squares)
        return Totals(
            self.cells,
            images,
            self.cycles + more.cycles,
            self.accepted + more.accepted,
            self.depth + more.depth,
            self.nodes + more.nodes,
            self.target_passes + more.target_passes,
            self.drafter_passes + more.drafter_passes,
            image_ms,
            {name: _added(parts, more.parts_ms[name]) for name, parts in self.parts_ms.items()},
        )

    def cycle_ms(self, machine: str) -> list[float]:
        """Mean ms per cycle, by part of `ImageTimes`; the first pass is spread over the cycles."""
        return [part / self.cycles for part in self.parts_ms[machine]]

    def speedup(self, machine: str, step_ms: float) -> Estimate:
        """The speedup on a machine whose plain step takes `step_ms`; see `times_faster`."""
        ms = self.image_ms[machine]
        value = self.cells * step_ms / ms.mean
        if self.images < 2:
            return Estimate(value, value, value)
        deviation = value * np.sqrt(ms.squares / (self.images - 1))
        half = INTERVAL_DEVIATIONS * float(deviation) / ms.mean / np.sqrt(self.images)
        return Estimate(value, value - half, value + half)
