"""`underpaint report`: turn the folder of a comparison into one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.options import Models
from underpaint.cli.outputs import check_replaceable, page_output
from underpaint.cli.terminal import note

if TYPE_CHECKING:
    from underpaint.runtime.page.pictures import GridDecoder

MOST_BYTES = 6_000_000
"""Size in bytes above which a page opens slowly; the command then says so."""


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
) -> None:
    """Write one self-contained HTML page: leaderboard, gallery, replays, acceptance maps, cost curve.

    The decoder of --models turns the drawn tokens into pictures. Replays need a comparison with --save-replay.
    """
    from underpaint.artifacts.files import check_file_writable
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.page.document import ComparisonFolder, page
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
                if models is not None:
                    raise
                why = f"Pictures are left out: {error}."
        if decode is not None:
            comparison.check_codes(decode.vocab_size)
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
