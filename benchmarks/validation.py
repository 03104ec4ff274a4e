"""How far the simulator can be trusted: simulated closed forms, and all known errors for the page of results.

Run: python -m benchmarks.validation --out benchmarks/results/closed-forms.json

Chains and trees are simulated on models whose cells do not depend on each other, so closed forms say their tokens a
cycle; rules are enumerated. `python -m benchmarks.pages` makes the page from this record, from the tables that come
with the simulator, and from the records of comparisons. The last line is JSON.
"""

import itertools
from collections.abc import Mapping
from math import log
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.report import at_least, finish, options, parse
from underpaint.algos.accept import RULES
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.row_front import front_steps
from underpaint.algos.spatial.zipar import zipar
from underpaint.algos.transport import overlap
from underpaint.sim.batched.decoding import make_scheme, run_lockstep
from underpaint.sim.exact.rule_report import exact_report
from underpaint.sim.latency.published_latencies import check_latencies
from underpaint.sim.replay.row_trace import RecordedGridTarget
from underpaint.sim.report.published import check, groups
from underpaint.sim.report.statistics import tokens_per_cycle
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableModel

FILE: Final = "closed-forms.json"
PREDICTIONS: Final = {
    "predict-128-t1.json": "tree methods, on earlier models",
    "predict-mulo-t1.json": "MuLo-SD and ZipAR, on earlier models",
    "protocol-predictions.json": "protocol 1, on the models that ship",
}
"""Records that compare predictions with this project's own measurements."""
WITHIN: Final = 0.10
"""The relative error of a speedup above which the page shows where the time goes."""
PASSES: Final = "a pass on a known GPU, published"
TOKENS: Final = "tokens a cycle from a trace"
PARTS: Final = {"target": "target passes", "drafter": "drafting", "host": "host"}

Row = Mapping[str, Any]


class Residual(NamedTuple):
    """Relative errors of one kind of prediction, without those to which anything was fitted."""

    kind: str
    errors: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """Return the absolute error that this share of the errors stays below."""
        return float(np.quantile(np.abs(self.errors), share))


def _independent(error: float, side: int = 48) -> TableModel:
    settings = {"rows": 1, "error": error, "vocab_size": 12, "height": side, "width": side, "images": 1, "seed": 4}
    return make_synthetic_model("dirichlet", settings)


def closed_forms(images: int) -> list[dict[str, Any]]:
    """Return simulated tokens per cycle, or passes, next to their closed forms."""
    rows = []
    for error, length in itertools.product((0.3, 0.6, 0.9), (1, 3, 6)):
        model = _independent(error)
        acceptance = float(overlap(model.target[0], model.draft[0, 0]))
        runs = run_lockstep(model, make_scheme(model, "chain", "chain", {"length": length}), images, 0).runs
        expected = sum(acceptance**step for step in range(length + 1))
        what = f"Leviathan's chain of {length}, acceptance {acceptance:.2f}: tokens a cycle"
        rows.append(_row(what, "arXiv 2211.17192, equation 1", expected, tokens_per_cycle(runs).mean))
    for window, side in itertools.product((1, 4), (4, 8)):
        grid = Grid(side, side)
        done = zipar(RecordedGridTarget(grid, np.full((side**2, 3), 1 / 3)), window, sampling(0))
        what = f"ZipAR's passes, {side} x {side} cells, window {window}"
        rows.append(_row(what, "arXiv 2412.04062", front_steps(grid, window), len(done.steps)))
    return rows


def _row(what: str, source: str, expected: float, simulated: float) -> dict[str, Any]:
    return {
        "what": what,
        "source": source,
        "expected": expected,
        "simulated": simulated,
        "error": simulated / expected - 1.0,
    }


def enumerated() -> list[dict[str, Any]]:
    """Return the total variation of every lossless rule's enumerated output from the target's distribution."""
    rows = []
    for spec in RULES:
        if spec.is_lossless({}):
            rows.append({"rule": spec.name, "total_variation": float(exact_report(spec.name).total_variation)})
    return rows


def validation_figures(records: Mapping[str, Row]) -> dict[str, Any]:
    """Return the values for the page's template.

    Args:
        records: Existing records by file name: the closed forms, and perhaps predictions.
    """
    closed, passes = records[FILE], check_latencies()
    published = [one for group in groups() for one in check(group)]
    one_ratio = [one for one in published if one.verdict != "fitted on" and one.group.kind != "fronts"]
    residuals = [
        Residual("tokens a cycle or passes of a closed form", tuple(row["error"] for row in closed["closed_forms"])),
        Residual(PASSES, tuple(one.error for one in passes if not one.row.fitted and not one.row.reason)),
        Residual(
            "a published speedup from its own tokens, one ratio a table",
            tuple(one.error for one in one_ratio if one.error is not None),
        ),
        Residual(
            "the same from a roofline and an assumed tree",
            tuple(one.roofline_error for one in published if one.roofline_error is not None),
        ),
    ]
    predictions = [measured(records[file], file, title) for file, title in PREDICTIONS.items() if file in records]
    for one in predictions:
        tokens, speeds = (tuple(row[name] for row in one["rows"]) for name in ("tokens_error", "speedup_error"))
        residuals.append(Residual(f"{TOKENS}: {one['title']}", tokens))
        residuals.append(Residual(f"speedup by its machine's curve: {one['title']}", speeds))
    by_kind = {one.kind: one.quantile(0.9) for one in residuals}
    most = max(size for kind, size in by_kind.items() if kind.startswith(TOKENS))
    return {
        "closed": closed,
        "passes": passes,
        "published": published,
        "residuals": residuals,
        "explained": sorted(abs(one.error) for one in passes if not one.row.fitted and one.row.reason),
        "predictions": predictions,
        "expected": float(np.hypot(by_kind[PASSES], most)),  # tokens a cycle and passes, taken as independent
        "within": WITHIN,
    }


def measured(record: Row, file: str, title: str) -> dict[str, Any]:
    """Return a record of predictions for the page: predicted rows, reasons for missing rows, and times of far rows.

    Returns:
        `file`, `title`, `command`, `rows` (the predicted ones), `reasons` (the other methods by reason), `timed` (the
        rows with times of their parts), `far` (those of them with an error above `WITHIN`, the largest first, each
        with whether it is inside its interval and which part has most of the error), `steps` and `curve_step` (ms of
        a plain step in the record, by temperature, and in the curve), and `by_chance` (the number of far rows that
        exact predictions would have, by the measured intervals).
    """
    rows = [row for row in record["rows"] if "reason" not in row]
    reasons: dict[str, list[str]] = {}
    for row in record["rows"]:
        if "reason" in row and row["method"] not in reasons.setdefault(row["reason"], []):
            reasons[row["reason"]].append(row["method"])
    timed = [row for row in rows if row.get("measured_parts")]
    far = [
        {
            "row": row,
            "inside": row["measured_low"] <= row["speedup"][0] <= row["measured_high"],
            "most": _most(row),
        }
        for row in sorted(timed, key=lambda row: -abs(row["speedup_error"]))
        if abs(row["speedup_error"]) > WITHIN
    ]
    about = {"file": file, "title": title, "command": record.get("command", "not recorded")}
    about["steps"] = [f"{ms:.2f}" for ms in record.get("measured_plain_ms", ())]
    about["curve_step"] = f"{record.get('curve_plain_ms', 0.0):.2f}"
    spreads = [log(row["measured_high"] / row["measured_low"]) / 3.92 for row in timed]  # an interval is of 95 %
    about["by_chance"] = sum(2.0 * NormalDist(0.0, spread).cdf(-WITHIN) for spread in spreads)
    return {**about, "rows": rows, "reasons": reasons, "timed": timed, "far": far}


def _passes(row: Row) -> float:
    """Return the predicted passes over the measured ones."""
    return 1.0 / (1.0 + float(row["tokens_error"]))


def _most(row: Row) -> str:
    """Return the largest source of a row's error: the number of cycles, or the time of one part."""
    passes = _passes(row)
    gaps = {
        f"time of {name}": row["parts"][part] / passes - row["measured_parts"][part] for part, name in PARTS.items()
    }
    gaps["number of cycles"] = (1.0 - 1.0 / passes) * sum(row["parts"].values())
    return max(gaps, key=lambda name: abs(gaps[name]))


def main(arguments: list[str] | None = None) -> None:
    parser = options("validation", __doc__)
    parser.add_argument("--images", type=at_least(2), default=200, help="images of each simulation")
    args = parse(parser, arguments)
    rows, rules = closed_forms(args.images), enumerated()
    for row in rows:
        print(f"{row['what']:60s} {row['expected']:9.4f} {row['simulated']:9.4f} {row['error']:+.2%}")
    for row in rules:
        print(f"{row['rule']:24s} total variation {row['total_variation']:.1e}")
    finish({"benchmark": "validation", "closed_forms": rows, "rules": rules}, args.out)


if __name__ == "__main__":
    main()
