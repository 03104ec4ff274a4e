"""Shared by commands that draw runs: their options, drawing with a progress bar, and recording."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.costs import tables_with_costs
from underpaint.cli.errors import bad_input, continues, on_interrupt
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import check_promises
from underpaint.cli.options import (
    NO_DEVICE,
    Backend,
    DeviceChoice,
    Guidance,
    Low,
    MethodSettings,
    Preset,
    Resolution,
    Seeds,
    Temperature,
    TopK,
    TopP,
    check_costs,
    check_preset,
    checked_temperature,
    read_preset,
    read_sampling,
)
from underpaint.cli.terminal import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from underpaint.algos.rows import SamplingParams
    from underpaint.artifacts.workers import Workers
    from underpaint.runtime.evaluation.comparison import ComparisonPlan, Variant
    from underpaint.runtime.evaluation.drawer import RunProgress
    from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog, DrawnJob
    from underpaint.runtime.evaluation.file_conditions import ChosenPrompts
    from underpaint.runtime.evaluation.plan import RunPlan
    from underpaint.runtime.evaluation.replay import ReplayLog
    from underpaint.runtime.methods.preset_file import PresetFile
    from underpaint.runtime.models import OpenModels


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of drawing: the methods' settings, the sampling, and the backend of the models."""

    preset: Preset = None
    setting: MethodSettings = None
    temperature: Temperature = None
    seeds: Seeds = 1
    guidance: Guidance = None
    top_k: TopK = None
    top_p: TopP = None
    resolution: Resolution = None
    low: Low = None
    backend: Backend = "cpu"
    no_costs: Annotated[
        bool,
        typer.Option(
            "--no-costs",
            help="Do not measure the cost curve: methods that choose by costs (roofline, sequoia) use their defaults.",
        ),
    ] = False

    def checked_temperature(self) -> float:
        """See `options.checked_temperature`."""
        return checked_temperature(self.temperature)

    def open(
        self, models: Path | None, live: LiveOptions, *, on_device: bool = False, device: DeviceChoice = NO_DEVICE
    ) -> "tuple[OpenModels, SamplingParams]":
        """Open a folder's models or a live one, with their sampling; ValueError or OSError with a remedy on failure."""
        pipeline = live.open_models(models, self.resolution, self.low, self.backend, on_device, device)
        return pipeline, self.sampling(pipeline)

    def check_settings(self, variants: "Sequence[Variant]") -> None:
        """Raise ValueError for an unknown method, setting or preset, before any model is opened."""
        from underpaint.runtime.methods.registry import TUNED, resolve

        preset, temperature = TUNED if self.preset is None else read_preset(self.preset), self.checked_temperature()
        for one in variants:
            resolve(one.method, temperature, None, one.settings, preset)

    def plan(
        self, pipeline: "OpenModels", sampling: "SamplingParams", variants: "Sequence[Variant]", chosen: "ChosenPrompts"
    ) -> "ComparisonPlan":
        """Return the drawing plan, whose methods do not have the pass costs yet.

        Raises ValueError for a preset file or a cost curve of other models, or a rule that breaks its promise.
        """
        from underpaint.runtime.evaluation.comparison import ComparisonPlan, build_methods

        preset = self.preset_of(pipeline)
        methods = build_methods(pipeline, variants, sampling.temperature, preset)
        check_promises(method.config for method in methods)
        check_costs(self.setting or (), pipeline)
        return ComparisonPlan(methods, chosen.conditions, tuple(range(self.seeds)), sampling, preset)

    def with_costs(self, plan: "ComparisonPlan", pipeline: "OpenModels") -> "ComparisonPlan":
        """Return the plan with this machine's costs, measured now if a method chooses by them and none are kept."""
        configs = [method.config for method in plan.methods]
        return plan.with_tables(tables_with_costs(pipeline, configs, plan.sampling, self.no_costs))

    def preset_of(self, pipeline: "OpenModels") -> "str | PresetFile":
        """Return the chosen preset, or the usual one of these models; ValueError for a preset file of other models."""
        from underpaint.runtime.methods.registry import usual_preset

        preset = usual_preset(pipeline) if self.preset is None else read_preset(self.preset)
        check_preset(preset, pipeline)
        return preset

    def sampling(self, pipeline: "OpenModels") -> "SamplingParams":
        """Return the sampling settings of the models."""
        return read_sampling(self.temperature, self.guidance, self.top_k, self.top_p, pipeline)


def draw_run(
    keys: "Sequence[DrawingKey]",
    log: "DrawingLog",
    workers: "Workers[DrawingKey, DrawnJob]",
    size: int | None = None,
    what: str = "drawing",
) -> None:
    """Draw the `keys` that the log lacks; on Ctrl-C, print the progress and exit.

    Args:
        keys: The drawings to make.
        log: The finished drawings; new ones are added.
        workers: The workers that draw.
        size: Number of drawings in the whole run; None if it is not known yet.
        what: Text of the progress bar.
    """
    from underpaint.artifacts.run_log import OtherRun, RunLogInUse
    from underpaint.artifacts.workers import WorkerError
    from underpaint.runtime.engines.context import EngineError
    from underpaint.runtime.evaluation.drawer import draw_missing

    missing = sum(key not in log for key in keys)
    # Another process that writes the log, or a tree too large for the engine's passes, shows only while drawing.
    with (
        on_interrupt(
            lambda: continues(f"{len(log)}{'' if size is None else f' of {size}'} drawings are done", log.path)
        ),
        bad_input(RunLogInUse, OtherRun, EngineError, WorkerError),
        progress(what if missing else f"{what}: nothing left to draw", len(keys), len(keys) - missing) as advance,
    ):

        def report(state: "RunProgress") -> None:
            last = state.last
            advance(state.finished, "" if last is None else f"{last.method:14s} {last.seconds:6.2f} s")

        draw_missing(keys, log, workers, report)


def record_all(plan: "RunPlan", log: "DrawingLog", replays: "ReplayLog", prompts: int) -> None:
    """Record how every method decodes the first `prompts` prompts; existing records stay."""
    from underpaint.runtime.evaluation.replay import record_replays

    if not prompts:
        return
    comparison = plan.models[0].comparison
    most = len(comparison.methods) * min(prompts, len(comparison.conditions))
    with (
        on_interrupt(lambda: f"stopped while recording replays; the same command continues {replays.path}"),
        progress("recording replays", most) as advance,
    ):
        record_replays(plan, log, replays, prompts, lambda done, size: advance(done))
