"""Find the exact distribution of a decision that reads uniforms, by cutting their cube into boxes of one outcome.

Uniforms are integer multiples of 2 ** -bits, as generators make them, so boxes have integer corners and exact volumes.
The method assumes decision trees over the uniforms: each uniform is compared with thresholds that depend only on
earlier comparisons (accept tests, inverse-CDF draws). Then a box whose corners agree can only hide a strip. Random
points inside look for strips, and `find_boxes` ends with new random points of the whole cube that bound the error.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import product
from math import log
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray

Outcome = TypeVar("Outcome", bound=Hashable)
Ask: TypeAlias = Callable[[IntArray, IntArray], list[Outcome]]
"""Maps draft numbers [M] and points [M, K], integers below 2 ** bits, to M outcomes."""

MOST_CORNERS = 6
"""With up to this many uniforms, all corners of a box are probed; with more, two opposite ones and their neighbours."""
INSIDE = 4
"""Number of random points probed inside each box."""
CONFIDENCE = 1e-3


class TooManyBoxes(ValueError):
    """The decision is not a decision tree over its uniforms, or the tree is too large."""


@dataclass(slots=True)
class Box(Generic[Outcome]):
    """A box of points low <= x < high [K] of one draft (`item`), all with the same outcome."""

    item: int
    low: IntArray
    high: IntArray
    outcome: Outcome | None = None

    def volume(self, bits: int) -> float:
        """The box's share of the cube."""
        return float(np.prod((self.high - self.low) * 2.0**-bits))


@dataclass(slots=True)
class Boxes(Generic[Outcome]):
    """The cubes of all drafts, cut into boxes.

    Attributes:
        boxes: The boxes of all drafts.
        unseen: With confidence 1 - CONFIDENCE, at most this share of the cubes (weighted by draft) has a wrong outcome.
        asked: Number of requested decisions.
    """

    boxes: list[Box[Outcome]]
    unseen: float
    asked: int


@dataclass(slots=True)
class _Search(Generic[Outcome]):
    ask: Ask[Outcome]
    dims: int
    bits: int
    most: int
    random: np.random.Generator
    cache: dict[tuple[int, bytes], Outcome] = field(default_factory=dict)
    corners: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        if self.dims <= MOST_CORNERS:
            self.corners = np.array(list(product((False, True), repeat=self.dims)), dtype=np.bool_)
        else:
            near = np.eye(self.dims, dtype=np.bool_)
            self.corners = np.concatenate([np.zeros((1, self.dims), np.bool_), near, ~near, np.ones_like(near[:1])])

    def outcomes(self, items: IntArray, points: IntArray) -> list[Outcome]:
        """Outcomes from `ask`; repeated points are cached."""
        keys = [(int(item), point.tobytes()) for item, point in zip(items, points, strict=True)]
        new = {key: place for place, key in enumerate(keys) if key not in self.cache}
        if new:
            places = np.array(list(new.values()))
            self.cache.update(zip(new, self.ask(items[places], points[places]), strict=True))
        if len(self.cache) > self.most:
            raise TooManyBoxes(
                f"{len(self.cache)} decisions did not find all thresholds; the decision compares more than one uniform "
                "at a time, or has too many outcomes"
            )
        return [self.cache[key] for key in keys]

    def settle(self, open_boxes: list[Box[Outcome]]) -> list[Box[Outcome]]:
        """Cut boxes until all probes of each box have the same outcome."""
        done: list[Box[Outcome]] = []
        while open_boxes:
            pairs: list[tuple[IntArray, IntArray]] = []
            cut: list[Box[Outcome]] = []
            points = np.stack([self._probes(box) for box in open_boxes])
            count = points.shape[1]
            outcomes = self.outcomes(np.repeat([box.item for box in open_boxes], count), points.reshape(-1, self.dims))
            for place, box in enumerate(open_boxes):
                pair = self._differing(points[place], outcomes[place * count : (place + 1) * count])
                if pair is None:
                    box.outcome = outcomes[place * count]
                    done.append(box)
                else:
                    pairs.append(pair)
                    cut.append(box)
            open_boxes = self._split(cut, pairs)
        return done

    def _probes(self, box: Box[Outcome]) -> IntArray:
        inside = self.random.integers(box.low, box.high, size=(INSIDE, self.dims))
        return np.concatenate([np.where(self.corners, box.high - 1, box.low), inside])

    def _differing(self, points: IntArray, outcomes: list[Outcome]) -> tuple[IntArray, IntArray] | None:
        """Two points with different outcomes, which differ in the earliest uniform possible; None if all agree."""
        if all(one == outcomes[0] for one in outcomes):
            return None
        at = {point.tobytes(): outcome for point, outcome in zip(points, outcomes, strict=True)}
        lowest, highest = points[0], points[len(self.corners) - 1]
        for dim in range(self.dims):
            for corner, point, outcome in zip(self.corners, points, outcomes, strict=False):
                other = point.copy()
                other[dim] = lowest[dim] if corner[dim] else highest[dim]
                if at.get(other.tobytes(), outcome) != outcome:
                    return point, other
        place = next(place for place, one in enumerate(outcomes) if one != outcomes[0])
        return points[0], points[place]

    def _split(self, boxes: list[Box[Outcome]], pairs: list[tuple[IntArray, IntArray]]) -> list[Box[Outcome]]:
        """Cut each box at a threshold between its two points."""
        if not boxes:
            return []
        items = np.array([box.item for box in boxes])
        lines = [self._line(box, *pair) for box, pair in zip(boxes, pairs, strict=True)]
        dims = np.array([dim for _, _, dim, _ in lines])
        base = np.stack([point for point, _, _, _ in lines])
        low = np.array([int(point[dim]) for point, _, dim, _ in lines])
        high = np.array([stop for _, stop, _, _ in lines])
        first = [outcome for _, _, _, outcome in lines]
        rows = np.arange(len(boxes))
        while (high - low > 1).any():
            middle = (low + high) // 2
            points = base.copy()
            points[rows, dims] = middle
            same = np.array([one == old for one, old in zip(self.outcomes(items, points), first, strict=True)])
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        cut: list[Box[Outcome]] = []
        for box, dim, place in zip(boxes, dims.tolist(), high.tolist(), strict=True):
            below, above = box.high.copy(), box.low.copy()
            below[dim] = above[dim] = place
            cut += [Box(box.item, box.low, below), Box(box.item, above, box.high)]
        return cut

    def _line(self, box: Box[Outcome], start: IntArray, end: IntArray) -> tuple[IntArray, int, int, Outcome]:
        """A point, a larger value of one uniform with another outcome, that uniform, and the outcome."""
        steps = [start]
        for dim in np.flatnonzero(start != end).tolist():
            step = steps[-1].copy()
            step[dim] = end[dim]
            steps.append(step)
        outcomes = self.outcomes(np.full(len(steps), box.item), np.stack(steps))
        turn = next(turn for turn in range(len(steps) - 1) if outcomes[turn] != outcomes[turn + 1])
        dim = int(np.flatnonzero(steps[turn] != steps[turn + 1])[0])
        if steps[turn][dim] < steps[turn + 1][dim]:
            return steps[turn], int(steps[turn + 1][dim]), dim, outcomes[turn]
        return steps[turn + 1], int(steps[turn][dim]), dim, outcomes[turn + 1]


def find_boxes(
    ask: Ask[Outcome],
    weights: list[float],
    dims: int,
    bits: int,
    checks: int = 2048,
    most: int = 400_000,
    seed: int = 0,
) -> Boxes[Outcome]:
    """Cut the cube of the uniforms of every draft into boxes of one outcome.

    Args:
        ask: Returns the outcomes of requested decisions.
        weights: The probability of each draft.
        dims: Number of uniforms.
        bits: Uniforms are integer multiples of 2 ** -bits.
        checks: Number of new points that a last pass compares with the boxes, with drafts drawn by their weights. If a
            point disagrees, its box is cut again and the pass is repeated.
        most: Largest number of decisions.
        seed: Seed of the random points.

    Raises:
        TooManyBoxes: `most` decisions do not suffice.
    """
    search = _Search(ask, dims, bits, most, np.random.default_rng(seed))
    whole = [
        Box[Outcome](item, np.zeros(dims, dtype=np.int64), np.full(dims, 1 << bits, dtype=np.int64))
        for item in range(len(weights))
    ]
    boxes = search.settle(whole)
    shares = np.array(weights) / sum(weights)
    while True:
        items = search.random.choice(len(weights), size=checks, p=shares)
        points = search.random.integers(0, 1 << bits, size=(checks, dims))
        outcomes = search.outcomes(items, points)
        wrong = _disagreeing(boxes, items, points, outcomes)
        if not wrong:
            unseen = log(1.0 / CONFIDENCE) / checks
            return Boxes(boxes, unseen, len(search.cache))
        for place, point in wrong.items():
            box = boxes[place]
            boxes += search.settle(search._split([box], [(box.low, point)]))
        boxes = [box for place, box in enumerate(boxes) if place not in wrong]


def _disagreeing(
    boxes: list[Box[Outcome]], items: IntArray, points: IntArray, outcomes: list[Outcome]
) -> dict[int, IntArray]:
    """Map each box (by index) with a wrong outcome to a point that shows it."""
    owners = np.array([box.item for box in boxes])
    low = np.stack([box.low for box in boxes])
    high = np.stack([box.high for box in boxes])
    wrong: dict[int, IntArray] = {}
    for item in np.unique(items).tolist():
        item_boxes = np.flatnonzero(owners == item)
        probes = np.flatnonzero(items == item)
        inside = ((low[item_boxes] <= points[probes, None]) & (points[probes, None] < high[item_boxes])).all(axis=2)
        for point, place in zip(probes.tolist(), item_boxes[inside.argmax(axis=1)].tolist(), strict=True):
            if boxes[place].outcome != outcomes[point]:
                wrong.setdefault(place, points[point])
    return wrong
