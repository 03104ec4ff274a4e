"""A comparison drawn on the device: method after method, batch after batch, into the same log as on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from underpaint.runtime.device.drawing import DeviceDrawer
from underpaint.runtime.device.forms import DeviceError
from underpaint.runtime.drawing import Drawing, ImageTask
from underpaint.runtime.evaluation.comparison import ComparisonPlan
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog, DrawnJob

Report: TypeAlias = Callable[[int, str], None]
"""Is told how many drawings are done, and what is being drawn."""


def run_on_device(drawer: DeviceDrawer, plan: ComparisonPlan, log: DrawingLog, report: Report) -> None:
    """Draw what `log` does not hold yet. A stop (Ctrl-C) leaves every finished picture in it.

    On a GPU one batch of each method goes uncounted first: it compiles, captures and allocates.
    Raises DeviceError, after all else is drawn and logged, where pictures ended with an error.
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
        program = drawer.program(method, plan.sampling)
        if drawer.cuda:
            program.prime(missing[: drawer.batch])
        for number, outcome in program.draw_all(missing, cells_watch(report, log, method.name, drawer)):
            if isinstance(outcome, Drawing):
                log.keep(DrawnJob(outcome))
                report(len(log), f"{method.name:14s} {outcome.seconds:6.2f} s")
            else:
                failed.append(_failure(method.name, missing[number], outcome.error))
        del program  # its buffers go before the next one's are made
    if failed:
        raise DeviceError(f"{len(failed)} pictures were not drawn; the others are kept: {'; '.join(failed)}")


def cells_watch(report: Report, log: DrawingLog, name: str, drawer: DeviceDrawer) -> Callable[[list[int]], None]:
    """Tells, while a batch is drawn, how far its images are."""
    most = drawer.pipeline.grid.cells

    def watch(cells: list[int]) -> None:
        report(len(log), f"{name}: {span(cells)} of {most} cells")

    return watch


def span(cells: list[int]) -> str:
    """How far images are: "12", or "12 to 40" where they differ."""
    least, most = min(cells), max(cells)
    return str(least) if least == most else f"{least} to {most}"


def _failure(method: str, one: ImageTask, error: str) -> str:
    return f"{one.condition.caption()!r} by {method}, seed {one.seed}: {error}"
