"""Pass counts of images drawn by methods that cannot be replayed, as a part of a trace.

A Jacobi window uses the target's distributions after tokens that plain autoregression never drew, so a trace cannot
replay it. Instead, these records count each kind of pass for the same prompts, and the host's time relative to plain
autoregression. Together with a cost curve, they predict the costs for other prompts on another machine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import PassKind
from underpaint.artifacts.cost_curve import IN_CYCLE, IN_GRID, CostCurveFile, InCycleCosts
from underpaint.sim.latency.models import SizeMissing, read_curve
from underpaint.sim.report.statistics import ImageTimes

JACOBI: Final = "jacobi"
"""Start of the names of loops that draft with Jacobi windows or Jacobi fronts alone."""
ARRAYS: Final = ("cycles", "levels", "target", "drafter", "host")


@dataclass(frozen=True, slots=True, eq=False)
class DrawnTrace:
    """I images drawn by one method with one set of settings.

    Attributes:
        recipe: The method's settings, as in result records.
        target_kinds: The KT kinds of calls of the target.
        drafter_kinds: The KD kinds of calls of the drafter.
        cycles: [I], number of cycles with a draft; 0 if cells are decided in any order.
        levels: [I], number of drafted levels; 0 if cells are decided in any order.
        target: [I, KT], number of calls of each kind.
        drafter: [I, KD], number of calls of each kind.
        host: [I], host time divided by the host time of plain autoregression for the same image.
    """

    recipe: Mapping[str, Any]
    target_kinds: tuple[PassKind, ...]
    drafter_kinds: tuple[PassKind, ...]
    cycles: IntArray
    levels: IntArray
    target: IntArray
    drafter: IntArray
    host: FloatArray

    def __post_init__(self) -> None:
        images = self.cycles.shape
        shapes = {
            "levels": images,
            "target": (*images, len(self.target_kinds)),
            "drafter": (*images, len(self.drafter_kinds)),
            "host": images,
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"trace, drawn pictures: expected {name} {shape}, got {getattr(self, name).shape}; record it again"
                )

    @property
    def images(self) -> int:
        """I, the number of images."""
        return int(self.cycles.size)

    @property
    def passes(self) -> IntArray:
        """[I], number of target passes."""
        count: IntArray = self.target.sum(axis=1)
        return count

    def is_by(self, recipe: Mapping[str, Any]) -> bool:
        """Whether these settings drew the images. Methods that choose by pass costs must have the same costs."""
        return bool(_plain(self.recipe) == _plain(recipe))


def _plain(recipe: Mapping[str, Any]) -> Any:
    """Convert a recipe to plain JSON values: lists, not tuples."""
    return json.loads(json.dumps(recipe))


class DrawnRecorder:
    """Records images drawn by one method. recipe: see `DrawnTrace`."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self._recipe = recipe
        self._counts: list[tuple[int, int, Mapping[PassKind, int], Mapping[PassKind, int], float]] = []

    def add(
        self,
        depths: Sequence[int] | None,
        target: Mapping[PassKind, int],
        drafter: Mapping[PassKind, int],
        host: float,
    ) -> None:
        """Record one image.

        Args:
            depths: Number of levels drafted in each cycle; None if cells are decided in any order.
            target: Number of calls of the target's engine, by kind.
            drafter: Number of calls of the drafter's engine, by kind.
            host: Relative host time, see `DrawnTrace`.
        """
        self._counts.append((len(depths or ()), sum(depths or ()), dict(target), dict(drafter), host))

    def trace(self) -> DrawnTrace:
        """Build the trace of the recorded images."""
        cycles, levels, target, drafter, host = zip(*self._counts, strict=True)
        target_kinds, target_counts = _table(target)
        drafter_kinds, drafter_counts = _table(drafter)
        return DrawnTrace(
            self._recipe,
            target_kinds,
            drafter_kinds,
            np.array(cycles, dtype=np.int64),
            np.array(levels, dtype=np.int64),
            target_counts,
            drafter_counts,
            np.array(host, dtype=np.float64),
        )


def _table(counts: Sequence[Mapping[PassKind, int]]) -> tuple[tuple[PassKind, ...], IntArray]:
    """The K kinds of calls of I images, and their counts [I, K]."""
    kinds = tuple(sorted({kind for one in counts for kind in one}))
    table = np.zeros((len(counts), len(kinds)), dtype=np.int64)
    for place, one in enumerate(counts):
        table[place] = [one.get(kind, 0) for kind in kinds]
    return kinds, table


def missing_costs(drawn: DrawnTrace, curve: CostCurveFile) -> str:
    """A message if a curve lacks the costs of these images' loops, else an empty string."""
    needed = (IN_CYCLE,) if drawn.cycles.any() else (IN_CYCLE, IN_GRID)
    missing = [name for name in needed if getattr(curve, name) is None]
    if not missing:
        return ""
    return f"{curve.name}.json holds no {missing[0]}; measure a whole curve with `underpaint costs --renew --full`"


def drawn_times(drawn: DrawnTrace, curve: CostCurveFile, cells: int) -> ImageTimes:
    """Compute the time of each image from a curve's costs inside loops.

    Args:
        drawn: The images.
        curve: A full curve. Loops of Jacobi windows alone use the costs of such passes up to the largest measured;
            other images drawn in cycles use the costs of cycles, and the rest the costs of loops over cells.
        cells: Number of cells of an image.

    Returns:
        `[I]` ms of each part.

    Raises:
        SizeMissing: The curve lacks a size, or costs inside such loops.
    """
    if missing := missing_costs(drawn, curve):
        raise SizeMissing(missing)
    cycle, grid = curve.in_cycle, curve.in_grid
    assert cycle is not None
    host = drawn.host * cells * cycle.plain.host_ms
    if drawn.cycles.any():
        begin_ms, target = cycle.plain.target_ms, cycle.target_ms
    else:
        assert grid is not None
        begin_ms, target = grid.begin_ms, grid.target_ms
    windows = cycle.window_ms if str(drawn.recipe.get("loop", "")).startswith(JACOBI) else ()
    longest = windows[-1][0] if windows else 0
    target_ms = [
        begin_ms
        if kind.form == "begin"
        else _size_ms(windows if kind.size <= longest else target, kind.size, "target passes")
        for kind in drawn.target_kinds
    ]
    drafter_ms = [_draft_ms(cycle, kind) for kind in drawn.drafter_kinds]
    return ImageTimes(_sum(drawn.target, target_ms), _sum(drawn.drafter, drafter_ms), host, np.zeros(drawn.images))


def _sum(counts: IntArray, ms: Sequence[float]) -> FloatArray:
    """[I] ms of calls, from their counts by kind [I, K]."""
    total: FloatArray = counts.astype(np.float64) @ np.array(ms, dtype=np.float64)
    return total


def _draft_ms(costs: InCycleCosts, kind: PassKind) -> float:
    """Time of a call of the drafter, in ms."""
    if kind.form == "begin":
        return costs.draft_ms[0][1]
    if kind.form == "pass":
        # A pass over tokens that were committed without a draft may be longer than any pass that expands nodes.
        return _size_ms(costs.draft_ms, min(kind.size, costs.draft_ms[-1][0]), "drafter passes")
    if kind.form == "chain":
        return _size_ms(costs.chain_ms, kind.levels, "chains in one call")
    tree = costs.tree_ms.get(kind.form)
    if tree is None:
        raise SizeMissing(f"{IN_CYCLE}: no trees in one call with {kind.form} siblings were measured")
    first, later = (_size_ms(tree.levels, size, "levels of trees in one call") for size in (1, kind.size))
    return tree.call + first + (kind.levels - 1) * later


def _size_ms(curve: tuple[tuple[int, float], ...], size: int, what: str) -> float:
    if not curve:
        raise SizeMissing(f"{IN_CYCLE}: no {what} were measured")
    return float(read_curve(curve, np.array([size]), what)[0])
