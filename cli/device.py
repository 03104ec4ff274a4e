"""`--backend device`: the whole cycle on a GPU, or slowly in Triton's interpreter on the CPU."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from underpaint.artifacts.install import install_hint
from underpaint.cli.errors import BAD_INPUT, bad_input, continues, on_interrupt
from underpaint.cli.options import DeviceOptions
from underpaint.cli.terminal import is_quiet, progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from underpaint.algos.rows import SamplingParams
    from underpaint.runtime.conditions import Condition
    from underpaint.runtime.device.drawing_plan import DevicePlan
    from underpaint.runtime.drawing import Drawing
    from underpaint.runtime.evaluation.comparison import ComparisonPlan
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.live.device import LivePlan
    from underpaint.runtime.methods.method import DecodingMethod
    from underpaint.runtime.models import OpenModels

DEFAULT_METHODS: Final = "ar,speculative,eagle2,adt-control-chain,adt-control-tree,adt,lantern,lantern++,adt+lantern"
"""The default methods of a comparison that have a device form."""
_MODE: Final = "UNDERPAINT_TRITON"
"""The environment variable that `runtime.device.launch` reads at import."""


class PictureJob(NamedTuple):
    """One picture to draw: its condition, the seed of its noise, and its output file."""

    condition: "Condition"
    seed: int
    path: "Path"


def check_device(name: str | None) -> str:
    """Return the device name, by default the first GPU; ValueError if a package or the device is missing."""
    name = name or "cuda"
    with imported(name):
        from underpaint.runtime.device.devices import open_device
    open_device(name)
    return name


def plan_on_device(
    pipeline: "OpenModels",
    methods: "Sequence[DecodingMethod]",
    sampling: "SamplingParams",
    options: DeviceOptions,
    conditions: "Sequence[Condition]",
    eager: bool = False,
) -> "DevicePlan | LivePlan":
    """Return the checked plan of the drawings on a device.

    Args:
        pipeline: The opened models.
        methods: Methods to draw with.
        sampling: The sampling parameters.
        options: The options of the device.
        conditions: All conditions that will be drawn.
        eager: Whether `ar-eager` draws too, if the models are those of a folder.

    Raises:
        ValueError: A package, the device, a device form or memory is missing.
    """
    name = check_device(options.device)
    from underpaint.runtime.device.devices import check_memory, open_device
    from underpaint.runtime.device.drawing_plan import plan_drawing

    batch, forward, folder = 1 if options.batch is None else options.batch, options.forward, pipeline.folder_models()
    plan: DevicePlan | LivePlan
    if folder is not None:
        plan = plan_drawing(folder, methods, sampling, open_device(name), batch, forward or "torch", eager=eager)
    else:
        from underpaint.runtime.live.device import plan_live
        from underpaint.runtime.live.pipeline import LivePipeline

        assert isinstance(pipeline, LivePipeline)
        plan = plan_live(pipeline, methods, sampling, conditions, batch)
        check_memory(plan.device, plan.needed)
        for method, gap in plan.gaps.items():
            typer.echo(f"{method} is drawn by the host's loop: {gap}", err=True)
    if name == "cpu":
        typer.echo("--device cpu interprets the device's program: it is slow, and its times mean nothing", err=True)
    return plan


def describe(plan: "DevicePlan | LivePlan") -> dict[str, Any]:
    """Describe the device for a record of results."""
    import torch

    record: dict[str, Any] = {"name": str(plan.device), "batch": plan.batch, "torch": torch.__version__}
    if plan.device.type == "cuda":
        record["name"] = torch.cuda.get_device_name(plan.device)
    if plan.forward != "torch":
        record["forward"] = plan.forward
    return record


@contextmanager
def imported(name: str) -> Iterator[None]:
    """Allow imports of the device runtime, interpreted for the CPU. ValueError if a package is missing."""
    before = os.environ.get(_MODE)
    if name == "cpu":
        os.environ[_MODE] = "interpret"
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("underpaint"):
            raise
        message = (
            f"--backend device needs {error.name}; install it with: {install_hint('device')}"
            if error.name
            else str(error)
        )
        raise ValueError(message) from error
    finally:
        if before is None:
            os.environ.pop(_MODE, None)
        else:
            os.environ[_MODE] = before


def draw_all_on_device(device: "DevicePlan | LivePlan", plan: "ComparisonPlan", log: "DrawingLog") -> None:
    """Draw the part of the plan that `log` lacks; on Ctrl-C, print the progress and exit."""
    from underpaint.artifacts.run_log import RunLogInUse
    from underpaint.runtime.device.comparison import run_on_device
    from underpaint.runtime.device.forms import DeviceError
    from underpaint.runtime.engines.context import EngineError

    what = "drawing" if len(log) < plan.size else "nothing left to draw"
    with (
        on_interrupt(lambda: continues(f"{len(log)} of {plan.size} drawings are done", log.path)),
        bad_input(RunLogInUse, EngineError, DeviceError),
        progress(what, plan.size, len(log)) as advance,
    ):
        if len(log) < plan.size:
            run_on_device(device.open(), plan, log, lambda done, what: advance(done, what))


def draw_on_device(
    device: "DevicePlan | LivePlan",
    method: "DecodingMethod",
    sampling: "SamplingParams",
    pictures: "Sequence[PictureJob]",
    finish: "Callable[[PictureJob, Drawing], None]",
    plain: "DecodingMethod | None" = None,
) -> None:
    """Draw pictures batch by batch and pass each to `finish`; exit with code 2 if any of them failed.

    Args:
        device: The plan of the drawings.
        method: The method to draw with.
        sampling: The sampling parameters.
        pictures: The pictures.
        finish: Callback for each drawn picture.
        plain: Plain autoregression, used instead of the method if a trial finds it faster; None skips the trial.
    """
    from underpaint.runtime.device.comparison import span
    from underpaint.runtime.device.forms import DeviceError
    from underpaint.runtime.device.trial import draw_by_faster, trial_result
    from underpaint.runtime.drawing import Drawing, ImageTask
    from underpaint.runtime.engines.context import EngineError

    finished, failed = 0, list[str]()
    with (
        on_interrupt(lambda: f"stopped: {finished} of {len(pictures)} pictures are written and kept"),
        bad_input(EngineError, DeviceError),
        progress("drawing", len(pictures)) as advance,
    ):
        tasks = [ImageTask(one.condition, one.seed) for one in pictures]

        def watch(cells: list[int]) -> None:
            advance(finished, f"{span(cells)} of {device.pipeline.grid.cells} cells")

        def report(drafted: float, undrafted: float, faster: str) -> None:
            if not is_quiet():
                typer.echo(trial_result(method.name, drafted, undrafted, faster), err=True)

        for number, outcome in draw_by_faster(device.open(), method, plain, sampling, tasks, watch, report):
            one = pictures[number]
            if isinstance(outcome, Drawing):
                finish(one, outcome)
                finished += 1
            else:
                failed.append(f"{one.path}: {outcome.error}")
            advance(finished)
    if failed:
        reasons = "; ".join(failed)
        typer.echo(f"error: {len(failed)} pictures were not drawn, the others are written: {reasons}", err=True)
        raise typer.Exit(BAD_INPUT)
