"""`underpaint costs`: what passes cost on this machine, measured once and kept; and the curve for other commands."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.errors import STOPPED, bad_input
from underpaint.cli.options import Backend, Engines, Guidance, Resolution, TopK, TopP, open_pipeline, read_sampling

if TYPE_CHECKING:
    from underpaint.algos.rows import SamplingParams
    from underpaint.artifacts.cost_curve import CostCurveFile
    from underpaint.runtime.evaluation.comparison import ComparisonPlan
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.methods.method import ModelTables
    from underpaint.runtime.methods.method_config import MethodConfig
    from underpaint.runtime.pipeline import Pipeline


def costs(
    engines: Engines = None,
    resolution: Resolution = None,
    backend: Backend = "cpu",
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    renew: Annotated[bool, typer.Option("--renew", help="Measure again, whatever was kept.")] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Measure every family of methods too, as `simulate predict` needs them: minutes, not seconds.",
        ),
    ] = False,
    export: Annotated[Path | None, typer.Option(help="Write the curve's JSON here too.")] = None,
) -> None:
    """Show the cost curve of this machine: milliseconds of passes by their size. Measured on first use, then kept.

    The curve is kept in the user's cache folder (XDG_CACHE_HOME, or else ~/.cache) by processor, engine, models,
    threads and rows a pass. Methods that choose by cost read it there.
    """
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.costs.machine_curve import curve_path
    from underpaint.runtime.files import check_file_writable

    with bad_input():
        if export is not None:
            check_file_writable(export)
        pipeline = open_pipeline(engines, resolution, None, backend)
        sampling = read_sampling(1.0, guidance, top_k, top_p, pipeline.sampling)
        if pipeline.loaded_drafter is None:
            raise ValueError(
                f"{pipeline.folder} holds no drafter for {pipeline.entry.target}: export one into it first"
            )
    curve = _curve(pipeline, sampling, renew=renew, full=full)
    assert curve is not None
    _show(curve)
    path = curve_path(pipeline, sampling)
    typer.echo(f"Kept in {path}" if path.is_file() else f"Not kept: {path} cannot be written")
    if export is not None:
        write_beside(export, curve.content)
        typer.echo(str(export))


def curve_for(pipeline: "Pipeline", plan: "ComparisonPlan", log: "DrawingLog") -> "CostCurveFile | None":
    """The curve of this machine, for a comparison's record: measured only where something is left to draw."""
    from underpaint.runtime.costs.machine_curve import kept_curve

    if len(log) >= plan.size:
        return kept_curve(pipeline, plan.sampling)
    return _curve(pipeline, plan.sampling)


def tables_with_costs(
    pipeline: "Pipeline", configs: "Sequence[MethodConfig]", sampling: "SamplingParams"
) -> "ModelTables":
    """The pipeline's tables, with the costs of this machine where one of the methods chooses by them."""
    from underpaint.artifacts.cost_curve import engine_costs

    if not any(config.needs_costs for config in configs):
        return pipeline.tables
    curve = _curve(pipeline, sampling)
    return pipeline.tables if curve is None else pipeline.tables._replace(costs=engine_costs(curve))


def _curve(
    pipeline: "Pipeline", sampling: "SamplingParams", *, renew: bool = False, full: bool = False
) -> "CostCurveFile | None":
    """The kept curve, or one measured now with a bar that shows how far it is."""
    from underpaint.runtime.costs.machine_curve import curve_of
    from underpaint.runtime.evaluation.comparison import read_conditions

    try:
        if pipeline.loaded_drafter is None:
            return None
        conditions = [pipeline.high.encoder.encode(one) for one in read_conditions(pipeline, (), None)]
        with _progress() as report:
            return curve_of(pipeline, sampling, report, conditions, renew=renew, full=full)
    except KeyboardInterrupt:
        typer.echo("stopped: the cost curve was not finished, and nothing of it is kept", err=True)
        raise typer.Exit(STOPPED) from None


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring what passes cost on this machine (once)", total=None, visible=False)

        def report(done: int, most: int) -> None:
            progress.update(task, completed=done, total=most, visible=True)

        yield report


def _show(curve: "CostCurveFile") -> None:
    from underpaint.cli.terminal import console, table

    about = curve.measured_on
    title = f"{about.get('processor')}, {about.get('threads')} threads, {about.get('engine')}"
    shown = table(f"{curve.model.get('target')} and {curve.model.get('drafter')} on {title}")
    for head in (
        "nodes",
        "target pass, ms",
        "times one node",
        "in cycles, ms",
        "drafter pass, ms",
        "chain in one call, ms",
    ):
        shown.add_column(head, justify="right")
    within = curve.in_cycle
    verify, draft = dict(curve.verify_ms), dict(curve.draft_ms)
    inside, chains = (dict(within.target), dict(within.chain)) if within is not None else ({}, {})
    for size in sorted({*verify, *draft}):
        ratio = verify[size] / verify[1] if size in verify else None
        cells = (verify.get(size), ratio, inside.get(size), draft.get(size), chains.get(size))
        shown.add_row(str(size), *("" if cell is None else f"{cell:.3f}" for cell in cells))
    console().print(shown)
    typer.echo(f"On this machine {curve.knee.describe()}. Fingerprint {curve.fingerprint[:12]}.")
