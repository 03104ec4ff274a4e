"""`underpaint generate`: one picture from a prompt."""

import io
from pathlib import Path
from typing import Annotated

import typer

from underpaint.cli.costs import tables_with_costs
from underpaint.cli.errors import bad_input
from underpaint.cli.options import (
    Backend,
    Engines,
    Guidance,
    Low,
    Preset,
    Resolution,
    Temperature,
    TopK,
    TopP,
    open_pipeline,
    read_sampling,
)

_FORMATS = {".png": "PNG", ".webp": "WEBP", ".bmp": "BMP"}
"""Formats that keep every pixel."""


def generate(
    prompt: Annotated[
        str, typer.Argument(help='Plain words, e.g. "a 3d fox, left, on a sky background"; see --engines.')
    ],
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .webp or .bmp.")],
    method: Annotated[str, typer.Option(help="How to draw it; see `underpaint methods`.")] = "adt+lantern",
    rule: Annotated[str | None, typer.Option(help="Another acceptance rule for the method's drafts.")] = None,
    preset: Preset = "tuned",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method, name=value; repeat for more.")
    ] = None,
    temperature: Temperature = 1.0,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise: the same seed draws the same picture.")] = 0,
    engines: Engines = None,
    resolution: Resolution = None,
    low: Low = None,
    backend: Backend = "cpu",
    strip: Annotated[
        Path | None, typer.Option(help="Also a PNG of every cycle of a mulo method: draft, rejections, repair, result.")
    ] = None,
) -> None:
    """Draw one picture from a prompt."""
    from PIL import Image

    from underpaint.algos.rows import SamplingParams
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.drawing import draw, noise_of
    from underpaint.runtime.evaluation.strip import write_strip
    from underpaint.runtime.files import check_file_writable
    from underpaint.runtime.methods.mulo_method import MuloSession
    from underpaint.runtime.methods.registry import build_method, resolve

    with bad_input():
        config = resolve(method, SamplingParams(temperature=temperature).temperature, rule, setting or (), preset)
        if out.suffix.lower() not in _FORMATS:
            raise ValueError(f"--out {out}: expected a name that ends in {', '.join(_FORMATS)}")
        check_file_writable(out)
        if strip is not None:
            if strip.suffix.lower() != ".png":
                raise ValueError(f"--strip {strip}: expected a name that ends in .png")
            check_file_writable(strip)
        pipeline = open_pipeline(engines, resolution, low, backend)
        condition = pipeline.condition(prompt)
        noise_of(condition, seed)
        if pipeline.decoder is None:
            raise ValueError(f"{pipeline.folder} holds no picture decoder; export its tokenizer into it")
        sampling = read_sampling(temperature, guidance, top_k, top_p, pipeline.sampling)
        drawn_by = build_method(method, config, tables_with_costs(pipeline, [config], sampling))
        session = drawn_by.open(pipeline, condition, sampling)
        if strip is not None and not isinstance(session, MuloSession):
            raise ValueError(f"--strip: '{method}' drafts no rows to show; draw by a mulo method, or leave it out")
    drawing = draw(pipeline, drawn_by, sampling, condition, seed)
    encoded = io.BytesIO()
    picture = Image.fromarray(pipeline.picture(drawing.tokens_array()))
    picture.save(encoded, format=_FORMATS[out.suffix.lower()], lossless=True)
    write_beside(out, encoded.getvalue())
    if strip is not None and isinstance(session, MuloSession):
        title = f"{condition.caption()}, by {method}, seed {seed}"
        write_strip(strip, pipeline, session.cycles(noise_of(condition, seed)), title)
    typer.echo(
        f"{out}: {condition.caption()!r} by {method}, {drawing.seconds:.2f} s, {len(drawing.tokens)} tokens in "
        f"{drawing.target_nfe} target and {drawing.drafter_nfe} drafter passes "
        f"({len(drawing.tokens) / drawing.target_nfe:.2f} tokens per target pass)"
    )
