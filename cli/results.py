"""`underpaint results`: validate and rank result files of this machine and of others."""

from pathlib import Path
from typing import Annotated

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.outputs import Commands
from underpaint.cli.tables import Column, ResultTable, figure, show, with_interval
from underpaint.cli.terminal import Format, FormatOption, JsonFile, check_json, emit_json

app = Commands(help="Validate and rank files of results.", no_args_is_help=True)

Files = Annotated[list[Path], typer.Argument(help="Files that compare --json, sweep or certify --json wrote.")]


@app.command()
def validate(paths: Files, form: FormatOption = Format.table) -> None:
    """Check files against the schema; exit code 2 at the first that does not match."""
    from underpaint.artifacts.results import VERSION, read_results

    with bad_input():
        records = [(path, read_results(path)) for path in paths]
    columns = (Column("file"), Column("kind"), Column("version", right=True))
    rows = [{"file": str(path), "kind": one["kind"], "version": VERSION} for path, one in records]
    show([ResultTable("as the schema says", columns, rows)], form)


@app.command()
def rank(
    paths: Files,
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """Put the methods of several machines or models side by side, the fastest first.

    Files are records of `underpaint protocol`, comparisons, sweeps and evaluations. Figures of one file, machine and
    folder of models stand in one column.
    """
    from underpaint.artifacts.results import read_results
    from underpaint.runtime.protocol.tables import ranked, sides_of

    with bad_input():
        check_json(json_file)
        sides = sides_of([(str(path), read_results(path)) for path in paths])
        if not sides:
            raise ValueError("expected a comparison, a sweep or an evaluation, got only results that have no speed")
    rows = ranked(sides)
    if emit_json(json_file, rows):
        return
    about = [{name: value for name, value in side.items() if name not in ("of", "rows")} for side in sides]
    table_rows = [
        {
            **row,
            **{f"{side}_{name}": value for side, one in row["sides"].items() for name, value in (one or {}).items()},
        }
        for row in rows
    ]
    kinds = (
        ("speedup", "speedup\n(95 %)", ".2f"),
        ("target_nfe", "target\npasses", ".1f"),
        ("tokens_per_pass", "tokens\na pass", ".2f"),
        ("quality_over_ar", "quality less\nAR's (95 %)", "+.3f"),
    )
    figures = [
        (with_interval if "95 %" in head else figure)(f"{side['side']}_{name}", f"{side['side']}: {head}", digits)
        for name, head, digits in kinds
        for side in about
    ]
    names = [Column(name, prose=name in ("file", "machine")) for name in about[0]]
    heats = list(dict.fromkeys(row["temperature"] for row in rows))
    tables = [
        ResultTable(
            f"temperature {heat:g}",
            (Column("method"), Column("lossless", "loss-\nless"), *figures),
            [row for row in table_rows if row["temperature"] == heat],
        )
        for heat in heats
    ]
    show([ResultTable("sides", names, about), *tables], form)
