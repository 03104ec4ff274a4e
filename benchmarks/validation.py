"""How far the simulator can be trusted: simulated closed forms, and the page that puts all known errors together.

Run: python -m benchmarks.validation --out benchmarks/results/closed-forms.json

Chains and trees are simulated on models whose cells do not depend on each other, so closed forms say their tokens a
cycle; rules are enumerated. `python -m benchmarks.pages` makes the page from this record, from the tables that come
with the simulator, and from the records of comparisons. The last line is JSON.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from underpaint.sim.report.published import check, groups
from underpaint.sim.report.statistics import tokens_per_cycle
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.grid_model import GridWeights, SyntheticGridTarget
from underpaint.sim.synthetic.table_model import TableModel

FILE: Final = "closed-forms.json"
PREDICTIONS: Final = {
    "predict-128-t1.json": "tree methods, on earlier models",
    "predict-mulo-t1.json": "MuLo-SD and ZipAR, on earlier models",
    "protocol-predictions.json": "protocol 1, on the models that ship",
}
"""Records of predictions beside this project's own measurements."""
WITHIN: Final = 0.10
"""The relative error of a speed-up beyond which the page says where the time goes."""
AUTHORS: Final = (
    ("EAGLE-2", "trees of `topK_genrate`", "180 of 180 equal, in as many passes"),
    ("OPT-Tree", "trees", "160 of 160 equal"),
    ("Sequoia", "trees and expected tokens", "equal where its budgets and ours agree"),
    ("ZipAR", "passes on square grids of 4 to 8", "within one step"),
    ("SJD", "passes of its sampler", "800 of 800 equal"),
    ("SCD, maximal", "passes of its sampler, with the old scores", "400 of 400 equal"),
    ("PJD", "whole images", "200 of 200 equal, tokens and passes"),
)
"""Code, what was compared, and the result; docs/explanation/rivals.md says how."""

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]


class Residual(NamedTuple):
    """Errors of one kind of prediction, relative and without those that anything was fitted to."""

    kind: str
    errors: tuple[float, ...]

    def cells(self) -> tuple[str, ...]:
        """Its row: how many, the median, nine in ten, and the largest."""
        size = np.abs(self.errors)
        found = (np.median(size), np.quantile(size, 0.9), size.max())
        return (self.kind, str(len(self.errors)), *(f"{100 * one:.1f} %" for one in found))


def _independent(error: float, side: int = 48) -> TableModel:
    settings = {"rows": 1, "error": error, "vocab_size": 12, "height": side, "width": side, "images": 1, "seed": 4}
    return make_synthetic_model("dirichlet", settings)


def closed_forms(images: int) -> list[dict[str, Any]]:
    """Simulated tokens a cycle, or passes, beside their closed forms."""
    rows = []
    for error, length in itertools.product((0.3, 0.6, 0.9), (1, 3, 6)):
        model = _independent(error)
        kept = float(overlap(model.target[0], model.draft[0, 0]))
        runs = run_lockstep(model, make_scheme(model, "chain", "chain", {"length": length}), images, 0).runs
        expected = sum(kept**step for step in range(length + 1))
        what = f"Leviathan's chain of {length}, acceptance {kept:.2f}: tokens a cycle"
        rows.append(_row(what, "arXiv 2211.17192, equation 1", expected, tokens_per_cycle(runs).mean))
    for window, side in itertools.product((1, 4), (4, 8)):
        grid = Grid(side, side)
        done = zipar(SyntheticGridTarget(GridWeights.random(grid, 3, seed=1)), window, sampling(0))
        what = f"ZipAR's passes, {side} x {side} cells, window {window}"
        rows.append(_row(what, "arXiv 2412.04062", front_steps(grid, window), len(done.steps)))
    return rows


def _row(what: str, source: str, expected: float, found: float) -> dict[str, Any]:
    return {"what": what, "source": source, "expected": expected, "simulated": found, "error": found / expected - 1.0}


def enumerated() -> list[dict[str, Any]]:
    """Every lossless rule, and how far its enumerated output is from the target's distribution."""
    rows = []
    for spec in RULES:
        if spec.is_lossless({}):
            rows.append({"rule": spec.name, "total_variation": float(exact_report(spec.name).total_variation)})
    return rows


def validation_page(records: Mapping[str, Mapping[str, Any]], table: Table) -> list[str]:
    """The parts of the page.

    Args:
        records: Of `FILE` and of `PREDICTIONS`, those that there are.
        table: Makes a table of headings and rows.
    """
    residuals = list[Residual]()
    parts = ["", *_closed(records[FILE], table, residuals), *_authors(table), *_published(table, residuals)]
    for file, title in PREDICTIONS.items():
        if file in records:
            parts += _measured(records[file], file, title, table, residuals)
    parts[0] = "\n\n".join(
        (
            "What a prediction may be off by, on top of the interval that it states. Rows that anything was fitted to "
            "are left out. *Nine in ten*: the relative error that nine of ten stayed below.",
            table(("prediction", "rows", "median error", "nine in ten", "largest"), [one.cells() for one in residuals]),
            "A speed-up on a GPU is the product of tokens a cycle and of two times, so add their errors: expect "
            f"{100 * _expected(residuals):.0f} % where the trace is of your model and the machine is known.",
        )
    )
    return parts


def _expected(residuals: Sequence[Residual]) -> float:
    """Nine in ten of the errors of tokens a cycle and of passes, taken as independent."""
    by_kind = {one.kind: np.quantile(np.abs(one.errors), 0.9) for one in residuals}
    return float(np.hypot(by_kind[PASSES], max(size for kind, size in by_kind.items() if kind.startswith(TOKENS))))


PASSES: Final = "a pass on a known GPU, published"
TOKENS: Final = "tokens a cycle from a trace"


def _closed(record: Mapping[str, Any], table: Table, residuals: list[Residual]) -> list[str]:
    rows = record["closed_forms"]
    residuals.append(Residual("tokens a cycle or passes of a closed form", tuple(row["error"] for row in rows)))
    cells = [
        (
            row["what"],
            row["source"],
            f"{row['expected']:.4f}",
            f"{row['simulated']:.4f}",
            f"{100 * row['error']:+.2f} %",
        )
        for row in rows
    ]
    worst = max(row["total_variation"] for row in record["rules"])
    names = ", ".join(f"`{row['rule']}`" for row in record["rules"])
    return [
        "## Closed forms",
        table(("what", "source", "closed form", "simulated", "error"), cells),
        "Simulated images end in the middle of a chain, which costs the longest ones up to half a percent. Enumerated "
        f"output of the lossless rules ({names}) is within {worst:.0e} of the target's distribution, in total "
        "variation.",
    ]


def _authors(table: Table) -> list[str]:
    return [
        "## Authors' code",
        "Run against our references on a CPU with the same random numbers; it is not part of this project. "
        "[How each was run](../explanation/rivals.md#run-or-read).",
        table(("code", "compared", "result"), AUTHORS),
    ]


def _published(table: Table, residuals: list[Residual]) -> list[str]:
    passes = check_latencies()
    fair = [one for one in passes if not one.row.fitted and not one.row.reason]
    residuals.append(Residual(PASSES, tuple(one.error for one in fair)))
    checked = [one for group in groups() for one in check(group)]
    fitted = [
        one for one in checked if one.error is not None and one.verdict != "fitted on" and one.group.kind != "fronts"
    ]
    residuals.append(
        Residual(
            "a published speed-up from its own tokens, one ratio a table", tuple(one.error or 0.0 for one in fitted)
        )
    )
    by_roofline = [one for one in checked if one.roofline_error is not None]
    residuals.append(
        Residual(
            "the same from a roofline and an assumed tree", tuple(one.roofline_error or 0.0 for one in by_roofline)
        )
    )
    times = [
        (
            one.row.source,
            f"{one.row.machine}, {one.row.decoder}",
            f"{one.row.batch} x {one.row.nodes}",
            f"{one.row.ms:.2f}",
            f"{one.predicted_ms:.2f}",
            f"{100 * one.error:+.1f} %",
            "fitted" if one.row.fitted else one.row.reason,
        )
        for one in passes
    ]
    speeds = [
        (
            one.group.name,
            f"{one.row.method} {one.row.data}".strip(),
            f"{one.row.speedup:.2f}x",
            "" if one.predicted is None else f"{one.predicted:.2f}x",
            "" if one.error is None else f"{100 * one.error:+.0f} %",
            "" if one.by_roofline is None else f"{one.by_roofline:.2f}x",
            "" if one.roofline_error is None else f"{100 * one.roofline_error:+.0f} %",
            one.verdict,
        )
        for one in checked
        if one.group.kind != "alone"
    ]
    return [
        "## Published times of passes",
        "The latency model adds up the kernels of a pass (`sim/latency/machines.py`). The machines' shares, launches "
        "and host times were fitted to the rows that say so; nothing was fitted to the others.",
        table(("source", "machine, decoder", "images x positions", "published, ms", "model, ms", "error", ""), times),
        "## Published speed-ups",
        "Without a trace a table is checked against its own tokens a cycle and depths: by one cost ratio for the whole "
        "table, and where the tree is known or assumed by a roofline.",
        table(
            ("table", "row", "published", "one ratio", "error", "by roofline", "error", "verdict"),
            speeds,
        ),
    ]


def _measured(record: Mapping[str, Any], file: str, title: str, table: Table, residuals: list[Residual]) -> list[str]:
    rows = [row for row in record["rows"] if "reason" not in row]
    residuals.append(Residual(f"{TOKENS}: {title}", tuple(row["tokens_error"] for row in rows)))
    residuals.append(Residual(f"speed-up by its machine's curve: {title}", tuple(row["speedup_error"] for row in rows)))
    cells = []
    for row in rows:
        low, high = row.get("measured_low"), row.get("measured_high")
        cells.append(
            (
                "" if "temperature" not in row else f"{row['temperature']:g}",
                f"`{row['method']}`",
                f"{row['measured_tokens_per_cycle']:.3f}",
                f"{100 * row['tokens_error']:+.1f} %",
                f"{row['measured_speedup']:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})"),
                f"{row['speedup'][0]:.2f}",
                f"{100 * row['speedup_error']:+.1f} %",
            )
        )
    headings = ("temperature", "method", "tokens a cycle", "error", "speed-up, measured", "predicted", "error")
    told = 0 if any(row[0] for row in cells) else 1
    parts = [f"## {title[0].upper()}{title[1:]}", f"File: `{file}`. Command: `{record.get('command', 'not recorded')}`"]
    parts.append(table(headings[told:], [row[told:] for row in cells]))
    parts += _far(rows, table)
    reasons: dict[str, list[str]] = {}
    for row in record["rows"]:
        if "reason" in row and f"`{row['method']}`" not in reasons.setdefault(row["reason"], []):
            reasons[row["reason"]].append(f"`{row['method']}`")
    if reasons:
        why = "\n".join(f"- {', '.join(names)}: {reason}." for reason, names in reasons.items())
        parts.append(f"Not predicted:\n\n{why}")
    return parts


PARTS: Final = {"target": "target passes", "drafter": "drafting", "host": "host"}


def _far(rows: Sequence[Mapping[str, Any]], table: Table) -> list[str]:
    """Where the time goes in rows that are further off than `WITHIN`; nothing of records that do not tell."""
    known = [row for row in rows if row.get("measured_parts")]
    far = [row for row in known if abs(row["speedup_error"]) > WITHIN]
    if not known:
        return []
    inside = [row for row in far if row["measured_low"] <= row["speedup"][0] <= row["measured_high"]]
    drift = _drift(known)
    said = (
        f"{len(known) - len(far)} of {len(known)} speed-ups are within {100 * WITHIN:.0f} %. Of the others, "
        f"{len(inside)} lie inside the interval that was measured.{drift}"
    )
    cells = [
        (
            f"{row['temperature']:g}",
            f"`{row['method']}`",
            f"{100 * row['speedup_error']:+.1f} %",
            "yes" if row in inside else "no",
            *(f"{row['measured_parts'][part]:.0f} / {row['parts'][part]:.0f}" for part in PARTS),
            _most(row),
        )
        for row in sorted(far, key=lambda row: -abs(row["speedup_error"]))
    ]
    if not cells:
        return [said]
    headings = ("temperature", "method", "error", "inside its interval", *PARTS.values(), "most of the error")
    return [
        f"{said} Where their time goes, in plain steps an image, measured / predicted:",
        table(headings, cells),
    ]


def _drift(rows: Sequence[Mapping[str, Any]]) -> str:
    """How much the record's own passes differ between its temperatures, which no curve can follow; "" of one alone.

    What a method's target pass cost, in plain steps and over the predicted cost, should be the same at both.
    """
    by_method: dict[str, list[float]] = {}
    for row in rows:
        cost = row["measured_parts"]["target"] / row["parts"]["target"] * _passes(row)
        by_method.setdefault(row["method"], []).append(cost)
    moved = [abs(costs[0] / costs[1] - 1.0) for costs in by_method.values() if len(costs) == 2]
    if not moved:
        return ""
    return (
        " The machine was in two states: the cost of a method's target pass, in plain steps, differs between the "
        f"temperatures by {100 * float(np.median(moved)):.0f} % in the median and {100 * max(moved):.0f} % at most. "
        "One curve cannot fit both."
    )


def _passes(row: Mapping[str, Any]) -> float:
    """Predicted passes over measured ones."""
    return 1.0 / (1.0 + float(row["tokens_error"]))


def _most(row: Mapping[str, Any]) -> str:
    """What of a row's error is largest: the number of passes, or the time of one part of a pass."""
    passes = _passes(row)
    gaps = {
        f"time of {name}": row["parts"][part] / passes - row["measured_parts"][part] for part, name in PARTS.items()
    }
    gaps["number of cycles"] = (1.0 - 1.0 / passes) * sum(row["parts"].values())
    return max(gaps, key=lambda name: abs(gaps[name]))


def main(arguments: list[str] | None = None) -> None:
    parser = options("validation", __doc__)
    parser.add_argument("--images", type=at_least(2), default=200, help="images of each simulation")
    asked = parse(parser, arguments)
    rows, rules = closed_forms(asked.images), enumerated()
    for row in rows:
        print(f"{row['what']:60s} {row['expected']:9.4f} {row['simulated']:9.4f} {row['error']:+.2%}")
    for row in rules:
        print(f"{row['rule']:24s} total variation {row['total_variation']:.1e}")
    finish({"benchmark": "validation", "closed_forms": rows, "rules": rules}, asked.out)


if __name__ == "__main__":
    main()
