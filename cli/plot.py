"""`underpaint plot`: figures for a paper, from the results of a sweep or from a trace."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.outputs import check_replaceable, output_file
from underpaint.cli.terminal import note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from underpaint.sim.report.figures import FigureSpec


def plot(
    source: Annotated[
        Path,
        typer.Argument(
            help="The results.jsonl of `underpaint simulate sweep` or `underpaint advise`; or a trace (.npz), for the "
            "figure acceptance.",
            show_default=False,
        ),
    ],
    figure: Annotated[
        str,
        typer.Option(
            help="speedup-tokens, pareto, depth-width, batch, cycle-time, alignment, or acceptance.", show_default=False
        ),
    ],
    out: Annotated[
        Path, typer.Option(parser=output_file, help="The file to write: .pdf, .svg or .png.", show_default=False)
    ],
    machine: Annotated[
        str | None, typer.Option(help="Machine of the sweep to show; default: the first.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of the sweep to show; default: all together.", show_default=False)
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(
            help="Width in inches; default: 3.4, a column of a two-column paper, or 7 for acceptance.",
            min=1.5,
            max=30.0,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Draw a figure at the size of a paper's column, in colours for colour-blind readers.

    | figure | shows |
    |---|---|
    | speedup-tokens | speedup against tokens a pass |
    | pareto | speedup against exact bias, with the front |
    | depth-width | speedup over depth and width of the trees |
    | batch | speedup against the batch: sweep machine,machine/batch4,... |
    | cycle-time | where a cycle's time goes |
    | alignment | speedup against the overlap of drafter and target |
    | acceptance | overlap of drafter and target, by depth and by cell |
    """
    from underpaint.algos.registry import suggest
    from underpaint.artifacts.files import check_file_writable
    from underpaint.artifacts.manifest import write_beside
    from underpaint.sim.report.canvas import FORMATS, rendered
    from underpaint.sim.report.figures import FIGURES

    with bad_input():
        form = out.suffix.lower().removeprefix(".")
        if form not in FORMATS:
            raise ValueError(f"--out {out}: expected a name that ends in .{', .'.join(FORMATS)}")
        if figure not in FIGURES:
            raise ValueError(f"--figure: {suggest(figure, FIGURES)}, got {figure!r}")
        check_file_writable(out)
        check_replaceable("--out", out)
        spec, size = FIGURES[figure], {} if width is None else {"width": width}
        content = rendered(partial(_drawing(spec, source, machine, model), **size), form)
    write_beside(out, content)
    typer.echo(str(out))
    note(f"{spec.title}. {spec.note}")


def _drawing(spec: "FigureSpec", source: Path, machine: str | None, model: str | None) -> "Callable[..., Figure]":
    """Return the function that draws the figure; ValueError for a file of another kind, machine or model."""
    from underpaint.sim.replay.trace import load
    from underpaint.sim.sweep.plan import TRACE
    from underpaint.sim.sweep.run import read_results

    if spec.of == "trace":
        if source.suffix != TRACE or machine or model:
            raise ValueError(
                f"--figure {spec.name}: expected a trace (.npz) alone, without --machine and --model, got {source}; "
                "record one with `underpaint trace`"
            )
        return partial(spec.draw, load(source))
    if source.suffix == TRACE:
        raise ValueError(
            f"--figure {spec.name}: expected the results.jsonl of a sweep, got {source}; run `underpaint simulate "
            f"sweep --model {source}` first"
        )
    lines: list[dict[str, Any]] = read_results(source)
    _check_one_of("--machine", machine, lines[0]["speedup"])
    _check_one_of("--model", model, dict.fromkeys(line["model"] for line in lines))
    chosen = [line for line in lines if model in (None, line["model"])]
    return partial(spec.draw, chosen, machine or next(iter(lines[0]["speedup"])))


def _check_one_of(option: str, value: str | None, choices: "dict[str, Any]") -> None:
    if value is not None and value not in choices:
        raise ValueError(f"{option}: expected one of {', '.join(choices)}, got {value!r}")
