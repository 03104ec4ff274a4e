"""`underpaint compare`: methods beside each other, on the same prompts and seeds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.drawing import draw_all
from underpaint.cli.errors import bad_input
from underpaint.cli.options import Guidance, Side, Temperature, TopK, TopP, read_sampler, read_side, settings_by_method

if TYPE_CHECKING:
    from underpaint.runtime.evaluation.compare import Plan
    from underpaint.runtime.evaluation.report import Found, Row
    from underpaint.runtime.evaluation.store import Store
    from underpaint.runtime.studio import Studio

DEFAULT_METHODS = "ar,speculative,eagle2,eagle2-static,adt,lantern,lantern++,adt+lantern"


def compare(
    context: typer.Context,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts in quotes; without any, --prompts-count are chosen.")
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas between; AR is always among them.")] = (
        DEFAULT_METHODS
    ),
    temperature: Temperature = 1.0,
    seeds: Annotated[int, typer.Option(help="Seeds per prompt, counted from 0.", min=1)] = 1,
    prompts_count: Annotated[
        int | None, typer.Option(help="Prompts chosen from the training pairs; 8 if none is given.", min=1, max=1000)
    ] = None,
    prompts_skip: Annotated[
        int, typer.Option(help="Chosen prompts left out: those settings were tuned on.", min=0, max=1000)
    ] = 0,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of one method, method.name=value; repeat for more.")
    ] = None,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    resolution: Side = "128",
    out: Annotated[Path, typer.Option(help="Folder for pictures and finished drawings.")] = Path("runs/compare"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Figures; default: compare.json in --out.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the drawings that --out holds.")] = False,
    engines: Annotated[
        Path | None,
        typer.Option(help="Folder of an exported model to compare on; prompts are then classes, ids or .npy files."),
    ] = None,
    low: Annotated[
        Path | None,
        typer.Option(help="With --engines: folder of a smaller exported target, for methods that draft with one."),
    ] = None,
    backend: Annotated[str, typer.Option(help="With --engines: cpu, tensorrt or tensorrt-rtx.")] = "cpu",
) -> None:
    """Draw the same prompts by several methods and report speed, cost and quality beside plain AR.

    A stopped comparison (Ctrl-C) keeps what is drawn; the same command goes on with it.
    """
    figures = json_file or out / "compare.json"
    with bad_input():
        if engines is None:
            _refuse(context, ("backend", "low"), "goes with --engines alone")
        else:
            _refuse(context, ("prompts_count", "prompts_skip", "resolution"), "does not go with --engines")
    if engines is not None:
        from underpaint.cli.compare_engines import compare_engines

        sampling = (temperature, guidance, top_k, top_p)
        compare_engines(
            engines, low, backend, prompts or ["0"], methods, setting or [], sampling, seeds, out, figures, fresh
        )
        return

    from underpaint.algos.rows import SamplingParams
    from underpaint.runtime.embedded import open_studio
    from underpaint.runtime.evaluation.compare import Plan, check, choose_prompts, with_baseline
    from underpaint.runtime.evaluation.store import Store
    from underpaint.runtime.files import check_file_writable, check_folder_writable
    from underpaint.runtime.methods.registry import build_method, resolve
    from underpaint.zoo.prompts import parse

    with bad_input():
        if prompts and (prompts_count is not None or prompts_skip):
            raise ValueError(
                "--prompts-count and --prompts-skip choose prompts; leave them out, or leave the prompts out"
            )
        wanted = tuple(parse(text) for text in prompts) if prompts else choose_prompts(prompts_count or 8, prompts_skip)
        side = read_side(resolution)
        checked = SamplingParams(temperature=temperature)
        names = with_baseline(tuple(name.strip() for name in methods.split(",")))
        own = settings_by_method(setting or [], names)
        recipes = {name: resolve(name, checked.temperature, None, own[name]) for name in names}
        check_folder_writable(out)
        check_file_writable(figures)
        studio = open_studio(side)
        sampler = read_sampler(temperature, guidance, top_k, top_p, studio.sampler)
        built = tuple(build_method(name, recipes[name], studio.codes) for name in names)
        plan = Plan(built, wanted, tuple(range(seeds)), sampler)
        check(studio, plan)
        store = Store(out, {**plan.to_dict(), "resolution": side, "model": studio.fingerprint()}, fresh=fresh)
    draw_all(studio, plan, store)
    _report(studio, plan, out, figures, store)


def _refuse(context: typer.Context, options: tuple[str, ...], why: str) -> None:
    """ValueError where one of `options` was typed."""
    for name in options:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise ValueError(f"--{name.replace('_', '-')} {why}; leave it out")


def _report(studio: "Studio", plan: "Plan", out: Path, figures: Path, store: "Store") -> None:
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.evaluation.gallery import write_acceptance, write_gallery
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.runtime.evaluation.report import find, to_dict

    found = find(studio, plan, store)
    settings = {**plan.to_dict(), "resolution": studio.side}
    plain = {"command": typed_command(), **to_dict(found, settings, dict(studio.fingerprint()), describe_machine())}
    write_beside(figures, (json.dumps(plain, indent=1) + "\n").encode())
    title = f"{studio.side} px, temperature {plan.sampler.temperature:g}, guidance {plan.sampler.guidance:g}"
    captions = [prompt.caption() for prompt in plan.prompts]
    gallery, maps = out / "gallery.png", out / "acceptance.png"
    write_gallery(gallery, found.rows, found.gallery, captions, f"One row a method: {title}")
    write_acceptance(
        maps, found.rows, found.acceptance, f"Share of images in which a cell was an accepted draft: {title}"
    )
    print_table(found, studio, title)
    for path in (figures, gallery, maps):
        typer.echo(str(path))


def print_table(found: "Found", studio: "Studio", title: str) -> None:
    """Print a row a method, and what the judge itself reads right."""
    from underpaint.cli.terminal import console, table

    shown = table(title)
    shown.add_column("method\n", no_wrap=True)
    for heading in (
        *("loss-\nless", "speed-\nup", "95 %\ninterval", "s per\nimage", "target\nNFE", "drafter\nNFE"),
        *(
            "tokens\nper cycle",
            "mean\ndepth",
            "draft\nkept",
            "over-\nhead",
            "ms a cycle: target\n+ drafter + host",
            "prompt\naccuracy",
            "less AR's\n(95 %)",
            "Fréchet\n(floor)",
            "same\nas AR",
        ),
    ):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows:
        shown.add_row(
            row.method,
            "yes" if row.lossless else "no",
            f"{row.speedup:.2f}x",
            "-" if row.speedup_low is None else f"{row.speedup_low:.2f}-{row.speedup_high:.2f}",
            f"{row.seconds_per_image:.3f}",
            f"{row.target_nfe:.1f}",
            f"{row.drafter_nfe:.1f}",
            _figure(row.tokens_per_cycle, ".2f"),
            _figure(row.mean_depth, ".2f"),
            _figure(row.kept_share, ".0%"),
            f"{row.overhead_share:.0%}",
            _split(row),
            _figure(row.prompt_accuracy, ".3f"),
            _difference(row),
            f"{_figure(row.frechet_distance, '.1f')} ({_figure(row.frechet_floor, '.1f')})",
            _figure(row.identical_share, ".0%"),
        )
    console().print(shown)
    own = studio.reference.accuracy.get("concept_and_style")
    if own is not None:
        typer.echo(f"The judge itself reads {own:.3f} of real scenes right (concept and style).")


def _split(row: "Row") -> str:
    parts = (row.target_ms_per_cycle, row.drafter_ms_per_cycle, row.host_ms_per_cycle)
    return " + ".join(_figure(part, ".2f") for part in parts)


def _difference(row: "Row") -> str:
    if row.accuracy_over_ar_low is None:
        return f"{row.accuracy_over_ar:+.3f}"
    return f"{row.accuracy_over_ar:+.3f} ({row.accuracy_over_ar_low:+.3f} to {row.accuracy_over_ar_high:+.3f})"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
