"""Drawing what a comparison asks for, with a bar that shows how far it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from underpaint.cli.errors import BAD_INPUT, STOPPED

if TYPE_CHECKING:
    from underpaint.runtime.evaluation.comparison import ComparisonPlan, ComparisonProgress
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.pipeline import Pipeline


def draw_all(pipeline: "Pipeline", plan: "ComparisonPlan", log: "DrawingLog") -> None:
    """Draw what `log` lacks of the plan; on Ctrl-C say where it stands and leave."""
    from underpaint.artifacts.run_log import RunLogInUse
    from underpaint.runtime.evaluation.comparison import run

    try:
        with _progress(len(log), plan.size) as report:
            run(pipeline, plan, log, report)
    except KeyboardInterrupt:
        typer.echo(f"stopped: {len(log)} of {plan.size} drawings are done; the same command goes on", err=True)
        raise typer.Exit(STOPPED) from None
    except RunLogInUse as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error


@contextmanager
def _progress(done: int, size: int) -> Iterator[Callable[["ComparisonProgress"], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("warming up" if done < size else "nothing left to draw", total=size, completed=done)

        def report(state: "ComparisonProgress") -> None:
            shown = "warming up" if state.last is None else f"{state.last.method:14s} {state.last.seconds:6.2f} s"
            progress.update(task, completed=state.finished, description=shown)

        yield report
