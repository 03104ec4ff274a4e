"""`underpaint trace`: what target and drafter think of every cell, recorded for the simulator."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.options import Guidance, Side, Temperature, TopK, TopP, read_sampler, read_side, settings_by_method

if TYPE_CHECKING:
    from collections.abc import Mapping

    from underpaint.runtime.codes import Codes
    from underpaint.runtime.methods.method_config import Recipe
    from underpaint.runtime.methods.mulo_method import BuiltMulo
    from underpaint.sim.replay.row_trace import RowRecorder

APART = 64
"""Chosen prompts that a trace leaves out unless told otherwise: those that `underpaint compare` starts from."""


def trace(
    prompts_count: Annotated[int, typer.Option(help="Images, each on a prompt of its own.", min=1, max=500)] = 16,
    prompts_skip: Annotated[int, typer.Option(help="Chosen prompts left out: those to compare on.", min=0)] = APART,
    temperature: Temperature = 1.0,
    methods: Annotated[
        str, typer.Option(help="Methods to predict, with commas between; of MuLo-SD's, drafted rows are recorded too.")
    ] = "",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of one of them, method.name=value; repeat for more.")
    ] = None,
    depths: Annotated[int, typer.Option(help="How many tokens past the root the drafter is followed.", min=1)] = 6,
    keep: Annotated[int, typer.Option(help="Likeliest tokens kept of each distribution.", min=1)] = 256,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    resolution: Side = "128",
    out: Annotated[Path, typer.Option(help="The .npz file to write.")] = Path("runs/trace.npz"),
) -> None:
    """Draw by plain autoregression and record the distributions of target and drafter at every cell.

    At temperature 0 the distributions are those at temperature 1, which the greedy rules read. `underpaint compare`
    chooses from
    the same prompts, from the first on: compare on others than those that are recorded (--prompts-skip). Give --methods
    and --set as to `compare` where it draws by MuLo-SD, whose drafts come from another model.
    """
    from underpaint.algos.rows import SamplingParams
    from underpaint.runtime.embedded import open_studio
    from underpaint.runtime.evaluation.compare import choose_prompts
    from underpaint.runtime.files import check_file_writable
    from underpaint.runtime.methods.registry import resolve
    from underpaint.runtime.studio import randomness
    from underpaint.sim.replay.trace import Recorder, save

    with bad_input():
        side = read_side(resolution)
        recipe = resolve("ar", SamplingParams(temperature=temperature).temperature)
        names = tuple(name.strip() for name in methods.split(",") if name.strip())
        own = settings_by_method(setting or [], names)
        recipes = {name: resolve(name, temperature, None, own[name]) for name in names}
        check_file_writable(out)
        studio = open_studio(side)
        sampler = read_sampler(temperature, guidance, top_k, top_p, studio.sampler)
        recorder = Recorder(studio.codes.codebook, studio.codes.neighbours, depths, keep)
        prompts = choose_prompts(prompts_count, prompts_skip)
        low = _drafted_low(recipes, studio.codes, keep)
        for built, _ in low:
            built.open(studio, prompts[0], sampler)
    used = recipe.target_sampler(sampler)
    with typer.progressbar(prompts, label="recording") as going:
        for prompt in going:
            target, drafter = studio.target(prompt, used).model, studio.drafter(used).model
            image = recorder.add(target, drafter, randomness(prompt, seed), greedy=temperature == 0)
            for built, rows in low:
                session = built.open(studio, prompt, sampler)
                at = session.rows_per_cycle
                rows.add(session.target.model, session.drafter, image, at, randomness(prompt, seed))
    held = recorder.trace(
        {
            "model": dict(studio.fingerprint()),
            "sampler": dataclasses.asdict(sampler),
            "prompts": [prompt.caption() for prompt in prompts],
            "seed": seed,
        },
        [rows.trace() for _, rows in low],
    )
    save(held, out)
    figures = held.acceptance[:, :, 1:].mean(axis=(0, 2))
    shown = ", ".join(f"{share:.3f}" for share in figures)
    typer.echo(
        f"{len(prompts)} images of {held.grid.cells} cells. Likeliest token {held.target_probs[..., 0].mean():.3f}, "
        f"entropy {held.target_entropy.mean():.2f} nats, overlap of drafter and target by tokens past the root: {shown}"
    )
    typer.echo(str(out))


def _drafted_low(recipes: "Mapping[str, Recipe]", codes: "Codes", keep: int) -> "list[tuple[BuiltMulo, RowRecorder]]":
    """For each way in which recipes draft rows at a low resolution, the first that does, and what records them."""
    from underpaint.runtime.methods.mulo_method import BuiltMulo
    from underpaint.runtime.methods.registry import build_method
    from underpaint.sim.replay.row_trace import RowRecorder

    found: dict[tuple[object, ...], tuple[BuiltMulo, RowRecorder]] = {}
    for name, recipe in recipes.items():
        built = build_method(name, recipe, codes)
        if isinstance(built, BuiltMulo):
            rows = RowRecorder(recipe.to_dict()["settings"], keep)
            found.setdefault(tuple(rows.settings.values()), (built, rows))
    return list(found.values())
