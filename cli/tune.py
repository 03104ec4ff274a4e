"""`underpaint tune`: the fastest settings of methods for a folder of models on this machine."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from underpaint.cli.costs import curve_for, tables_with_costs
from underpaint.cli.errors import bad_input
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import check_promises, option_words, read_names, read_numbers, refuse_given
from underpaint.cli.options import Backend, Guidance, Low, Models, Resolution, TopK, TopP, grouped, read_sampling
from underpaint.cli.outputs import check_replaceable, output_folder
from underpaint.cli.runs import draw_run
from underpaint.cli.tables import Column, ResultTable, figure, show, with_interval
from underpaint.cli.terminal import Format, FormatOption, note, note_files

if TYPE_CHECKING:
    from underpaint.algos.rows import SamplingParams
    from underpaint.runtime.evaluation.drawing_log import DrawingKey
    from underpaint.runtime.methods.method import ModelTables
    from underpaint.runtime.methods.preset_file import PresetFile
    from underpaint.runtime.models import OpenModels
    from underpaint.runtime.protocol.settings_search import QualityBound
    from underpaint.runtime.protocol.tuning import Tuning

ALL = "all"
USUAL_PROMPTS = 32
USUAL_CANDIDATES = 16
_NO_FILE = PromptOptions()
Within = Annotated[
    float | None,
    typer.Option(
        help="How far the mean quality of a relaxed method may be below plain AR's, in nats of --measure. Default: "
        "try lossless settings only.",
        min=0.0,
        max=1e6,
        show_default=False,
    ),
]
MeasureOption = Annotated[
    str,
    typer.Option(
        help="Quality of pictures: judge (its log-probability of what the prompt says) or log-likelihood (the "
        "target's, per token)."
    ),
]
Candidates = Annotated[int, typer.Option(help="The largest number of settings to try per method.", min=1, max=200)]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options of the models and their sampling, except the temperature."""

    models: Models = None
    guidance: Guidance = None
    top_k: TopK = None
    top_p: TopP = None
    resolution: Resolution = None
    low: Low = None
    backend: Backend = "cpu"

    def open(self, live: LiveOptions) -> "OpenModels":
        """Open the folder's models or the live one; ValueError or OSError with a remedy if that fails."""
        return live.open_models(self.models, self.resolution, self.low, self.backend)

    def sampling(self, temperature: float, pipeline: "OpenModels") -> "SamplingParams":
        """Return the sampling settings of the target."""
        return read_sampling(temperature, self.guidance, self.top_k, self.top_p, pipeline)


_USUAL = ModelOptions()
_NO_LIVE = LiveOptions()


@grouped
def tune(
    context: typer.Context,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas, or all.")] = ALL,
    within: Within = None,
    measure: MeasureOption = "judge",
    temperatures: Annotated[
        str, typer.Option(help="Temperatures to tune for: one above 0, or 0, or both separated by a comma.")
    ] = "1,0",
    candidates: Candidates = USUAL_CANDIDATES,
    prompt_options: PromptOptions = _NO_FILE,
    models: ModelOptions = _USUAL,
    live: LiveOptions = _NO_LIVE,
    out: Annotated[Path, typer.Option(parser=output_folder, help="Folder for drawings and the preset file.")] = Path(
        "runs/tune"
    ),
    form: FormatOption = Format.table,
) -> None:
    """Find the fastest settings of methods for these models on this machine, and write them as a preset file.

    The search draws few prompts with many settings, keeps the best quarter, and draws more prompts with those, together
    with plain AR and the current settings. Without --within it tries only lossless settings. After an interruption the
    same command continues. Report results on other prompts: compare --preset FILE --prompts-skip N.
    """
    from underpaint.artifacts.files import check_file_writable, check_folder_writable
    from underpaint.runtime.protocol.settings_search import LEAST_PROMPTS
    from underpaint.runtime.protocol.tuning import PRESET, Tuning, judge_for

    preset = out / PRESET
    with bad_input():
        if within is None:
            refuse_given(context, ("measure",), "needs --within, the largest loss; add it, or leave it out")
        bound = read_bound(within, measure)
        heats = read_temperatures(temperatures)
        check_folder_writable(out)
        check_file_writable(preset)
        check_replaceable("the preset file", preset, "json")
        count = prompt_options.prompts_count or USUAL_PROMPTS
        if count < LEAST_PROMPTS:
            raise ValueError(f"--prompts-count: expected at least {LEAST_PROMPTS} prompts to tune on, got {count}")
        names = read_methods(methods)
        pipeline = models.open(live)
        samplings = [models.sampling(heat, pipeline) for heat in heats]
        chosen = choose(pipeline, (), prompts_to_choose(pipeline, prompt_options, count))
        if len(chosen.conditions) < LEAST_PROMPTS:
            raise ValueError(
                f"expected at least {LEAST_PROMPTS} prompts to tune on, got {len(chosen.conditions)}; name a file of "
                "more: --prompts FILE"
            )
        conditions, judge = chosen.conditions, judge_for(bound, pipeline, chosen.conditions)
        tables = checked_tables(pipeline, names, samplings)
        tuning = Tuning.of(
            pipeline, names, samplings, conditions, bound, judge, tables, candidates, out, named=methods != ALL
        )
        about = {"skip": prompt_options.prompts_skip, "count": len(chosen.conditions), **chosen.source}
    preset_file = run_tuning(tuning, about, form)
    show([preset_table(preset_file, bound)], form)
    heat = max(heats)
    at_heat = {name: one.sampled if heat else one.greedy for name, one in preset_file.methods.items()}
    tuned = [name for name, one in at_heat.items() if one is not None and one.temperature == heat]
    if tuned:
        named = ["--preset", str(preset), "--methods", ",".join(tuned)]
        options = [
            *option_words(models),
            *option_words(live),
            "--temperature",
            f"{heat:g}",
            *_other_prompts(prompt_options, count),
        ]
        then = shlex.join(["underpaint", "compare", *named, *options])
        note_files((preset,), f"{then} reports them on other prompts", form)


def _other_prompts(options: PromptOptions, count: int) -> list[str]:
    """Return options that choose other prompts than the `count` prompts of a tuning; OTHER stands for another file."""
    if options.prompts_file is not None and options.prompts_count is None:
        return ["--prompts", "OTHER"]
    return option_words(replace(options, prompts_count=None, prompts_skip=options.prompts_skip + count))


def read_bound(within: float | None, measure: str) -> "QualityBound | None":
    """Return the quality bound of the options, None without `within`; ValueError if they make no bound."""
    from underpaint.algos.registry import suggest
    from underpaint.runtime.protocol.settings_search import MEASURES, QualityBound

    choice = next((one for one in MEASURES if one == measure), None)
    if choice is None:
        raise ValueError(f"--measure: there is no '{measure}'; {suggest(measure, MEASURES)}")
    if within is not None and isnan(within):
        raise ValueError("--within: expected a number from 0 to 1,000,000, got nan")
    return None if within is None else QualityBound(choice, within)


def read_temperatures(text: str) -> tuple[float, ...]:
    """Return the temperatures of `--temperatures`; ValueError for more than one at 0 or more than one above."""
    from underpaint.algos.rows import SamplingParams

    heats = read_numbers("--temperatures", text, lambda part: SamplingParams(temperature=float(part)).temperature)
    if len(heats) != len({heat == 0 for heat in heats}):
        raise ValueError(
            f"--temperatures: expected 0, one temperature above 0, or both, got {text!r}; a preset has settings for 0 "
            "and for all above"
        )
    return heats


def read_methods(text: str) -> tuple[str, ...]:
    """Return the methods of `--methods` without plain AR; all registered methods for `ALL`."""
    from underpaint.runtime.evaluation.comparison import BASELINE
    from underpaint.runtime.methods.registry import METHODS, resolve

    names = [spec.name for spec in METHODS] if text == ALL else list(dict.fromkeys(read_names(text)))
    names = [name for name in names if name != BASELINE]
    if not names:
        raise ValueError(f"--methods: expected methods other than {BASELINE}, got {text!r}; pass all for every method")
    for name in names:
        resolve(name, 1.0)
    return tuple(names)


def checked_tables(
    pipeline: "OpenModels", names: "Sequence[str]", samplings: "Sequence[SamplingParams]", *, measure: bool = True
) -> "ModelTables":
    """Return the models' tables, with pass costs if one of the methods chooses by them.

    Raises ValueError if a method's rule breaks its promise, or if such costs are not kept and not to be measured.
    """
    from underpaint.runtime.methods.registry import resolve

    configs = [resolve(name, sampling.temperature) for name in names for sampling in samplings]
    check_promises(configs)
    needed = not measure and pipeline.loaded_drafter is not None and any(config.needs_costs for config in configs)
    if needed and curve_for(pipeline, samplings[0], measure=False) is None:
        raise ValueError(
            "--no-draw: expected the cost curve by which methods chose while drawing, and none is kept here; "
            "leave --no-draw out, or leave methods such as roofline out"
        )
    return tables_with_costs(pipeline, configs, samplings[0])


def prompts_to_choose(pipeline: "OpenModels", options: PromptOptions, count: int) -> PromptOptions:
    """Return the prompt options: those of a file, or else with `count` of the models' own prompts."""
    return replace(options, prompts_count=count) if options.prompts_file is None else options


def run_tuning(tuning: "Tuning", about: "dict[str, Any]", form: Format) -> "PresetFile":
    """Tune every method, and write the preset file after each; finished drawings are not drawn again.

    A method is not tuned again at a temperature for which the preset file has its settings.

    Args:
        tuning: The methods, and how to search their settings.
        about: Description of the prompts, for the preset file.
        form: Output format, which decides where notes are printed.
    """
    from underpaint.artifacts.workers import ThisProcess
    from underpaint.runtime.evaluation.drawer import OpenedDrawer
    from underpaint.runtime.evaluation.machine import typed_command
    from underpaint.runtime.methods.preset_file import ChosenMethod, ChosenSettings, write_preset

    with bad_input():
        preset = tuning.begin(about, typed_command())
    for name, why in tuning.skipped.items():
        note(f"{name} is left out: {why}", form)
    for name in tuning.names:
        before = preset.methods.get(name, ChosenMethod())
        chosen: dict[str, ChosenSettings] = {}
        for sampling in tuning.samplings:
            heat = sampling.temperature
            kind, done = ("greedy", before.greedy) if heat == 0 else ("sampled", before.sampled)
            if done is not None and done.temperature == heat:
                continue
            with bad_input():
                search = tuning.search(name, sampling)
                log = search.run.open_log(tuning.folder(name, heat))
            workers = ThisProcess(OpenedDrawer(tuning.pipeline, search.plan))

            def draw(
                keys: "Sequence[DrawingKey]", what: str, log: Any = log, workers: Any = workers, heat: float = heat
            ) -> None:
                draw_run(keys, log, workers, what=f"temperature {heat:g}, {what}")

            selection = search.select(log, draw)
            if selection is None:
                note(f"{name} is left out at temperature {heat:g}: none of its settings is within the bound", form)
            else:
                chosen[kind] = selection
        if chosen:
            preset = replace(preset, methods={**preset.methods, name: replace(before, **chosen)})
            write_preset(tuning.preset_path, preset)
    return preset


def preset_table(preset: "PresetFile", bound: "QualityBound | None") -> ResultTable:
    """Return a table of the chosen settings, with one row per method and temperature."""
    rows = []
    for name, method in preset.methods.items():
        for one in (method.sampled, method.greedy):
            if one is not None:
                settings = (
                    ", ".join([*([one.preset] if one.preset == "paper" else []), *one.settings]) or "as they were"
                )
                rows.append(
                    {
                        "method": name,
                        "temperature": one.temperature,
                        "lossless": one.lossless,
                        "settings": settings,
                        **one.measured,
                    }
                )
    quality = () if bound is None else (with_interval("quality_over_ar", "quality less\nAR's (95 %)", "+.3f"),)
    columns = (
        Column("method"),
        figure("temperature", "temper-\nature", "g"),
        Column("lossless", "loss-\nless"),
        with_interval("speedup", "speedup\n(95 %)", ".2f"),
        with_interval("over_current", "over the current\nsettings (95 %)", ".2f"),
        *quality,
        Column("settings", prose=True),
    )
    return ResultTable("the fastest settings", columns, rows)
