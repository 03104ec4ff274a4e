"""Drawing what a comparison asks for, with a bar that shows how far it is."""

from typing import TYPE_CHECKING

import typer

from underpaint.cli.errors import BAD_INPUT, STOPPED
from underpaint.cli.terminal import progress

if TYPE_CHECKING:
    from underpaint.runtime.evaluation.comparison import ComparisonPlan, ComparisonProgress
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.evaluation.replay import ReplayLog
    from underpaint.runtime.pipeline import Pipeline


def draw_all(pipeline: "Pipeline", plan: "ComparisonPlan", log: "DrawingLog") -> None:
    """Draw what `log` lacks of the plan; on Ctrl-C say where it stands and leave."""
    from underpaint.artifacts.run_log import RunLogInUse
    from underpaint.runtime.engines.context import EngineError
    from underpaint.runtime.evaluation.comparison import run

    try:
        what = "drawing" if len(log) < plan.size else "nothing left to draw"
        with progress(what, plan.size, len(log)) as advance:

            def report(state: "ComparisonProgress") -> None:
                last = state.last
                shown = "warming up" if last is None else f"{last.method:14s} {last.seconds:6.2f} s"
                advance(state.finished, shown)

            run(pipeline, plan, log, report)
    except KeyboardInterrupt:
        kept = f"{len(log)} of {plan.size} drawings are done"
        typer.echo(f"stopped: {kept}; the same command goes on with {log.path}", err=True)
        raise typer.Exit(STOPPED) from None
    except (RunLogInUse, EngineError) as error:  # the other writer, or a tree that no pass of the engine holds
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error


def record_all(
    pipeline: "Pipeline", plan: "ComparisonPlan", log: "DrawingLog", replays: "ReplayLog", prompts: int
) -> None:
    """Record how every method decodes the first `prompts` prompts; what is recorded already stays."""
    from underpaint.runtime.evaluation.replay import record_replays

    if not prompts:
        return
    try:
        with progress("recording replays", len(plan.methods) * min(prompts, len(plan.conditions))) as advance:
            record_replays(pipeline, plan, log, replays, prompts, lambda done, size: advance(done))
    except KeyboardInterrupt:
        typer.echo(f"stopped while recording replays; the same command goes on with {replays.path}", err=True)
        raise typer.Exit(STOPPED) from None
