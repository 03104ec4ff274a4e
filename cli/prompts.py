"""`underpaint prompts`: the words that models know."""

from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.cli.errors import bad_input
from underpaint.cli.options import Models
from underpaint.cli.terminal import Column, Format, FormatOption, ResultTable, show

if TYPE_CHECKING:
    from pathlib import Path

    from underpaint.zoo.grammars import Grammar


def prompts(
    concepts: Annotated[bool, typer.Option("--concepts", help="The things that can be drawn, one a line.")] = False,
    backgrounds: Annotated[
        bool, typer.Option("--backgrounds", help="What can lie behind them, one a line: colours, or grounds.")
    ] = False,
    random: Annotated[
        int | None, typer.Option(help="So many prompts drawn at random, one a line.", min=1, max=100_000)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --random.", min=0, max=MOST_SEED)] = 0,
    models: Models = None,
    form: FormatOption = Format.table,
) -> None:
    """List the words of a prompt by what they say, or draw prompts at random: a file of them is a prompt file.

    What models of no prompt grammar take (a class, ids, features) their own documents say.
    """
    with bad_input():
        if sum((concepts, backgrounds, random is not None)) > 1:
            raise ValueError("--concepts, --backgrounds and --random each print a list of their own; name one of them")
        grammar = _grammar(models)
    if concepts or backgrounds:
        slot = grammar.subject if concepts else grammar.background
        _lines("concept" if concepts else "background", list(grammar.slots[slot]), form)
        return
    if random is not None:
        rng = np.random.default_rng(seed)
        _lines("prompt", [grammar.sample(rng).caption for _ in range(random)], form)
        return
    rows = [{"slot": name, "words": ", ".join(words), "count": len(words)} for name, words in grammar.words.items()]
    columns = (Column("slot"), Column("count", right=True), Column("words", prose=True))
    show([ResultTable(f'what a prompt says: "{grammar.example}"', columns, rows)], form)


def _grammar(models: "Path | None") -> "Grammar":
    """Of a folder's models; ManifestError on a folder that cannot be opened, ValueError where they take no words."""
    from underpaint.artifacts.model_index import read_index
    from underpaint.zoo.grammars import index_grammar
    from underpaint.zoo.load import FOLDER

    index = read_index(models or FOLDER)
    grammar = index_grammar(index)
    if grammar is None:
        raise ValueError(f"--models {models}: its models take no words, but {index.condition}; nothing is listed")
    return grammar


def _lines(name: str, values: list[str], form: Format) -> None:
    """One a line, so that it can be piped; or as the format has it."""
    if form is Format.table:
        typer.echo("\n".join(values))
    else:
        show([ResultTable("", [Column(name)], [{name: value} for value in values])], form)
