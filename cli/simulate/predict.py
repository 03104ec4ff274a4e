"""`underpaint simulate predict`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.errors import bad_input

if TYPE_CHECKING:
    from collections.abc import Sequence

    from underpaint.sim.replay.predict import Predicted


def predict(
    trace: Annotated[Path, typer.Option(help="A trace (.npz) of the compared model, on other prompts.")],
    costs: Annotated[Path, typer.Option(help="A cost curve of the machine, from `underpaint costs --full --export`.")],
    compare: Annotated[Path, typer.Option(help="The JSON of `underpaint compare`.")],
    methods: Annotated[
        str | None, typer.Option(help="Methods, with commas between; default: all that the trace says enough of.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Decodings of each recorded image.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict what a comparison measured, and print both.

    Nothing of the comparison is used but its settings: the distributions are the trace's, the times are the curve's,
    those taken inside cycles where it holds them.
    """
    from underpaint.artifacts.cost_curve import read_cost_curve
    from underpaint.sim.latency.models import MeasuredCosts
    from underpaint.sim.replay.comparison import check_belong, check_measured_on, load_comparison
    from underpaint.sim.replay.predict import predict as predict_all
    from underpaint.sim.replay.predict import unpredictable
    from underpaint.sim.replay.trace import load

    with bad_input():
        held, curve, measured = load(trace), read_cost_curve(costs), load_comparison(compare)
        in_cycle = curve.in_cycle
        check_belong(held, measured)
        check_measured_on(curve, measured)
        wanted = None if methods is None else tuple(name.strip() for name in methods.split(","))
        found = predict_all(held, MeasuredCosts.of(curve), measured, seeds, in_cycle=in_cycle, methods=wanted)
    if as_json:
        rows = [
            {
                **one._asdict(),
                "tokens_error": one.tokens_error,
                "speedup_error": one.speedup_error,
                "in_cycle": in_cycle is not None,
                "cost_curve": curve.fingerprint,
            }
            for one in found
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    print_table(found, f"predicted from {trace.name} and {costs.name}, measured in {compare.name}")
    if in_cycle is None:
        typer.echo(
            f"{costs.name} holds no in_cycle: passes cost what they do repeated alone, which is too little, and the "
            "host what it took here. Measure a whole curve with `underpaint costs --full`."
        )
    elif not (curve.in_grid or all("policy" in measured.methods[one.method] for one in found)):
        typer.echo(
            f"{costs.name} holds no in_grid: passes of ZipAR and MuLo-SD cost what they do repeated alone, which is "
            "too little. Measure a whole curve with `underpaint costs --full`."
        )
    for name, reason in unpredictable(measured, held).items() if wanted is None else ():
        typer.echo(f"Not predicted: {name}. {reason[0].upper()}{reason[1:]}.")


def print_table(found: "Sequence[Predicted]", title: str) -> None:
    """Print predictions beside measurements, and how many are near enough."""
    from underpaint.cli.terminal import console, table
    from underpaint.sim.replay.predict import SPEEDUP_TOLERANCE, TOKENS_TOLERANCE

    shown = table(title)
    shown.add_column("method\n", no_wrap=True)
    for head in ("tokens\nmeasured", "\npredicted", "\nerror", "\nchance", "depth\nmeasured", "\npredicted"):
        shown.add_column(head, justify="right")
    for head in ("speed-up\nmeasured", "\npredicted", "\nerror", "host\nms/cycle"):
        shown.add_column(head, justify="right")
    for one in found:
        shown.add_row(
            *(one.method, f"{one.measured_tokens_per_cycle:.3f}", f"{one.tokens_per_cycle.mean:.3f}"),
            *(f"{one.tokens_error:+.1%}", f"+-{one.tokens_chance:.1%}"),
            *(f"{one.measured_mean_depth:.2f}", f"{one.mean_depth:.2f}"),
            *(f"{one.measured_speedup:.3f}x", f"{one.speedup.mean:.3f}x", f"{one.speedup_error:+.1%}"),
            f"{one.overhead_ms:.2f}",
        )
    console().print(shown)
    near = sum(abs(one.tokens_error) <= TOKENS_TOLERANCE for one in found)
    fast = sum(abs(one.speedup_error) <= SPEEDUP_TOLERANCE for one in found)
    typer.echo(
        f"Tokens per cycle within {TOKENS_TOLERANCE:.0%}: {near} of {len(found)}. "
        f"Speed-up within {SPEEDUP_TOLERANCE:.0%}: {fast} of {len(found)}."
    )
    chance = sum(abs(one.tokens_error) <= one.tokens_chance for one in found)
    typer.echo(
        f"Trace and comparison are of different prompts: chance alone makes 95% of errors in tokens smaller than '+-'; "
        f"{chance} of {len(found)} are. More prompts on both sides narrow it."
    )
