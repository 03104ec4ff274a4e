"""`underpaint simulate predict`: predict what a comparison measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.option_values import read_names
from underpaint.cli.tables import Column, ResultTable, figure, show
from underpaint.cli.terminal import Format, FormatOption, JsonFile, check_json, emit_json, note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from underpaint.sim.replay.predict import Predicted


def predict(
    trace: Annotated[Path, typer.Option(help="A trace (.npz) of the compared model, on other prompts.")],
    costs: Annotated[Path, typer.Option(help="A cost curve of the machine, from `underpaint costs --full --export`.")],
    compare: Annotated[Path, typer.Option(help="The JSON of `underpaint compare`.")],
    methods: Annotated[
        str | None, typer.Option(help="Methods, separated by commas; default: all that the trace covers.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Decodings of each recorded image.", min=1, max=1000)] = 1,
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """Predict what a comparison measured, and print both.

    The prediction uses only the settings of the comparison. Distributions come from the trace, and times from the cost
    curve, preferably those measured inside decoding cycles.
    """
    from underpaint.artifacts.cost_curve import read_cost_curve
    from underpaint.sim.latency.models import SizeMissing
    from underpaint.sim.replay.comparison import check_belong, check_measured_on, load_comparison
    from underpaint.sim.replay.predict import predict as predict_all
    from underpaint.sim.replay.predict import predictable, unpredictable
    from underpaint.sim.replay.trace import load, replay

    with bad_input():
        check_json(json_file)
        recorded, curve, measured = load(trace), read_cost_curve(costs), load_comparison(compare)
        check_belong(recorded, measured)
        check_measured_on(curve, measured)
        names = tuple(dict.fromkeys(read_names(methods or ""))) or None
        reasons = {} if names else dict(unpredictable(measured, recorded, curve))
        predictions, model = list["Predicted"](), replay(recorded)
        for name in predictable(measured, recorded, names, curve):
            try:
                predictions += predict_all(recorded, curve, measured, seeds, methods=[name], replayed=model)
            except SizeMissing as error:
                if names:
                    raise
                reasons[name] = str(error)
        if reasons and not predictions:
            name, reason = next(iter(reasons.items()))
            raise ValueError(f"none of its {len(reasons)} methods can be predicted. The first, {name}: {reason}")
    rows = [
        {
            **one._asdict(),
            "tokens_error": one.tokens_error,
            "speedup_error": one.speedup_error,
            "in_cycle": curve.in_cycle is not None,
            "cost_curve": curve.fingerprint,
        }
        for one in predictions
    ]
    if emit_json(json_file, rows):
        return
    print_table(predictions, f"predicted from {trace.name} and {costs.name}, measured in {compare.name}", form)
    if curve.in_cycle is None:
        note(
            f"{costs.name} holds no in_cycle: passes cost what they do repeated alone, which is too little, and the "
            "host its overhead_ms. Measure a whole curve with `underpaint costs --full`.",
            form,
        )
    for name, reason in reasons.items():
        note(f"Not predicted: {name}. {reason[0].upper()}{reason[1:]}.", form)


def print_table(predictions: "Sequence[Predicted]", title: str, form: Format = Format.table) -> None:
    """Print predictions next to measurements, and how many are close enough."""
    from underpaint.sim.replay.predict import SPEEDUP_TOLERANCE, TOKENS_TOLERANCE

    columns = (
        Column("method", "method\n"),
        figure("tokens_measured", "tokens\nmeasured", ".3f"),
        figure("tokens_predicted", "\npredicted", ".3f"),
        figure("tokens_error", "\nerror", "+.1%"),
        Column("tokens_chance", "\nchance", lambda share: f"+-{share:.1%}", right=True),
        figure("depth_measured", "depth\nmeasured", ".2f"),
        figure("depth_predicted", "\npredicted", ".2f"),
        figure("speedup_measured", "speedup\nmeasured", ".3f", "x"),
        figure("speedup_predicted", "\npredicted", ".3f", "x"),
        figure("speedup_error", "\nerror", "+.1%"),
        figure("host_ms", "host\nms/cycle", ".2f"),
    )
    rows = [
        {
            "method": one.method,
            "tokens_measured": one.measured_tokens_per_cycle,
            "tokens_predicted": one.tokens_per_cycle.mean,
            "tokens_error": one.tokens_error,
            "tokens_chance": one.tokens_chance,
            "depth_measured": one.measured_mean_depth,
            "depth_predicted": one.mean_depth,
            "speedup_measured": one.measured_speedup,
            "speedup_predicted": one.speedup.mean,
            "speedup_error": one.speedup_error,
            "host_ms": one.overhead_ms,
        }
        for one in predictions
    ]
    show([ResultTable(title, columns, rows)], form)
    near = sum(abs(one.tokens_error) <= TOKENS_TOLERANCE for one in predictions)
    fast = sum(abs(one.speedup_error) <= SPEEDUP_TOLERANCE for one in predictions)
    note(
        f"Tokens per cycle within {TOKENS_TOLERANCE:.0%}: {near} of {len(predictions)}. "
        f"Speedup within {SPEEDUP_TOLERANCE:.0%}: {fast} of {len(predictions)}.",
        form,
    )
    chance = sum(abs(one.tokens_error) <= one.tokens_chance for one in predictions)
    note(
        f"Trace and comparison are of different prompts: chance alone makes 95% of errors in tokens smaller than '+-'; "
        f"{chance} of {len(predictions)} are. More prompts on both sides narrow it.",
        form,
    )
