"""`underpaint generate`: one picture from a prompt."""

import io
from pathlib import Path
from typing import Annotated

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.options import Guidance, Side, Temperature, TopK, TopP, read_sampler, read_side

_FORMATS = {".png": "PNG", ".webp": "WEBP", ".bmp": "BMP"}
"""Formats that keep every pixel."""


def generate(
    prompt: Annotated[str, typer.Argument(help='Plain words, e.g. "a 3d fox, left, on a sky background".')],
    out: Annotated[Path, typer.Option(help="Picture to write: .png, .webp or .bmp.")],
    method: Annotated[str, typer.Option(help="How to draw it; see `underpaint methods`.")] = "adt+lantern",
    rule: Annotated[str | None, typer.Option(help="Another acceptance rule for the method's drafts.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method, name=value; repeat for more.")
    ] = None,
    temperature: Temperature = 1.0,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise: the same seed draws the same picture.")] = 0,
    resolution: Side = "128",
    strip: Annotated[
        Path | None, typer.Option(help="Also a PNG of every cycle of a mulo method: draft, rejections, repair, result.")
    ] = None,
) -> None:
    """Draw one picture from a prompt with the shipped models."""
    from PIL import Image

    from underpaint.algos.rows import SamplingParams
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.embedded import open_studio
    from underpaint.runtime.evaluation.strip import write_strip
    from underpaint.runtime.files import check_file_writable
    from underpaint.runtime.methods.mulo_method import MuloSession
    from underpaint.runtime.methods.registry import build_method, resolve
    from underpaint.runtime.studio import draw, randomness
    from underpaint.zoo.prompts import parse

    with bad_input():
        wanted = parse(prompt)
        side = read_side(resolution)
        recipe = resolve(method, SamplingParams(temperature=temperature).temperature, rule, setting or ())
        if out.suffix.lower() not in _FORMATS:
            raise ValueError(f"--out {out}: expected a name that ends in {', '.join(_FORMATS)}")
        check_file_writable(out)
        if strip is not None:
            if strip.suffix.lower() != ".png":
                raise ValueError(f"--strip {strip}: expected a name that ends in .png")
            check_file_writable(strip)
        randomness(wanted, seed)
        studio = open_studio(side)
        sampler = read_sampler(temperature, guidance, top_k, top_p, studio.sampler)
        built = build_method(method, recipe, studio.codes)
        session = built.open(studio, wanted, sampler)
        if strip is not None and not isinstance(session, MuloSession):
            raise ValueError(f"--strip: '{method}' drafts no rows to show; draw by a mulo method, or leave it out")
    drawing = draw(studio, built, sampler, wanted, seed)
    encoded = io.BytesIO()
    picture = Image.fromarray(studio.picture(drawing.tokens_array()))
    picture.save(encoded, format=_FORMATS[out.suffix.lower()], lossless=True)
    write_beside(out, encoded.getvalue())
    if strip is not None and isinstance(session, MuloSession):
        title = f"{wanted.caption()}, by {method}, seed {seed}"
        write_strip(strip, studio, session.cycles(randomness(wanted, seed)), title)
    typer.echo(
        f"{out}: {wanted.caption()!r} by {method}, {drawing.seconds:.2f} s, {len(drawing.tokens)} tokens in "
        f"{drawing.target_nfe} target and {drawing.drafter_nfe} drafter passes "
        f"({len(drawing.tokens) / drawing.target_nfe:.2f} tokens per target pass)"
    )
