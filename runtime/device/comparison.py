"""Comparisons drawn on the device, method by method and batch by batch, into the same log as on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from underpaint.runtime.device.drawing import DeviceDrawer
from underpaint.runtime.device.forms import DeviceError
from underpaint.runtime.drawing import Drawing, ImageTask
from underpaint.runtime.evaluation.comparison import ComparisonPlan
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog, DrawnJob

Report: TypeAlias = Callable[[int, str], None]
"""Callback: number of finished drawings, and the current one."""


def run_on_device(drawer: DeviceDrawer, plan: ComparisonPlan, log: DrawingLog, report: Report) -> None:
    """Draw what `log` does not hold yet. After a stop (Ctrl-C) the log keeps every finished picture.

    On a GPU, each method first runs one batch that does not count, to compile, capture and allocate.
    Raises DeviceError if pictures ended with an error, after all others are drawn and logged.
    """
    failed: list[str] = []
    for method in plan.methods:
        missing = [
            ImageTask(condition, seed)
            for seed in plan.seeds
            for condition in plan.conditions
            if DrawingKey(method.name, condition.caption(), seed) not in log
        ]
        if not missing:
            continue
        report(len(log), f"{method.name}: making its program")
        program = drawer.primed(method, plan.sampling, missing)
        for number, outcome in program.draw_all(missing, cells_watch(report, log, method.name, drawer)):
            if isinstance(outcome, Drawing):
                log.keep(DrawnJob(outcome))
                report(len(log), f"{method.name:14s} {outcome.seconds:6.2f} s")
            else:
                failed.append(_failure(method.name, missing[number], outcome.error))
        del program  # frees its buffers before the next program allocates its own
    if failed:
        raise DeviceError(f"{len(failed)} pictures were not drawn; the others are kept: {'; '.join(failed)}")


def cells_watch(report: Report, log: DrawingLog, name: str, drawer: DeviceDrawer) -> Callable[[list[int]], None]:
    """Return a callback that reports how many cells the images of a batch have decided."""
    most = drawer.pipeline.grid.cells

    def watch(cells: list[int]) -> None:
        report(len(log), f"{name}: {span(cells)} of {most} cells")

    return watch


def span(cells: list[int]) -> str:
    """Return the decided cells of images in words: "12", or "12 to 40" if they differ."""
    least, most = min(cells), max(cells)
    return str(least) if least == most else f"{least} to {most}"


def _failure(method: str, one: ImageTask, error: str) -> str:
    return f"{one.condition.caption()!r} by {method}, seed {one.seed}: {error}"
