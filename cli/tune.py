"""`underpaint tune`: the fastest settings of methods for a folder of models on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from underpaint.cli.costs import tables_with_costs
from underpaint.cli.errors import bad_input
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveOptions
from underpaint.cli.options import (
    Backend,
    Guidance,
    Low,
    Models,
    Resolution,
    TopK,
    TopP,
    check_promises,
    grouped,
    read_names,
    read_numbers,
    read_sampling,
)
from underpaint.cli.outputs import check_replaceable, output_folder
from underpaint.cli.runs import draw_run
from underpaint.cli.terminal import (
    Column,
    Format,
    FormatOption,
    ResultTable,
    figure,
    note,
    note_files,
    show,
    with_interval,
)

if TYPE_CHECKING:
    from underpaint.algos.rows import SamplingParams
    from underpaint.runtime.conditions import Condition
    from underpaint.runtime.evaluation.drawing_log import DrawingKey
    from underpaint.runtime.evaluation.picture_judge import PictureJudge
    from underpaint.runtime.evaluation.tuning import QualityBound
    from underpaint.runtime.methods.method import ModelTables
    from underpaint.runtime.methods.preset_file import ChosenMethod, PresetFile
    from underpaint.runtime.models import OpenModels

PRESET = "preset.json"
ALL = "all"
USUAL_PROMPTS = 32
USUAL_CANDIDATES = 16
_NO_FILE = PromptOptions()
Within = Annotated[
    float | None,
    typer.Option(
        help="How far a relaxed method's pictures may be below plain AR's, in nats of --measure; lossless settings "
        "need no bound.",
        min=0.0,
        show_default=False,
    ),
]
MeasureOption = Annotated[
    str,
    typer.Option(
        help="Quality of pictures: judge (its log-probability of the prompt's attributes) or log-likelihood (the "
        "target's, of a token)."
    ),
]
Candidates = Annotated[int, typer.Option(help="Settings tried of each method, at most.", min=1, max=200)]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The models that draw, and how they are sampled but for the temperature."""

    models: Models = None
    guidance: Guidance = None
    top_k: TopK = None
    top_p: TopP = None
    resolution: Resolution = None
    low: Low = None
    backend: Backend = "cpu"

    def open(self, live: LiveOptions) -> "OpenModels":
        """The folder's models, or the live one; ValueError or OSError says what to do."""
        return live.open_models(self.models, self.resolution, self.low, self.backend)

    def sampling(self, temperature: float, pipeline: "OpenModels") -> "SamplingParams":
        """How the target is sampled."""
        return read_sampling(temperature, self.guidance, self.top_k, self.top_p, pipeline)


_USUAL = ModelOptions()
_NO_LIVE = LiveOptions()


@grouped
def tune(
    methods: Annotated[str, typer.Option(help="Methods, with commas between, or all.")] = ALL,
    within: Within = None,
    measure: MeasureOption = "judge",
    temperatures: Annotated[
        str, typer.Option(help="One temperature above 0, or 0, or both with a comma between.")
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

    The search draws few prompts by many settings, keeps the best quarter, and draws more prompts, always beside plain
    AR and the current settings. Without --within only lossless settings are tried. After a stop the same command goes
    on. Report the result on other prompts: compare --preset FILE --prompts-skip N.
    """
    from underpaint.artifacts.files import check_file_writable, check_folder_writable
    from underpaint.runtime.evaluation.tuning import LEAST_PROMPTS

    preset = out / PRESET
    with bad_input():
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
        tuning = Tuning.of(pipeline, names, samplings, chosen.conditions, bound, candidates, out, form)
        about = {"skip": prompt_options.prompts_skip, "count": len(chosen.conditions), **chosen.source}
    found = tuning.run(about)
    show([found_table(found, bound)], form)
    if found.methods:
        named = ",".join(found.methods)
        then = f"underpaint compare --preset {preset} --methods {named} --prompts-skip {about['skip'] + count}"
        note_files((preset,), f"{then} reports them on other prompts", form)


def read_bound(within: float | None, measure: str) -> "QualityBound | None":
    """The bound of quality that options ask for; ValueError where they make none."""
    from underpaint.algos.registry import suggest
    from underpaint.runtime.evaluation.tuning import MEASURES, QualityBound

    known = next((one for one in MEASURES if one == measure), None)
    if known is None:
        raise ValueError(f"--measure: there is no '{measure}'; {suggest(measure, MEASURES)}")
    return None if within is None else QualityBound(known, within)


def read_temperatures(text: str) -> tuple[float, ...]:
    """The temperatures that `--temperatures` names; ValueError unless each preset of a method is asked for once."""
    from underpaint.algos.rows import SamplingParams

    heats = read_numbers("--temperatures", text, lambda part: SamplingParams(temperature=float(part)).temperature)
    if len(heats) != len({heat == 0 for heat in heats}):
        raise ValueError(
            f"--temperatures: expected 0, one temperature above 0, or both, got {text!r}; a preset has settings for 0 "
            "and for all above"
        )
    return heats


def read_methods(text: str) -> tuple[str, ...]:
    """The methods that `--methods` names, without plain AR; all registered ones where it says so."""
    from underpaint.runtime.evaluation.comparison import BASELINE
    from underpaint.runtime.methods.registry import METHODS, resolve

    names = [spec.name for spec in METHODS] if text == ALL else list(dict.fromkeys(read_names(text)))
    names = [name for name in names if name != BASELINE]
    if not names:
        raise ValueError(f"--methods: expected methods beside {BASELINE}, got {text!r}; all stands for every one")
    for name in names:
        resolve(name, 1.0)
    return tuple(names) if text != ALL else (ALL, *names)


def prompts_to_choose(pipeline: "OpenModels", asked: PromptOptions, count: int) -> PromptOptions:
    """The prompts that are asked for, or else so many of the models' own."""
    from dataclasses import replace

    return replace(asked, prompts_count=count) if asked.prompts_file is None else asked


@dataclass(slots=True)
class Tuning:
    """Methods to tune on one folder of models.

    Attributes:
        names: The methods that these models draw by, at the temperatures that `samplings` have.
        skipped: Of the methods that nobody named, those that the models refuse, with the reason.
        counts: By method and temperature, how many of the conditions it is tuned on; all where it is not named.
    """

    pipeline: "OpenModels"
    names: tuple[str, ...]
    samplings: "Sequence[SamplingParams]"
    conditions: "Sequence[Condition]"
    bound: "QualityBound | None"
    judge: "PictureJudge | None"
    tables: "ModelTables"
    candidates: int
    out: Path
    form: Format
    skipped: "dict[str, str]"
    counts: "dict[tuple[str, float], int]" = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pipeline: "OpenModels",
        names: "Sequence[str]",
        samplings: "Sequence[SamplingParams]",
        conditions: "Sequence[Condition]",
        bound: "QualityBound | None",
        candidates: int,
        out: Path,
        form: Format,
    ) -> "Tuning":
        """Check everything before the first drawing; ValueError says what to do. See `read_methods` for names."""
        from underpaint.runtime.evaluation.picture_judge import judge_of
        from underpaint.runtime.methods.registry import resolve

        judge = judge_of(pipeline)
        if bound is not None and bound.measure == "judge":
            if judge is None:
                raise ValueError(
                    f"--within: {pipeline.folder} holds no judge to measure quality by; pass --measure log-likelihood"
                )
            if not all(condition.attributes for condition in conditions):
                raise ValueError(
                    "--within: the judge needs prompts whose attributes it knows, and some of these have none; pass "
                    "--measure log-likelihood"
                )
        named = [name for name in names if name != ALL]
        configs = [resolve(name, sampling.temperature) for name in named for sampling in samplings]
        check_promises(configs)
        tables = tables_with_costs(pipeline, configs, samplings[0])
        tuning = cls(pipeline, (), samplings, conditions, bound, judge, tables, candidates, out, form, skipped={})
        for name in named:
            why = tuning._refusal(name)
            if why and ALL not in names:
                raise ValueError(f"method '{name}': {why}")
            if why:
                tuning.skipped[name] = why
            else:
                tuning.names = (*tuning.names, name)
        if not tuning.names:
            raise ValueError(f"none of the methods can be tuned; the first: {next(iter(tuning.skipped.items()))}")
        return tuning

    def _refusal(self, name: str) -> str:
        """Why a method is not tuned on these models; nothing where it is."""
        from underpaint.runtime.methods.registry import build_method, resolve

        for sampling in self.samplings:
            try:
                method = build_method(name, resolve(name, sampling.temperature), self.tables)
                method.open(self.pipeline, self.conditions[0], sampling)
            except ValueError as error:
                return str(error)
            if not method.lossless and self.bound is None:
                return "it is relaxed, so tuning it needs a bound of quality; pass --within"
        return ""

    def run(self, about: "dict[str, Any]") -> "PresetFile":
        """Tune every method, and write the preset file after each; what is drawn already is not drawn again.

        Args:
            about: The prompts, for the file.
        """
        from underpaint.artifacts.workers import ThisProcess
        from underpaint.runtime.evaluation.drawer import OpenedDrawer
        from underpaint.runtime.evaluation.machine import describe_machine, typed_command
        from underpaint.runtime.evaluation.tuning import Search
        from underpaint.runtime.evaluation.tuning import candidates as candidates_of
        from underpaint.runtime.methods.preset_file import ChosenMethod, PresetFile, write_preset

        bound = None if self.bound is None else self.bound._asdict()
        tuning = {"prompts": about, "within": bound, "candidates": self.candidates}
        path = self.out / PRESET
        with bad_input():
            methods = self._finished(path, tuning)
        head = (str(path), typed_command(), describe_machine(), dict(self.pipeline.fingerprint()), tuning)
        for name, why in self.skipped.items():
            note(f"{name} is left out: {why}", self.form)
        for name in (name for name in self.names if name not in methods):
            chosen = {}
            for sampling in self.samplings:
                heat, lossless = sampling.temperature, self.bound is None
                tried = candidates_of(
                    name,
                    self.pipeline,
                    sampling,
                    self.tables,
                    self.conditions[0],
                    self.candidates,
                    lossless=lossless,
                )
                drawn = self.conditions[: self.counts.get((name, heat))]
                search = Search.of(name, tried, self.pipeline, sampling, drawn, self.judge, self.bound)
                folder = self.out / f"{name.replace(':', '_')}-t{heat:g}"
                with bad_input():
                    log = search.run.open_log(folder)
                workers = ThisProcess(OpenedDrawer(self.pipeline, search.plan))

                def draw(keys: "Sequence[DrawingKey]", what: str, log: Any = log, workers: Any = workers) -> None:
                    draw_run(
                        keys, log, workers, what=f"temperature {log.settings['models'][0]['temperature']:g}, {what}"
                    )

                found = search.select(log, draw)
                if found is None:
                    note(
                        f"{name} is left out at temperature {heat:g}: none of its settings is within the bound",
                        self.form,
                    )
                chosen["greedy" if heat == 0 else "sampled"] = found
            if any(chosen.values()):
                methods[name] = ChosenMethod(**chosen)
                write_preset(path, PresetFile(*head, methods))
        return PresetFile(*head, methods)

    def _finished(self, path: Path, tuning: "dict[str, Any]") -> "dict[str, ChosenMethod]":
        """What the preset file of an earlier start holds; ValueError where it is of another tuning."""
        from underpaint.runtime.methods.preset_file import read_preset_file

        if not path.exists():
            return {}
        before = read_preset_file(path)
        before.check(self.pipeline.fingerprint(), str(self.pipeline.folder))
        differs = [name for name in tuning if before.tuning.get(name) != tuning[name]]
        if differs:
            raise ValueError(
                f"{path} is of another tuning (it differs in {', '.join(differs)}); repeat that command to go on with "
                "it, or choose another folder: --out"
            )
        for name, method in before.methods.items():
            for one in filter(None, (method.sampled, method.greedy)):
                before.config(name, one.temperature)
        return dict(before.methods)


def found_table(found: "PresetFile", bound: "QualityBound | None") -> ResultTable:
    """The chosen settings, a row for each method and temperature."""
    rows = []
    for name, method in found.methods.items():
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
        with_interval("speedup", "speed-up\n(95 %)", ".2f"),
        with_interval("over_current", "over the current\nsettings (95 %)", ".2f"),
        *quality,
        Column("settings", prose=True),
    )
    return ResultTable("the fastest settings", columns, rows)
