"""`underpaint sweep`: speed against quality over many settings, as a plot with JSON beside it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from underpaint.cli.drawing import draw_all
from underpaint.cli.errors import bad_input
from underpaint.cli.options import Guidance, Side, Temperature, TopK, TopP, read_sampler, read_side

DEFAULT_VARY = (
    "zipar.window=1,2,3,4,8",
    "mulo.tau=0.1,0.3,0.5",
    "mulo.radius=0,1",
    "mulo.draft_window=2,8",
    "mulo-islands.tau=0.1,0.3,0.5",
    "mulo-islands.k=10,30",
    "mulo-islands.radius=0,1",
    "mulo-islands.rows=2,8",
    "lantern.delta=0.1,0.3,0.6",
)


def sweep(
    vary: Annotated[
        list[str] | None,
        typer.Option(help="method.name=value,value,...; repeat for more: all combinations within a method."),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods drawn once besides, as they are, with commas between.")] = "",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="method.name=value for all variants of a method.")
    ] = None,
    temperature: Temperature = 1.0,
    prompts_count: Annotated[int, typer.Option(help="Prompts chosen from the training pairs.", min=1, max=1000)] = 16,
    seeds: Annotated[int, typer.Option(help="Seeds per prompt, counted from 0.", min=1)] = 1,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    resolution: Side = "128",
    out: Annotated[Path, typer.Option(help="Folder for the figures and finished drawings.")] = Path("runs/sweep"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the drawings that --out holds.")] = False,
) -> None:
    """Draw the same prompts at many settings and plot speed-up against quality, with the undominated ones joined.

    Without --vary: row fronts, MuLo-SD and LANTERN over their main settings. A stopped sweep (Ctrl-C) keeps what is
    drawn; the same command goes on with it.
    """
    from underpaint.algos.rows import SamplingParams
    from underpaint.artifacts.manifest import write_beside
    from underpaint.cli.compare import print_table
    from underpaint.runtime.embedded import open_studio
    from underpaint.runtime.evaluation.compare import BASELINE, Plan, check, choose_prompts
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.runtime.evaluation.pareto import to_dict as rows_as_plain
    from underpaint.runtime.evaluation.pareto import variants, write_frontier
    from underpaint.runtime.evaluation.report import find, to_dict
    from underpaint.runtime.evaluation.store import Store
    from underpaint.runtime.files import check_folder_writable
    from underpaint.runtime.methods.registry import build_method, resolve

    with bad_input():
        side = read_side(resolution)
        checked = SamplingParams(temperature=temperature)
        named = [name.strip() for name in methods.split(",") if name.strip()]
        asked = variants(vary or DEFAULT_VARY, setting or (), list(dict.fromkeys([BASELINE, *named])))
        recipes = [resolve(one.method, checked.temperature, None, one.settings) for one in asked]
        check_folder_writable(out)
        studio = open_studio(side)
        sampler = read_sampler(temperature, guidance, top_k, top_p, studio.sampler)
        built = tuple(build_method(one.label, recipe, studio.codes) for one, recipe in zip(asked, recipes, strict=True))
        plan = Plan(built, choose_prompts(prompts_count), tuple(range(seeds)), sampler)
        check(studio, plan)
        store = Store(out, {**plan.to_dict(), "resolution": side, "model": studio.fingerprint()}, fresh=fresh)
    draw_all(studio, plan, store)
    found = find(studio, plan, store)
    settings = {**plan.to_dict(), "resolution": side}
    plain = {"command": typed_command(), **to_dict(found, settings, dict(studio.fingerprint()), describe_machine())}
    del plain["acceptance_per_cell"]
    plain["rows"] = rows_as_plain(found.rows, asked, plain["rows"])
    title = f"{side} px, temperature {sampler.temperature:g}, guidance {sampler.guidance:g}, {plan.images} images each"
    figures, plot = out / "sweep.json", out / "frontier.png"
    write_beside(figures, (json.dumps(plain, indent=1) + "\n").encode())
    write_frontier(plot, found.rows, asked, title)
    print_table(found, studio, title)
    for path in (figures, plot):
        typer.echo(str(path))
