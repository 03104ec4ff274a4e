"""`underpaint certify --live`: judge methods on a live model's own distributions."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import typer

from underpaint.algos.protocols import Grid
from underpaint.cli.errors import bad_input
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import read_names, settings_by_method
from underpaint.cli.tables import Column, ResultTable, figure, show
from underpaint.cli.terminal import Format, check_json, emit_json

DEFAULT_GRID = "2x2"
DEFAULT_METHODS = "speculative,eagle2"


def certify_live(
    live: LiveOptions,
    methods: str | None,
    setting: Sequence[str],
    top_k: int | None,
    json_file: Path | None,
    form: Format,
) -> bool:
    """Enumerate small pictures of methods on a live model, and print their total variation from plain decoding.

    Args:
        live: The live model. Its grid is the pictures' grid: 2x2 by default; "3" means 3x3. Its drafter may have been
            trained for any grid.
        methods: Comma-separated names; None for the default ones.
        setting: Settings of the methods, as `method.name=value`.
        top_k: Number of likeliest codes kept in each distribution; 2 by default.
        json_file: File for the figures, if given.
        form: Format of the table.

    Returns:
        True if every method that promises the model's distribution keeps it.
    """
    from underpaint.runtime.evaluation.comparison import build_methods, named_variants
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.runtime.live.drafter import drafter_grid
    from underpaint.runtime.live.enumerated import ROUNDING, SmallPictures
    from underpaint.runtime.methods.registry import PAPER

    with bad_input():
        check_json(json_file)
        names = read_names(methods or DEFAULT_METHODS)
        if not names:
            raise ValueError(f"--methods: expected one or more, got none; leave it out for {DEFAULT_METHODS}")
        variants = named_variants(names, settings_by_method(list(setting), names))
        live.check(None, None, None, "cpu")
        side = live.grid or DEFAULT_GRID
        grid = Grid.read(side if "x" in side else f"{side}x{side}")
        trained_for = None if live.drafter is None else drafter_grid(live.drafter)  # any; the pictures are smaller
        live_options = replace(
            live,
            grid=None if trained_for is None else f"{trained_for.height}x{trained_for.width}",
            dtype="float32" if live.dtype == "auto" else live.dtype,
        )
        small = SmallPictures(live_options.open(), grid, 2 if top_k is None else top_k)
        temperature = small.sampling.temperature
        (plain,) = build_methods(small.pipeline, named_variants(("ar",), {}), temperature, PAPER)
        rows = small.judge(plain, build_methods(small.pipeline, variants, temperature, PAPER))
    table_rows = [{**asdict(row), "verdict": _verdict(row.promises, row.lossless)} for row in rows]
    values = {
        "grid": list(grid),
        "sampling": asdict(small.sampling),
        "random_drafter": small.drafter_is_random,
        "model": small.pipeline.fingerprint(),
        "rounding": ROUNDING,
        "rows": table_rows,
    }
    if not emit_json(json_file, {"command": typed_command(), "machine": describe_machine(), **values}):
        columns = (
            *(Column("method"), Column("verdict"), figure("bias", "total variation", ".1e")),
            *(figure("pictures", "pictures", ",d"), figure("runs", "courses", ",d")),
        )
        show([ResultTable(f"{small.pipeline.title()}, {small.sampling.top_k} codes a cell", columns, table_rows)], form)
        if small.drafter_is_random:
            typer.echo("drafts are a random drafter's: a lossless method keeps the distribution with any", err=True)
    return all(row.lossless for row in rows if row.promises)


def _verdict(promises: bool, lossless: bool) -> str:
    if lossless:
        return "lossless"
    return "biased" if promises else "biased, as it may be"
