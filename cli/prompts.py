"""`underpaint prompts`: the words that models know."""

from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.cli.errors import bad_input
from underpaint.cli.options import Models
from underpaint.cli.tables import Column, ResultTable, show
from underpaint.cli.terminal import Format, FormatOption

if TYPE_CHECKING:
    from pathlib import Path


def prompts(
    random: Annotated[
        int | None, typer.Option(help="Print this many random prompts, one per line.", min=1, max=100_000)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --random.", min=0, max=MOST_SEED)] = 0,
    models: Models = None,
    form: FormatOption = Format.table,
) -> None:
    """List the words that prompts may have, or print random prompts, one per line.

    Models without a prompt grammar take a class, ids or features instead, as their own documentation says.
    """
    from underpaint.zoo.textured_prompts import EXAMPLE, TYPED_WORDS, sample_textured

    with bad_input():
        _check_grammar(models)
    if random is not None:
        rng = np.random.default_rng(seed)
        captions = [sample_textured(rng).caption() for _ in range(random)]
        if form is Format.table:  # one per line, for pipes
            typer.echo("\n".join(captions))
        else:
            show([ResultTable("", [Column("prompt")], [{"prompt": text} for text in captions])], form)
        return
    rows = [{"slot": name, "words": ", ".join(words), "count": len(words)} for name, words in TYPED_WORDS.items()]
    columns = (Column("slot"), Column("count", right=True), Column("words", prose=True))
    show([ResultTable(f'what a prompt says: "{EXAMPLE}"', columns, rows)], form)


def _check_grammar(models: "Path | None") -> None:
    """Raise ManifestError for a folder that cannot be opened, ValueError if its models take no words."""
    from underpaint.artifacts.model_index import read_index
    from underpaint.zoo.load import FOLDER, takes_grammar

    index = read_index(models or FOLDER)
    if not takes_grammar(index):
        raise ValueError(f"--models {models}: expected models with prompts in words, got {index.condition}")
