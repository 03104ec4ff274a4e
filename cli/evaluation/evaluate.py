"""`underpaint evaluate`: runs of any size, by many workers, that go on after whatever stopped them."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from underpaint.cli.compare import DEFAULT_METHODS
from underpaint.cli.comparison_table import print_rows, title_of
from underpaint.cli.errors import STOPPED, bad_input
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.option_groups import grouped
from underpaint.cli.options import (
    MOST_THREADS,
    USUAL_PRESET,
    Backend,
    Guidance,
    Low,
    MethodSettings,
    Preset,
    Resolution,
    Seeds,
    Temperature,
    TopK,
    TopP,
    check_promises,
    read_names,
    read_sampling,
    settings_by_method,
)
from underpaint.cli.outputs import check_replaceable, output_folder
from underpaint.cli.terminal import Format, FormatOption, note, note_files, progress

if TYPE_CHECKING:
    from underpaint.runtime.evaluation.comparison import ComparisonProgress
    from underpaint.runtime.evaluation.file_conditions import PromptFile
    from underpaint.runtime.evaluation.jobs.plan import EvaluationPlan, ModelPlan, ModelSpec
    from underpaint.runtime.evaluation.jobs.shards import EvaluationFolder
    from underpaint.runtime.evaluation.jobs.workers import WorkerPool

_NO_FILE = PromptOptions()


@grouped
def evaluate(
    context: typer.Context,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Prompts in quotes; without any, and without --prompts, some are chosen."),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            help="A folder of models, or FOLDER@PIXELS; repeat for more. Default: the shipped one.", show_default=False
        ),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas between; AR is always among them.")] = (
        DEFAULT_METHODS
    ),
    preset: Preset = USUAL_PRESET,
    temperature: Temperature = 1.0,
    seeds: Seeds = 1,
    prompt_options: PromptOptions = _NO_FILE,
    setting: MethodSettings = None,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    resolution: Resolution = None,
    low: Low = None,
    backend: Backend = "cpu",
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Workers; 0 draws in this process. Default: the cores here.",
            min=0,
            max=MOST_THREADS,
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(help="Threads of a worker. Figures of other threads do not mix.", min=1, max=MOST_THREADS),
    ] = 1,
    on: Annotated[str, typer.Option(help="Where workers run: local (processes) or ray (actors, one a GPU).")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; default: a local one.", show_default=False)
    ] = None,
    likelihood: Annotated[
        bool,
        typer.Option(
            "--likelihood/--no-likelihood",
            help="Whether workers tell how likely the target holds the drawn tokens (temperature 1, nothing cut off): "
            "some passes a drawing.",
        ),
    ] = True,
    shard: Annotated[str, typer.Option(help="Draw part i of n only, i/n: for a batch system.")] = "1/1",
    out: Annotated[Path, typer.Option(parser=output_folder, help="Folder for pictures, tokens and figures.")] = Path(
        "runs/evaluate"
    ),
    form: FormatOption = Format.table,
) -> None:
    """Draw models by methods by prompts by seeds on many workers, and report speed, cost and quality beside AR.

    Pictures and tokens lie in shards of tar under --out. After a stop of any kind the same command goes on. Several of
    them may run on one folder. The figures are written once every part is there.
    """
    from underpaint.algos.plugins import named_by_environment
    from underpaint.runtime.evaluation.comparison import with_baseline
    from underpaint.runtime.evaluation.jobs.plan import EvaluationPlan, JobShare
    from underpaint.runtime.evaluation.jobs.run import count_missing
    from underpaint.runtime.evaluation.jobs.shards import EvaluationFolder
    from underpaint.runtime.files import check_file_writable, check_folder_writable

    figures = out / "evaluate.json"
    with bad_input():
        share = JobShare.parse(shard)
        names = with_baseline(read_names(methods))
        check_folder_writable(out)
        check_file_writable(figures)
        check_replaceable("the figures", figures)
        specs = [
            _spec(name, resolution, low, backend, threads, folders=len(models or ["one"])) for name in models or [""]
        ]

        file = None if prompts else prompt_options.file()

        def planned(spec: "ModelSpec") -> "ModelPlan":
            sampling = (temperature, guidance, top_k, top_p)
            asked = (preset, sampling, seeds, setting or [], prompts or [], prompt_options, file)
            return _plan_model(spec, names, *asked, out, inline=jobs == 0 and on == "local", likelihood=likelihood)

        plan = EvaluationPlan(tuple(planned(spec) for spec in specs))
        named = (*named_by_environment(), *((context.parent.params.get("plugin") if context.parent else None) or ()))
        pool = _pool(plan, on, jobs, address, tuple(str(one) for one in named))
        folder = EvaluationFolder(out, plan.to_dict())
    _draw(plan, folder, pool, share)
    missing = count_missing(plan, folder)
    if missing:
        note(f"part {share.index} of {share.count} is drawn; {missing} of {len(plan.jobs())} are missing", form)
        return
    _report(plan, folder, figures, form)


def _spec(name: str, resolution: int | None, low: Path | None, backend: str, threads: int, folders: int) -> "ModelSpec":
    """The model that `FOLDER@PIXELS` names, the shipped one where it is empty; ValueError for other texts."""
    from underpaint.runtime.evaluation.jobs.plan import ModelSpec
    from underpaint.zoo.load import FOLDER

    folder, at, pixels = name.rpartition("@")
    if not (at and pixels.isascii() and pixels.isdecimal()):
        folder, pixels = name, ""
    side = int(pixels) if pixels else resolution
    place = Path(folder) if folder else FOLDER
    if low is not None and folders > 1:
        raise ValueError("--low belongs to one model; leave it out, or evaluate the models one by one")
    return ModelSpec(
        str(place.absolute()), side, None if low is None else str(low.absolute()), backend=backend, threads=threads
    )


def _plan_model(
    spec: "ModelSpec",
    names: tuple[str, ...],
    preset: str,
    sampling: tuple[float, float | None, int | None, float | None],
    seeds: int,
    settings: list[str],
    prompts: list[str],
    prompt_options: PromptOptions,
    file: "PromptFile | None",
    out: Path,
    *,
    inline: bool,
    likelihood: bool,
) -> "ModelPlan":
    from underpaint.runtime.evaluation.comparison import ComparisonPlan, build_methods
    from underpaint.runtime.evaluation.jobs.costs import costs_file
    from underpaint.runtime.evaluation.jobs.plan import ModelPlan
    from underpaint.runtime.methods.registry import resolve

    pipeline = spec.open(own_threads=False)
    own = {name: tuple(texts) for name, texts in settings_by_method(settings, names).items()}
    params = read_sampling(*sampling, pipeline)
    chosen = choose(pipeline, prompts, prompt_options, file)
    configs = {name: resolve(name, params.temperature, None, own.get(name, ()), preset) for name in names}
    check_promises(configs.values())
    priced = [name for name, config in configs.items() if config.needs_costs]
    if priced:
        curve = costs_file(out, spec, pipeline, params, inline=inline, tell=_tell_of_costs)
        own |= {name: (*own.get(name, ()), f"costs={curve}") for name in priced}
    built = build_methods(pipeline, names, params.temperature, own, preset)
    comparison = ComparisonPlan(built, chosen.conditions, tuple(range(seeds)), params, preset)
    keys = tuple(prompt.key for prompt in chosen.prompts)
    return ModelPlan.make(spec, pipeline, comparison, own, chosen.source, keys, likelihood=likelihood)


def _tell_of_costs() -> None:
    with progress("measuring what passes cost on this machine, once"):
        pass


def _pool(
    plan: "EvaluationPlan", on: str, jobs: int | None, address: str | None, plugins: tuple[str, ...]
) -> "WorkerPool":
    """The workers asked for; ValueError where there are none of that kind."""
    from underpaint.algos.registry import suggest
    from underpaint.runtime.engines.context import usable_cores
    from underpaint.runtime.evaluation.jobs.drawer import JobDrawer
    from underpaint.runtime.evaluation.jobs.workers import (
        WORKER_KINDS,
        InlineWorker,
        ProcessWorkers,
        RayWorkers,
        load_ray,
    )

    if on not in WORKER_KINDS:
        raise ValueError(f"--on: there is no '{on}'; {suggest(on, WORKER_KINDS)}")
    if address is not None and on != "ray":
        raise ValueError("--address is of a Ray cluster; pass --on ray with it")
    tasks = plan.tasks()
    count = usable_cores() if jobs is None else jobs
    if on == "ray":
        load_ray()
        gpus = int(any(task.spec.backend != "cpu" for task in tasks))
        return RayWorkers(tasks, max(1, count), address, gpus, plugins)
    if count == 0:
        return InlineWorker(JobDrawer(tasks, plugins, own_threads=False))
    return ProcessWorkers(tasks, count, plugins)


def _draw(plan: "EvaluationPlan", folder: "EvaluationFolder", pool: "WorkerPool", share: Any) -> None:
    from underpaint.runtime.evaluation.jobs.run import draw_missing
    from underpaint.runtime.evaluation.jobs.workers import WorkerError

    size = len(share.of(plan.jobs()))
    try:
        with bad_input(WorkerError, OSError, ValueError), progress("drawing", size) as advance:

            def report(state: "ComparisonProgress") -> None:
                last = state.last
                advance(state.finished, "" if last is None else f"{last.method:14s} {last.seconds:6.2f} s")

            draw_missing(plan, folder, pool, report, share)
    except KeyboardInterrupt:
        typer.echo("stopped; what is drawn is kept, and the same command goes on", err=True)
        raise typer.Exit(STOPPED) from None


def _report(plan: "EvaluationPlan", folder: "EvaluationFolder", figures: Path, form: Format) -> None:
    from underpaint.artifacts.manifest import write_beside
    from underpaint.artifacts.results import results_text
    from underpaint.runtime.evaluation.jobs.run import evaluation_report
    from underpaint.runtime.evaluation.machine import typed_command

    found = evaluation_report(plan, folder, typed_command())
    write_beside(figures, results_text(found.results).encode())
    for model, rows in zip(plan.models, found.rows, strict=True):
        title = f"{Path(model.task.spec.folder).name}: {title_of(model.pipeline, model.comparison)}"
        print_rows(rows, model.pipeline, title, form=form)
    if found.differing:
        typer.echo(
            f"{found.differing} of {found.repeated} jobs that were drawn twice have other tokens the second time: "
            "machines that round otherwise drew them; the first by name of its shard counts",
            err=True,
        )
    note_files(
        (figures,), f"underpaint results leaderboard {shlex.quote(str(figures))} lists the methods by speed", form
    )
