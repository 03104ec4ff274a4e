"""`underpaint trace`: what target and drafter think of every cell, recorded for the simulator."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import bad_input
from cli.options import Guidance, Side, Temperature, TopK, TopP, read_sampler, read_side

APART = 64
"""Chosen prompts that a trace leaves out unless told otherwise: those that `underpaint compare` starts from."""


def trace(
    prompts_count: Annotated[int, typer.Option(help="Images, each on a prompt of its own.", min=1, max=500)] = 16,
    prompts_skip: Annotated[int, typer.Option(help="Chosen prompts left out: those to compare on.", min=0)] = APART,
    temperature: Temperature = 1.0,
    depths: Annotated[int, typer.Option(help="How many tokens past the root the drafter is followed.", min=1)] = 6,
    keep: Annotated[int, typer.Option(help="Likeliest tokens kept of each law.", min=1)] = 256,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    resolution: Side = "128",
    out: Annotated[Path, typer.Option(help="The .npz file to write.")] = Path("runs/trace.npz"),
) -> None:
    """Draw by plain autoregression and record the laws of target and drafter at every cell.

    At temperature 0 the laws are those at temperature 1, which the greedy rules read. `underpaint compare` chooses from
    the same prompts, from the first on: compare on others than those that are recorded (--prompts-skip).
    """
    from algos.rows import Sampler
    from runtime.compare import choose_prompts
    from runtime.embedded import open_studio
    from runtime.files import check_file_writable
    from runtime.methods import resolve
    from runtime.studio import randomness
    from sim.trace import Recorder, save

    with bad_input():
        side = read_side(resolution)
        recipe = resolve("ar", Sampler(temperature=temperature).temperature)
        check_file_writable(out)
        studio = open_studio(side)
        sampler = read_sampler(temperature, guidance, top_k, top_p, studio.sampler)
        recorder = Recorder(studio.codes.codebook, studio.codes.neighbours, depths, keep)
        prompts = choose_prompts(prompts_count, prompts_skip)
    used = recipe.target_sampler(sampler)
    with typer.progressbar(prompts, label="recording") as going:
        for prompt in going:
            target, drafter = studio.target(prompt, used).model, studio.drafter(used).model
            recorder.add(target, drafter, randomness(prompt, seed), greedy=temperature == 0)
    held = recorder.trace(
        {
            "model": dict(studio.described()),
            "sampler": dataclasses.asdict(sampler),
            "prompts": [prompt.caption() for prompt in prompts],
            "seed": seed,
        }
    )
    save(held, out)
    figures = held.acceptance[:, :, 1:].mean(axis=(0, 2))
    shown = ", ".join(f"{share:.3f}" for share in figures)
    typer.echo(
        f"{len(prompts)} images of {held.grid.cells} cells. Likeliest token {held.target_probs[..., 0].mean():.3f}, "
        f"entropy {held.target_entropy.mean():.2f} nats, overlap of drafter and target by tokens past the root: {shown}"
    )
    typer.echo(str(out))
