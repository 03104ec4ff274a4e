"""`underpaint prompts`: the words that the shipped models know."""

from typing import Annotated

import numpy as np
import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.cli.errors import bad_input
from underpaint.cli.terminal import Column, Format, FormatOption, ResultTable, show
from underpaint.zoo.prompts import COLOURS, CONCEPT_NAMES, PLACES, SIZES, STYLES, TEXTURES, sample, seen_pairs

_SLOTS = {
    "concept": CONCEPT_NAMES,
    "style": STYLES,
    "size": SIZES,
    "place": PLACES,
    "texture": TEXTURES,
    "background": COLOURS,
}
"""Slots of a prompt in the order of its words, by the names that people use."""


def prompts(
    concepts: Annotated[bool, typer.Option("--concepts", help="The things that can be drawn, one a line.")] = False,
    backgrounds: Annotated[bool, typer.Option("--backgrounds", help="The colours of backgrounds, one a line.")] = False,
    random: Annotated[
        int | None, typer.Option(help="So many prompts drawn at random, one a line.", min=1, max=100_000)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --random.", min=0, max=MOST_SEED)] = 0,
    form: FormatOption = Format.table,
) -> None:
    """List the words of a prompt by what they say, or draw prompts at random: a file of them is a prompt file.

    What other folders of models take (a class, ids, features) their own documents say.
    """
    with bad_input():
        if sum((concepts, backgrounds, random is not None)) > 1:
            raise ValueError("--concepts, --backgrounds and --random each print a list of their own; name one of them")
    if concepts or backgrounds:
        _lines("concept" if concepts else "background", CONCEPT_NAMES if concepts else COLOURS, form)
        return
    if random is not None:
        rng, pairs = np.random.default_rng(seed), seen_pairs()
        _lines("prompt", [sample(rng, pairs).caption() for _ in range(random)], form)
        return
    rows = [{"slot": name, "words": ", ".join(words), "count": len(words)} for name, words in _SLOTS.items()]
    columns = (Column("slot"), Column("count", right=True), Column("words", prose=True))
    show([ResultTable('what a prompt says: "a large 3d fox, left, on a graded sky background"', columns, rows)], form)


def _lines(name: str, values: "list[str] | tuple[str, ...]", form: Format) -> None:
    """One a line, so that it can be piped; or as the format has it."""
    if form is Format.table:
        typer.echo("\n".join(values))
    else:
        show([ResultTable("", [Column(name)], [{name: value} for value in values])], form)
