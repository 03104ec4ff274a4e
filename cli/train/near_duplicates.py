"""`underpaint train near-duplicates`: how alike a tokenizer's codes are."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from underpaint.artifacts.manifest import write_beside
from underpaint.cli.errors import bad_input
from underpaint.cli.train.options import Pixels, Resolution, SceneFamily, Scenery, Threads, prepare
from underpaint.models.checkpoints import load_vq
from underpaint.models.train.near_duplicates import DuplicateReport, near_duplicates
from underpaint.models.train.pictures import family_pictures
from underpaint.runtime.evaluation.machine import describe_machine, typed_command
from underpaint.runtime.files import check_file_writable

RANKS = "1,2,4,8,16,32,64,128,256"


def report_near_duplicates(
    tokenizer: Annotated[Path | None, typer.Option(help="Checkpoint; by default that of the scenes' own run.")] = None,
    family: SceneFamily = Scenery.textured,
    resolution: Resolution = Pixels.large,
    pictures: Annotated[int, typer.Option(help="How many fresh scenes.", min=1, max=10_000)] = 64,
    ranks: Annotated[str, typer.Option(help="Which neighbours, separated by commas.")] = RANKS,
    out: Annotated[Path | None, typer.Option(help="JSON file of the figures.")] = None,
    threads: Threads = None,
) -> None:
    """Replace every code of real scenes by its k-th nearest code, and say what that does to their pictures."""
    with bad_input():
        prepare("cpu", threads)
        try:
            wanted = [int(part) for part in ranks.split(",")]
        except ValueError as error:
            raise ValueError(f"--ranks: expected numbers such as {RANKS}, got {ranks!r}") from error
        if out is not None:
            check_file_writable(out)
        vq = load_vq(tokenizer or Path(family.run("runs/tokenizer")) / "checkpoint.pt")
        found = near_duplicates(vq, family_pictures(family.family), side=int(resolution), count=pictures, ranks=wanted)
        if out is not None:
            told = {**found.to_dict(), "machine": describe_machine(), "command": typed_command()}
            write_beside(out, (json.dumps(told, indent=1) + "\n").encode())
    Console().print(_table(found))


def _table(found: DuplicateReport) -> Table:
    title = (
        f"{found.pictures} pictures of {found.side} px: PSNR {found.psnr:.2f} dB, {found.codes_used} of "
        f"{found.codebook} codes, perplexity {found.perplexity:.0f}"
    )
    table = Table(title=title)
    for heading in ("replaced by", "cosine", "change, MSE", "change, dB", "PSNR, dB", "one cell, MSE"):
        table.add_column(heading, justify="right")
    for row in found.replacements:
        name = f"neighbour {row.rank}" if row.rank else "a random code"
        figures = (row.cosine, row.change_mse, row.change_db, row.psnr, row.one_cell_mse)
        table.add_row(name, *(f"{value:.3g}" for value in figures))
    return table
