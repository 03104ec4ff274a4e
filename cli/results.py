"""`underpaint results`: files of results, of this machine and of others: validated, merged, ranked."""

from pathlib import Path
from typing import Annotated

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.outputs import Commands, json_output
from underpaint.cli.terminal import (
    Column,
    Format,
    FormatOption,
    JsonFile,
    ResultTable,
    check_json,
    figure,
    interval,
    show,
    told_as_json,
)

app = Commands(help="Validate, merge and rank files of results.", no_args_is_help=True)

Files = Annotated[list[Path], typer.Argument(help="Files that compare --json, sweep or certify --json wrote.")]


@app.command()
def validate(paths: Files, form: FormatOption = Format.table) -> None:
    """Check files against the schema; exit code 2 at the first that is not as it says."""
    from underpaint.artifacts.results import VERSION, read_results

    with bad_input():
        found = [(path, read_results(path)) for path in paths]
    columns = (Column("file"), Column("kind"), Column("version", right=True))
    rows = [{"file": str(path), "kind": one["kind"], "version": VERSION} for path, one in found]
    show([ResultTable("as the schema says", columns, rows)], form)


@app.command()
def merge(
    paths: Files,
    out: Annotated[Path, typer.Option(parser=json_output, help="The merged file; it may be merged again.")] = Path(
        "merged.json"
    ),
) -> None:
    """Put results into one file; runs are told apart by machine, engine, model hashes and settings."""
    from underpaint.artifacts.files import check_file_writable
    from underpaint.artifacts.manifest import write_beside
    from underpaint.artifacts.results import merged, read_results, results_text

    with bad_input():
        found = merged([(path.name, read_results(path)) for path in paths])
        check_file_writable(out)
    write_beside(out, results_text(found).encode())
    typer.echo(f"{out}: {len(found['runs'])} runs")


@app.command()
def leaderboard(
    paths: Files,
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """Rank the methods of comparisons and sweeps by speed-up, each with its run, machine, engine and temperature."""
    from underpaint.artifacts.results import leaderboard as ranked
    from underpaint.artifacts.results import merged, read_results

    with bad_input():
        check_json(json_file)
        rows = ranked(merged([(path.name, read_results(path)) for path in paths]))
        if not rows:
            raise ValueError("expected a comparison or a sweep among these files; a certificate has no speed")
    if told_as_json(json_file, rows):
        return
    show([ResultTable("leaderboard", _COLUMNS, rows)], form)


_COLUMNS = (
    Column("method"),
    Column("lossless"),
    figure("speedup", "speed-up", ".2f", "x"),
    interval("speedup", "95 %", ".2f"),
    figure("tokens_per_cycle", "tokens per cycle", ".2f"),
    figure("prompt_accuracy", "accuracy", ".3f"),
    Column("images", right=True),
    Column("temperature", right=True),
    Column("run"),
    Column("machine", prose=True),
)
