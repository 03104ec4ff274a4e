"""`underpaint check --invariance`: compare passes over many positions and rows with passes over one."""

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from underpaint.cli.errors import bad_input, on_interrupt
from underpaint.cli.tables import Column, ResultTable, figure, number, plain, show
from underpaint.cli.terminal import Format, check_json, emit_json, note, progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from underpaint.cli.live import LiveOptions

FAILED: Final = 1


def check_passes(
    folder: Path | None,
    live: "LiveOptions",
    models: tuple[str, ...],
    backend: str,
    seed: int,
    json_file: Path | None,
    form: Format,
) -> None:
    """Compare passes, and print a table or write JSON; exit with code 1 if rounding does not explain a difference.

    Args:
        folder: Folder of exported models; None for the shipped ones.
        live: The live model to use instead, if it names one.
        models: Names of the decoders to compare; empty for all.
        backend: The backend that runs exported models.
        seed: Seed of the random inputs.
        json_file: File for the figures, if given.
        form: Format of the table.
    """
    from underpaint.artifacts.model_index import read_index
    from underpaint.artifacts.results import with_envelope
    from underpaint.runtime.evaluation.invariance import check_invariance
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.runtime.pipeline import check_backend
    from underpaint.zoo.load import FOLDER

    with bad_input():
        live.check(folder, None, None, backend)
        if live.live is not None and models:
            raise ValueError("--model selects an exported model; a live model has only a target, so leave --model out")
        check_backend(backend)
        check_json(json_file)
        place, turns = folder or FOLDER, count(1)
        index = read_index(place) if live.live is None else None
        with on_interrupt(lambda: "stopped: nothing is written"), progress("reading the models") as advance:

            def report(what: str) -> None:
                advance(next(turns), what)

            if index is None:
                pipeline = live.open()
                compared = pipeline.check_passes(seed, report)
                hashes = pipeline.fingerprint()["sha256"]
            else:
                compared = check_invariance(place, models, backend, seed, report)
                hashes = index.hashes(name for name in index.models)
            passes = [one.to_dict() for one in compared]
    names = sorted({one["model"] for one in passes})
    engine = backend if live.live is None else "live"
    model = {"target": ", ".join(names), "engine": engine, "sha256": {name: hashes[name] for name in names}}
    values = {"model": model, "seed": seed, "passes": passes}
    if not emit_json(json_file, with_envelope("invariance", describe_machine(), typed_command(), values)):
        print_passes(passes, form)
    if not all(one["passed"] for one in passes):
        raise typer.Exit(FAILED)


def print_passes(passes: "Sequence[Mapping[str, Any]]", form: Format) -> None:
    """Print one line per model, form and count, for the worst row over all batches."""
    from underpaint.runtime.evaluation.pass_comparison import ALLOWED, summary

    rows = [{**one, "row": f"{one['row'] + 1} of {one['rows']}"} for one in summary(passes)]
    show([ResultTable("a token in a pass of many, against a pass of 1: the worst over rows", _COLUMNS, rows)], form)
    for precision, allowed in ALLOWED.items():
        same = [one for one in passes if one["precision"] == precision]
        if same:
            logits, probs, relative = (max(one[name] for one in same) for name in ("logits", "probs", "relative"))
            flips, tokens = sum(one["flips"] for one in same), sum(one["tokens"] for one in same)
            note(
                f"{precision}: largest difference of logits {logits:.3g} (relative {relative:.3g}, allowed "
                f"{allowed:g}), of probabilities {probs:.3g}; {flips} flips of the likeliest among {tokens} compared "
                f"tokens, whose smallest lead is {min(one['least_margin'] for one in same):.3g}",
                form,
            )


def _flip(value: Any) -> str:
    return "-" if value is None else f"cell {value['cell']}, lead {value['margin']:.2g}"


_COLUMNS: Final = (
    Column("model"),
    Column("precision"),
    Column("form"),
    Column("count", right=True),
    Column("row", right=True),
    Column("tokens", right=True),
    figure("logits", "logits", ".2g"),
    Column("probs", "probabilities", number(".2g"), right=True),
    Column("flips", right=True),
    Column("first_flip", "first flip", _flip),
    Column("passed", "passed", plain),
)
