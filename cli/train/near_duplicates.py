"""`underpaint train near-duplicates`: how alike a tokenizer's codes are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.algos.numbers import whole_number
from underpaint.cli.errors import bad_input
from underpaint.cli.options import read_numbers
from underpaint.cli.outputs import json_output
from underpaint.cli.terminal import (
    Column,
    Format,
    FormatOption,
    ResultTable,
    check_json,
    figure,
    show,
    told_as_json,
)
from underpaint.cli.train.options import TOKENIZER, Pixels, Resolution, Threads, TokenizerFrom, prepare
from underpaint.cli.train.stages import stages

if TYPE_CHECKING:
    from underpaint.training.near_duplicates import DuplicateReport

RANKS = "1,2,4,8,16,32,64,128,256"


def report_near_duplicates(
    tokenizer: TokenizerFrom = TOKENIZER,
    resolution: Resolution = Pixels.large,
    pictures: Annotated[int, typer.Option(help="How many fresh scenes.", min=1, max=10_000)] = 64,
    ranks: Annotated[str, typer.Option(help="Which neighbours, nearest 1, with commas between.")] = RANKS,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", "--out", parser=json_output, help="Write everything as JSON to this file; - is standard output."
        ),
    ] = None,
    threads: Threads = None,
    form: FormatOption = Format.table,
) -> None:
    """Replace every code of real scenes by its k-th nearest code, and say what that does to their pictures."""
    from underpaint.models.checkpoints import load_vq
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.training.near_duplicates import near_duplicates
    from underpaint.training.pictures import TexturedPictures

    with bad_input():
        prepare("cpu", threads)
        wanted = read_numbers("--ranks", ranks, whole_number)
        check_json(json_file)
        vq = load_vq(tokenizer)
        with stages() as told:
            scenes = TexturedPictures(report=told)
            found = near_duplicates(vq, scenes, side=int(resolution), count=pictures, ranks=wanted, report=told)
        values = {**found.to_dict(), "machine": describe_machine(), "command": typed_command()}
        if told_as_json(json_file, values):
            return
    show([_table(found)], form)


def _table(found: "DuplicateReport") -> ResultTable:
    title = (
        f"{found.pictures} pictures of {found.side} px: PSNR {found.psnr:.2f} dB, {found.codes_used} of "
        f"{found.codebook} codes, perplexity {found.perplexity:.0f}"
    )
    columns = (
        Column("rank", "replaced\nby", lambda rank: f"neighbour {rank}" if rank else "a random code"),
        figure("cosine", "cosine", ".3g"),
        figure("change_mse", "change,\nMSE", ".3g"),
        figure("change_db", "change,\ndB", ".3g"),
        figure("psnr", "PSNR,\ndB", ".3g"),
        figure("one_cell_mse", "one cell,\nMSE", ".3g"),
    )
    return ResultTable(title, columns, found.to_dict()["replacements"])
