"""`underpaint evaluate`: runs of any size on many workers, which continue after any interruption."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.compare import DEFAULT_METHODS, LIVE_METHODS
from underpaint.cli.comparison_table import note_judge, table_of, title_of
from underpaint.cli.errors import bad_input
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import check_ray_gpu, read_names, refuse_given, settings_by_method
from underpaint.cli.options import DEVICE, MOST_THREADS, grouped
from underpaint.cli.outputs import check_replaceable, output_folder
from underpaint.cli.runs import RunOptions, draw_run
from underpaint.cli.tables import ResultTable, show
from underpaint.cli.terminal import Format, FormatOption, note, note_files, progress

if TYPE_CHECKING:
    from underpaint.artifacts.workers import Workers
    from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog, DrawnJob
    from underpaint.runtime.evaluation.file_conditions import PromptFile
    from underpaint.runtime.evaluation.plan import ModelPlan, ModelSource, ModelSpec, RunPlan
    from underpaint.runtime.evaluation.report import EvaluationReport

_NO_FILE = PromptOptions()
_NO_LIVE = LiveOptions()
_USUAL = RunOptions()


@grouped
def evaluate(
    context: typer.Context,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Prompts in quotes. Default: built-in prompts."),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            help="A folder of models, or FOLDER@PIXELS; repeat for more. Default: the shipped models.",
            show_default=False,
        ),
    ] = None,
    live: LiveOptions = _NO_LIVE,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas. Plain AR is always added.")] = (
        DEFAULT_METHODS
    ),
    prompt_options: PromptOptions = _NO_FILE,
    options: RunOptions = _USUAL,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of workers; 0 draws in this process. Default: the number of cores.",
            min=0,
            max=MOST_THREADS,
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            help="Threads per worker. Results of different numbers of threads are kept apart.", min=1, max=MOST_THREADS
        ),
    ] = 1,
    batch: Annotated[
        int,
        typer.Option(
            help="With --live: pictures of a method that are drawn together, in this process. Results of different "
            "batches are kept apart.",
            min=1,
        ),
    ] = 1,
    on: Annotated[
        str, typer.Option(help="Where workers run: local (processes) or ray (actors, one per GPU).")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; default: a local one.", show_default=False)
    ] = None,
    likelihood: Annotated[
        bool,
        typer.Option(
            "--likelihood/--no-likelihood",
            help="Whether workers compute the target's likelihood of the drawn tokens, which takes some passes per "
            "drawing.",
        ),
    ] = True,
    shard: Annotated[str, typer.Option(help="Draw only part i of n, as i/n, for a batch system.")] = "1/1",
    out: Annotated[Path, typer.Option(parser=output_folder, help="Folder for pictures, tokens and results.")] = Path(
        "runs/evaluate"
    ),
    form: FormatOption = Format.table,
) -> None:
    """Draw all combinations of models, methods, prompts and seeds on many workers, and compare the methods with AR.

    Pictures and drawings go to --out. After an interruption the same command continues. Several commands may share one
    folder; the last to finish writes the results.
    """
    from underpaint.algos.plugins import named_by_environment
    from underpaint.artifacts.files import check_file_writable, check_folder_writable
    from underpaint.artifacts.workers import check_workers
    from underpaint.runtime.evaluation.comparison import named_variants, with_baseline
    from underpaint.runtime.evaluation.drawing_log import PICTURES
    from underpaint.runtime.evaluation.plan import JobShare, RunPlan
    from underpaint.runtime.pipeline import BACKENDS

    figures = out / "evaluate.json"
    with bad_input():
        share = JobShare.parse(shard)
        if on == "ray":
            check_ray_gpu(options.backend)
        check_workers(on, address)
        if batch > 1 and (live.live is None or jobs not in (None, 0, 1) or on != "local"):
            raise ValueError(
                "--batch needs --live, and draws in this process without workers; leave out --jobs and --on, or leave "
                "out --batch"
            )
        inline = jobs == 0 and on == "local" and batch == 1
        if inline:
            refuse_given(context, ("threads",), "is of workers, and --jobs 0 draws without; leave one of them out")
        usual = LIVE_METHODS if live.live is not None and methods == DEFAULT_METHODS else methods
        names = with_baseline(read_names(usual))
        live.check(models or None, options.resolution, options.low, options.backend)
        if options.backend == DEVICE:
            raise ValueError(
                f"--backend device: only compare, generate and serve take it; expected one of {', '.join(BACKENDS)} "
                "here"
            )
        options.check_settings(named_variants(names, settings_by_method(options.setting or [], names)))
        check_folder_writable(out)
        check_file_writable(figures)
        check_replaceable("the figures", figures)
        specs: list[ModelSource] = (
            [live.source(threads)]
            if live.live is not None
            else [_spec(name, options, threads, len(models or ["one"]), live.tokenizer) for name in models or [""]]
        )
        file = None if prompts else prompt_options.file()
        arguments = (names, options, prompts or [], prompt_options, file, out)
        plan = RunPlan(
            tuple(_plan_model(one, *arguments, inline=inline, likelihood=likelihood, batch=batch) for one in specs)
        )
        named = (*named_by_environment(), *((context.parent.params.get("plugin") if context.parent else None) or ()))
        workers = _workers(plan, on, jobs, address, batch, tuple(str(one) for one in named))
        log = plan.open_log(out, shared=True)
        all_jobs = plan.jobs()
        for job in all_jobs if (out / PICTURES).is_dir() else ():
            check_replaceable("a picture", log.picture_path(job))
    draw_run(share.of(all_jobs), log, workers, len(all_jobs))
    with bad_input():
        log = plan.open_log(out, shared=True)  # includes what other commands drew meanwhile
    missing = sum(job not in log for job in all_jobs)
    if missing:
        note(f"part {share.index} of {share.count} is drawn; {missing} of {len(all_jobs)} are missing", form)
        return
    _report(plan, log, figures, form)


def _spec(name: str, options: RunOptions, threads: int, folders: int, tokenizer: Path | None) -> "ModelSpec":
    """Return the model of `FOLDER@PIXELS`, or the shipped one if empty; ValueError for --low with several models."""
    from underpaint.runtime.evaluation.plan import ModelSpec
    from underpaint.zoo.load import FOLDER

    folder, at, pixels = name.rpartition("@")
    if not (at and pixels.isascii() and pixels.isdecimal()):
        folder, pixels = name, ""
    side, low = int(pixels) if pixels else options.resolution, options.low
    place = Path(folder) if folder else FOLDER
    if low is not None and folders > 1:
        raise ValueError("--low: expected one model, got several; leave --low out, or evaluate the models one by one")
    smaller = None if low is None else str(low.absolute())
    words = None if tokenizer is None else str(tokenizer.absolute())
    return ModelSpec(str(place.absolute()), side, smaller, options.backend, threads, words)


def _plan_model(
    spec: "ModelSource",
    names: tuple[str, ...],
    options: RunOptions,
    prompts: list[str],
    prompt_options: PromptOptions,
    file: "PromptFile | None",
    out: Path,
    *,
    inline: bool,
    likelihood: bool,
    batch: int,
) -> "ModelPlan":
    from underpaint.runtime.evaluation.comparison import named_variants
    from underpaint.runtime.evaluation.plan import ModelPlan
    from underpaint.runtime.evaluation.worker_costs import costs_file

    pipeline = spec.open(own_threads=False)
    if batch > 1:
        from underpaint.runtime.live.batch import check_batch

        check_batch(pipeline, batch)
    settings = {name: tuple(texts) for name, texts in settings_by_method(options.setting or [], names).items()}
    params = options.sampling(pipeline)
    chosen = choose(pipeline, prompts, prompt_options, file)
    comparison = options.plan(pipeline, params, named_variants(names, settings), chosen)
    priced = [method.name for method in comparison.methods if method.config.needs_costs]
    if priced and not options.no_costs:
        curve = costs_file(out, spec, pipeline, params, inline=inline, tell=_tell_of_costs)
        settings |= {name: (*settings.get(name, ()), f"costs={curve}") for name in priced}
        comparison = options.plan(pipeline, params, named_variants(names, settings), chosen)
    keys = tuple(prompt.key for prompt in chosen.prompts)
    arguments = (spec, pipeline, comparison, settings, chosen.source, keys)
    return ModelPlan.for_workers(*arguments, likelihood=likelihood, batch=batch, inline=inline)


def _tell_of_costs() -> None:
    with progress("measuring what passes cost on this machine, once"):
        pass


def _workers(
    plan: "RunPlan", on: str, jobs: int | None, address: str | None, batch: int, plugins: tuple[str, ...]
) -> "Workers[DrawingKey, DrawnJob]":
    """Return the workers that the options choose."""
    from underpaint.artifacts.workers import Processes, RayWorkers, ThisProcess
    from underpaint.runtime.engines.context import usable_cores
    from underpaint.runtime.evaluation.drawer import JobDrawer

    tasks = plan.tasks()
    if batch > 1:
        from underpaint.runtime.live.batch import BatchWorkers

        return BatchWorkers(JobDrawer(tasks, plugins), batch)
    count = usable_cores() if jobs is None else jobs
    if on == "ray":
        gpus, threads = int(any(task.spec.needs_gpu for task in tasks)), max(task.spec.threads for task in tasks)
        return RayWorkers(JobDrawer(tasks, plugins), max(1, count), address, threads, gpus)
    if count == 0:
        return ThisProcess(JobDrawer(tasks, plugins, own_threads=False))
    return Processes(JobDrawer(tasks, plugins), count)


def _tables(plan: "RunPlan", report: "EvaluationReport") -> list[ResultTable]:
    """Return a table per model. Its title names the model's folder, with its whole path if another has its name."""
    folders = ["" if model.task is None else model.task.spec.folder for model in plan.models]
    short = [Path(folder).name for folder in folders]
    names = folders if len(set(short)) < len(set(folders)) else short
    return [
        table_of(rows, model.judge, ": ".join(filter(None, (name, title_of(model)))))
        for name, model, rows in zip(names, plan.models, report.rows, strict=True)
    ]


def _report(plan: "RunPlan", log: "DrawingLog", figures: Path, form: Format) -> None:
    from underpaint.artifacts.manifest import write_beside
    from underpaint.artifacts.results import results_text
    from underpaint.runtime.evaluation.machine import typed_command
    from underpaint.runtime.evaluation.report import evaluation_report

    report = evaluation_report(plan, log, typed_command())
    write_beside(figures, results_text(report.results).encode())
    show(_tables(plan, report), form)
    for model in plan.models:
        note_judge(model.judge, form)
    if report.differing:
        typer.echo(
            f"{report.differing} of {report.repeated} jobs that were drawn twice have other tokens the second time: "
            "machines that round otherwise drew them; the first by name of its file counts",
            err=True,
        )
    note_files((figures,), f"underpaint results rank {shlex.quote(str(figures))} lists the methods by speed", form)
