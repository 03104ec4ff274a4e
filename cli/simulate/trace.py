"""`underpaint trace`: what target and drafter think of every cell, recorded for the simulator."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.options import (
    Backend,
    Guidance,
    Low,
    Models,
    Resolution,
    Seed,
    Temperature,
    TopK,
    TopP,
    open_pipeline,
    read_sampling,
)
from underpaint.cli.outputs import output_file
from underpaint.cli.terminal import note, progress

if TYPE_CHECKING:
    from underpaint.runtime.pipeline import Pipeline

APART = 64
"""Chosen prompts that a trace leaves out unless told otherwise: those that `underpaint compare` starts from."""


_KEEP: Final = 256
"""Likeliest tokens kept where nothing is asked for."""


def trace(
    prompts_count: Annotated[int, typer.Option(help="Images, each on a prompt of its own.", min=1, max=500)] = 16,
    prompts_skip: Annotated[int, typer.Option(help="Chosen prompts left out: those to compare on.", min=0)] = APART,
    temperature: Temperature = 1.0,
    depths: Annotated[int, typer.Option(help="How many tokens past the root the drafter is followed.", min=1)] = 6,
    keep: Annotated[
        int | None, typer.Option(help="Likeliest tokens kept of each distribution; default: 256, or all.", min=1)
    ] = None,
    seed: Seed = 0,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    models: Models = None,
    resolution: Resolution = None,
    low: Low = None,
    backend: Backend = "cpu",
    out: Annotated[Path, typer.Option(parser=output_file, help="The .npz file to write.")] = Path("runs/trace.npz"),
) -> None:
    """Draw by plain autoregression and record the distributions of target and drafter at every cell.

    At temperature 0 the distributions are those at temperature 1, which the greedy rules read. `underpaint compare`
    chooses from the same prompts, from the first on: compare on others than those that are recorded (--prompts-skip).
    """
    from underpaint.algos.rows import SamplingParams
    from underpaint.runtime.drawing import noise_of
    from underpaint.runtime.engines.context import EngineError
    from underpaint.runtime.evaluation.comparison import read_conditions
    from underpaint.runtime.files import check_file_writable
    from underpaint.runtime.methods.registry import resolve
    from underpaint.sim.replay.trace import Recorder, save

    with bad_input():
        config = resolve("ar", SamplingParams(temperature=temperature).temperature)
        if out.suffix != ".npz":
            raise ValueError(f"--out {out}: expected a name that ends in .npz")
        check_file_writable(out)
        pipeline = open_pipeline(models, resolution, low, backend)
        sampling = read_sampling(temperature, guidance, top_k, top_p, pipeline)
        keep = min(_KEEP, pipeline.tables.vocab_size) if keep is None else keep
        read_trace_sizes(pipeline, depths, keep, prompts_count)
        recorder = Recorder(pipeline.tables.codebook, pipeline.tables.neighbours, depths, keep)
        conditions = read_conditions(pipeline, (), prompts_count, prompts_skip)
    used = config.target_sampling(sampling)
    with bad_input(EngineError), progress("recording", len(conditions)) as advance:
        for done, condition in enumerate(conditions, start=1):
            target, drafter = pipeline.target(condition, used).model, pipeline.drafter(used).model
            recorder.add(target, drafter, noise_of(condition, seed), greedy=temperature == 0)
            advance(done)
    held = recorder.trace(
        {
            "model": dict(pipeline.fingerprint()),
            "sampler": dataclasses.asdict(sampling),
            "prompts": [condition.caption() for condition in conditions],
            "seed": seed,
        }
    )
    save(held, out)
    figures = held.acceptance[:, :, 1:].mean(axis=(0, 2))
    shown = ", ".join(f"{share:.3f}" for share in figures)
    typer.echo(
        f"{len(conditions)} images of {held.grid.cells} cells. Likeliest token {held.target_probs[..., 0].mean():.3f}, "
        f"entropy {held.target_entropy.mean():.2f} nats, overlap of drafter and target by tokens past the root: {shown}"
    )
    typer.echo(str(out))
    note(f"next: underpaint simulate fit {shlex.quote(str(out))} makes a synthetic model of it")


def read_trace_sizes(pipeline: "Pipeline", depths: int, keep: int, images: int) -> None:
    """ValueError, with the largest that would do, where a trace of these sizes is none of the model's, or too large."""
    from underpaint.algos.memory import check_memory

    cells, codes = pipeline.grid.cells, pipeline.tables.vocab_size
    if depths >= cells:
        raise ValueError(f"--depths: expected at most {cells - 1}, the cells behind the first, got {depths}")
    if keep > codes:
        raise ValueError(f"--keep: expected at most {codes}, the codes of this model, got {keep}")
    # Of an image in work: distributions of target and drafts in float64; of a recorded one: tokens and masses kept.
    check_memory("recording an image", "--depths", depths, 3 * 8 * cells * codes)
    check_memory("the recorded images", "--prompts-count", images, 2 * 16 * cells * (depths + 1) * keep)
