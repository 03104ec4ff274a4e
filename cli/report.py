"""`underpaint report`: the folder of a comparison as one page, and a replay as an animation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.options import Models
from underpaint.cli.outputs import check_replaceable, output_file, page_output
from underpaint.cli.terminal import note

if TYPE_CHECKING:
    from underpaint.runtime.evaluation.replay import Replay
    from underpaint.runtime.page.document import ComparisonFolder
    from underpaint.runtime.page.pictures import GridDecoder

MOST_BYTES = 6_000_000
"""A page above this opens slowly; the command says so."""


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that `underpaint compare` or `evaluate` wrote (its --out).")],
    out: Annotated[
        Path | None, typer.Option(parser=page_output, help="The page to write; default: report.html in the folder.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="JSON of the comparison, if its --json put it elsewhere.")
    ] = None,
    models: Models = None,
    gallery: Annotated[int, typer.Option(help="Number of prompts in the gallery.", min=1)] = 8,
    gif: Annotated[
        Path | None, typer.Option(parser=output_file, help="Also write a recorded decoding as an animated GIF.")
    ] = None,
    gif_method: Annotated[str | None, typer.Option(help="Method of the GIF; default: the first that drafts.")] = None,
    gif_prompt: Annotated[int, typer.Option(help="Recorded prompt of the GIF, counted from 1.", min=1)] = 1,
) -> None:
    """Write one self-contained HTML page: leaderboard, gallery, replays, acceptance maps, cost curve.

    Pictures are decoded from the drawn tokens by the models of --models. Replays need a comparison with --save-replay.
    """
    from underpaint.artifacts.files import check_file_writable
    from underpaint.artifacts.manifest import write_beside
    from underpaint.artifacts.origin import marked
    from underpaint.runtime.page.document import ComparisonFolder, page
    from underpaint.runtime.page.gif import gif_of
    from underpaint.runtime.page.pictures import decoder_for
    from underpaint.zoo.load import FOLDER

    place = out or folder / "report.html"
    with bad_input():
        comparison = ComparisonFolder.read(folder, figures)
        check_file_writable(place)
        check_replaceable("the page", place, "html")
        decode: GridDecoder | None = None
        why = "No drawings stand beside the figures, so there is nothing to show here."
        if comparison.drawings:
            try:
                decode = decoder_for(models or FOLDER, comparison.results["model"])
            except ValueError as error:
                if models is not None or gif is not None:
                    raise
                why = f"Pictures are left out: {error}."
        if decode is not None:
            comparison.check_codes(decode.vocab_size)
        animated = None
        if gif is not None:
            if gif.suffix.lower() != ".gif":
                raise ValueError(f"--gif {gif}: expected a name that ends in .gif")
            check_file_writable(gif)
            animated = _chosen(comparison, gif_method, gif_prompt)
        elif gif_method is not None:
            raise ValueError("--gif-method chooses what --gif shows; give --gif too, or leave it out")
    text = page(comparison, decode, why, gallery).encode()
    write_beside(place, text)
    big = f"; above {MOST_BYTES / 1e6:g} MB it opens slowly: lower --gallery" if len(text) > MOST_BYTES else ""
    note(f"{place}: {len(text) / 1e6:.2f} MB, {len(comparison.replays)} replays{big}")
    if not comparison.finished:
        note(
            f"The recording of the replays was stopped, or its file was cut short: {len(comparison.replays)} are left; "
            "repeat the comparison with --save-replay to record the others"
        )
    note(f"next: open {place} in a browser")
    if decode is None:
        note(why)
    if gif is not None and animated is not None and decode is not None:
        write_beside(gif, marked(gif_of(animated, comparison.grid, decode)))
        note(f"{gif}: {animated.prompt!r} by {animated.method}")


def _chosen(comparison: "ComparisonFolder", method: str | None, prompt: int) -> "Replay":
    """The replay that an animation is asked of; ValueError where none is."""
    prompts = list(dict.fromkeys(one.prompt for one in comparison.replays))
    if not prompts:
        raise ValueError("--gif: no decoding of this comparison is recorded; repeat its command with --save-replay 2")
    if prompt > len(prompts):
        raise ValueError(f"--gif-prompt: expected 1 to {len(prompts)}, as many prompts are recorded, got {prompt}")
    own = {one.method: one for one in comparison.replays if one.prompt == prompts[prompt - 1]}
    if method is None:
        return next((one for one in own.values() if one.method != "ar"), next(iter(own.values())))
    if method not in own:
        raise ValueError(f"--gif-method: expected one of {', '.join(own)}, got {method!r}")
    return own[method]
