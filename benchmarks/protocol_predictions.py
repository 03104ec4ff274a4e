"""What the simulator predicts of protocol 1, beside what was measured: from traces of other prompts and a cost curve.

Run: python -m benchmarks.protocol_predictions --record protocol.json --costs costs.json --out predictions.json

Record and cost curve are those that `underpaint protocol` leaves in its folder: the curve was measured between the
drawings, because in two states of one machine a pass over four nodes cost 1.4 and 1.7 plain passes. Each temperature is
predicted from traces of that temperature on other prompts than the record's: 160 pictures of plain autoregression, and
16 by the methods that no replay can draw. Traces that are not given and not in `--work` yet are made there by
`underpaint trace`, in an hour. Nothing of the record is used but its settings. Methods for which a trace is not enough
are listed with the reason. The last line is JSON.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.report import at_least, finish, options, parse, refusing
from benchmarks.validation import WITHIN
from underpaint.artifacts.cost_curve import CostCurveFile, read_cost_curve
from underpaint.artifacts.results import read_results
from underpaint.runtime.protocol.tables import runs_of
from underpaint.sim.latency.models import SizeMissing
from underpaint.sim.latency.run_times import run_times
from underpaint.sim.replay.comparison import check_belong, check_measured_on, comparison_of
from underpaint.sim.replay.predict import PLAIN, not_replayed, predict, unpredictable
from underpaint.sim.replay.trace import Trace, load, replay

DEPTHS: Final = 10
"""Depth of the deepest trees in protocol 1, in levels."""
PICTURES: Final = 160
DRAWN: Final = 16
"""Pictures by each method that a replay cannot draw."""


def rows_of(
    run: Mapping[str, Any], traces: Sequence[Trace], curve: CostCurveFile, seeds: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each method of one temperature: prediction and measurement, or why there is no prediction.

    Each method is predicted from the first of `traces` that covers it.
    """
    comparison = comparison_of(run)
    for trace in traces:
        check_belong(trace, comparison)
    check_measured_on(curve, comparison)
    candidates = [(trace, unpredictable(comparison, trace, curve), replay(trace)) for trace in traces]
    temperature = run["settings"]["temperature"]
    for name, measured in comparison.rows.items():
        if name == PLAIN:
            continue
        row: dict[str, Any] = {"temperature": temperature, "method": name}
        trace, reasons, model = next((one for one in candidates if name not in one[1]), candidates[0])
        if name in reasons:
            yield {**row, "reason": reasons[name]}
            continue
        try:
            (one,) = predict(trace, curve, comparison, seeds, 0, 64, [name], model)
        except SizeMissing as error:
            yield {**row, "reason": str(error)}
            continue
        row |= {**one._asdict(), "tokens_error": one.tokens_error, "speedup_error": one.speedup_error}
        ends = {"measured_low": measured["speedup_low"], "measured_high": measured["speedup_high"]}
        yield {**row, **ends, "pictures": measured["images"]}


def traces_at(traces: Sequence[Trace], run: Mapping[str, Any]) -> list[Trace]:
    """Return the traces of a run's temperature; ValueError if there are none."""
    temperature = run["settings"]["temperature"]
    same = [trace for trace in traces if trace.about.get("sampler", {}).get("temperature") == temperature]
    if not same:
        raise ValueError(f"--trace: expected one at temperature {temperature:g}, which the record holds; record it too")
    return same


def _traced(run: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """Yield traces for one temperature of the record, on prompts after its own: plain pictures, and drawn ones."""
    settings = run["settings"]
    recipes = {name: recipe for name, recipe in settings["methods"].items() if " " not in name}
    drafted = [name for name, recipe in recipes.items() if recipe.get("loop") == "mulo"]
    drawn = [name for name, recipe in recipes.items() if name != PLAIN and not_replayed(recipe)]
    for kind, methods, pictures, depths in (("trace", drafted, PICTURES, DEPTHS), ("drawn", drawn, DRAWN, 1)):
        path = folder / f"{kind}-{settings['temperature']:g}.npz"
        if not path.is_file() and (methods or kind == "trace"):
            options = ["--methods", ",".join(methods)] if methods else []
            options += ["--temperature", f"{settings['temperature']:g}", "--prompts-count", str(pictures)]
            options += ["--depths", str(depths), "--prompts-skip", str(len(settings["prompts"]))]
            _trace(run, *options, "--out", str(path))
        if path.is_file():
            yield path


def _trace(run: Mapping[str, Any], *options: str) -> None:
    """Run `underpaint trace` at the record's resolution and guidance; ValueError if it fails."""
    settings = run["settings"]
    shared = ["--resolution", str(settings["resolution"]), "--guidance", f"{settings['guidance']:g}"]
    done = subprocess.run([sys.executable, "-m", "underpaint", "trace", *shared, *options], check=False)
    if done.returncode:
        raise ValueError(f"underpaint trace ended with {done.returncode}; see above")


def _plain_ms(run: Mapping[str, Any]) -> float:
    """Return the ms of a step of plain autoregression in a record."""
    (row,) = (row for row in run["rows"] if row["method"] == PLAIN)
    return 1e3 * float(row["seconds_per_image"]) / float(row["target_nfe"])


def _print(row: Mapping[str, Any]) -> None:
    start = f"temperature {row['temperature']:g}  {row['method']:26s}"
    if "reason" in row:
        print(f"{start} not predicted: {row['reason']}", flush=True)
        return
    print(
        f"{start} tokens {row['measured_tokens_per_cycle']:6.3f} {row['tokens_error']:+6.1%}  speedup "
        f"{row['measured_speedup']:.3f} ({row['measured_low']:.3f} to {row['measured_high']:.3f}), predicted "
        f"{row['speedup'].mean:.3f} {row['speedup_error']:+6.1%}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = options("protocol_predictions", __doc__)
    parser.add_argument("--record", type=Path, required=True, help="of `underpaint protocol`")
    parser.add_argument("--costs", type=Path, required=True, help="the cost curve of the same hours, beside the record")
    parser.add_argument("--trace", type=Path, action="append", help="of other prompts; one or more a temperature")
    parser.add_argument("--work", type=Path, default=Path("runs/predictions"), help="folder for what is made here")
    parser.add_argument("--seeds", type=at_least(1), default=4, help="decodings of each recorded image")
    args = parse(parser, arguments)
    with refusing(parser):
        runs = runs_of(read_results(args.record))
        paths = args.trace or [path for run in runs for path in _traced(run, args.work)]
        traces = [load(path) for path in paths]
        curve = read_cost_curve(args.costs)
        pairs = [(run, traces_at(traces, run)) for run in runs]
        rows = list[dict[str, Any]]()
        for run, same in pairs:
            for row in rows_of(run, same, curve, args.seeds):
                rows.append(row)
                _print(row)
    predictions = [row for row in rows if "reason" not in row]
    near = sum(abs(row["speedup_error"]) <= WITHIN for row in predictions)
    print(f"speedups within {WITHIN:.0%}: {near} of {len(predictions)}")
    about = {"machine_of_record": runs[0]["machine"], "cost_curve": curve.fingerprint, "seeds": args.seeds}
    about |= {"curve_plain_ms": run_times(curve).plain_ms, "measured_plain_ms": [_plain_ms(run) for run in runs]}
    finish({"benchmark": "protocol_predictions", "rows": rows, **about}, args.out)


if __name__ == "__main__":
    main()
