"""Tables and method cards from a record of protocol 1, for the command line, the documentation and the site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.methods.settings import settings_line

COMPARISON_KINDS: Final = ("compare", "sweep", "evaluate")
"""Kinds of results that have a row per method."""
QUALITY: Final = ("attribute_log_probability_over_ar", "log_likelihood_over_ar")
"""Quality differences to plain autoregression: measured by the judge, or without a judge by the target."""


def runs_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The comparisons, sweeps and evaluations of a record, which may itself be a single one; no other kinds."""
    runs = [one["results"] for one in record["runs"]] if record["kind"] == "merged" else [record]
    runs = [run for one in runs for run in (runs_of(one) if one["kind"] == "merged" else [one])]
    return [run for run in runs if run["kind"] in COMPARISON_KINDS]


def run_at(
    record: Mapping[str, Any], temperature: float, model: Mapping[str, Any] | None = None
) -> Mapping[str, Any] | None:
    """Return the first comparison of a record at a temperature, or None.

    Args:
        record: The record; see `runs_of`.
        temperature: The temperature of sampling.
        model: The comparison's model; None takes any.
    """
    runs = (run for run in runs_of(record) if model is None or run["model"] == model)
    return next((run for run in runs if run["settings"]["temperature"] == temperature), None)


def summary(record: Mapping[str, Any], run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of one comparison's summary table: plain autoregression first, then the fastest first.

    A row has the figures of `ReportRow` and: tokens_per_pass, quality_over_ar with its interval (in nats), promise (see
    `promise_of`), rule (its name; None for a loop's own rule) and same_as_ar ("n of m" pictures at temperature 0 with
    the tokens of plain autoregression; None without such pictures).
    """
    height, width = run["model"].get("grid", (0, 0))
    cold = run_at(record, 0.0, run["model"])
    greedy = {} if cold is None else {row["method"]: row for row in cold["rows"]}
    rows = []
    for row in run["rows"]:
        zero = greedy.get(row["method"])
        share = None if zero is None else zero.get("identical_share")
        quality = next((name for name in QUALITY if row.get(name) is not None), QUALITY[0])
        ends = {f"quality_over_ar{end}": row.get(f"{quality}{end}") for end in ("", "_low", "_high")}
        same = None if zero is None or share is None else f"{round(share * zero['images'])} of {zero['images']}"
        passes = row["target_nfe"]
        config = run["settings"].get("methods", {}).get(row["method"], {})
        about = {"same_as_ar": same, "promise": promise_of(config, row["lossless"]), "rule": config.get("rule")}
        rows.append({**row, **ends, **about, "tokens_per_pass": height * width / passes if height else None})
    return sorted(rows, key=lambda row: (row["method"] != BASELINE, -row["speedup"]))


def promise_of(config: Mapping[str, Any], lossless: bool) -> str:
    """The guarantee that a method gives for the distribution of its tokens.

    Args:
        config: The method's settings as stored in a record.
        lossless: Whether the method is lossless with them.

    Returns:
        "lossless"; "bounded" if its rule bounds the total variation and its loop adds no further error; else "no
        bound". A window samples its drafts, and then the settings of pooling rules are not bounds.
    """
    if lossless:
        return "lossless"
    rule = str(config.get("rule", ""))
    bounded = rule in RULES and RULES[rule].promise == "bounded" and not {"skipping", "window"} & config.keys()
    return "bounded" if bounded else "no bound"


def sides_of(records: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Group comparisons into the sides of a side-by-side table, one per file, machine and folder of models.

    Args:
        records: File names and their records.

    Returns:
        Per side: its name (A, B, ...), file, machine, engine, target and preset, and its rows by (method, temperature);
        see `summary`. Two comparisons at the same temperature become two sides.
    """
    sides: list[dict[str, Any]] = []
    for file, record in records:
        for run in runs_of(record):
            of = (file, run["machine"], run["model"])
            rows = {(row["method"], run["settings"]["temperature"]): row for row in summary(record, run)}
            same = [one for one in sides if one["of"] == of and not one["rows"].keys() & rows.keys()]
            if same:
                same[0]["rows"] |= rows
                continue
            about = {"file": file, "machine": run["machine"].get("processor"), "cores": run["machine"].get("cores")}
            about |= {"engine": run["model"]["engine"], "model": run["model"]["target"]}
            about["preset"] = run["settings"].get("preset")
            sides.append({"side": _letters(len(sides)), **about, "of": of, "rows": rows})
    return sides


def ranked(sides: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per method and temperature with its figures on every side, fastest on average first.

    Args:
        sides: See `sides_of`.

    Returns:
        Rows with method, temperature, lossless, and sides: the row of each side by its name, or None.
    """
    keys = dict.fromkeys(key for side in sides for key in side["rows"])
    rows = []
    for method, temperature in keys:
        by_side = {side["side"]: side["rows"].get((method, temperature)) for side in sides}
        present_rows = [row for row in by_side.values() if row is not None]
        rows.append(
            {"method": method, "temperature": temperature, "lossless": present_rows[0]["lossless"], "sides": by_side}
            | {"speedup": float(np.exp(np.mean([np.log(max(row["speedup"], 1e-9)) for row in present_rows])))}
        )
    return sorted(rows, key=lambda row: (-row["temperature"], -row["speedup"]))


def _letters(place: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    return (_letters(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)


def names_of(record: Mapping[str, Any]) -> list[str]:
    """The methods of a record, without repetition."""
    return list(dict.fromkeys(row.get("variant_of", row["method"]) for run in runs_of(record) for row in run["rows"]))


def card(record: Mapping[str, Any], name: str) -> str:
    """A method's card in Markdown: its figures at every preset and temperature, its settings and their origin.

    Returns:
        The text without a heading; empty if the record does not have the method.
    """
    lines, parts, settings = [], [], []
    for run in runs_of(record):
        heat = f"{run['settings']['temperature']:g}"
        for row in summary(record, run):
            if row.get("variant_of", row["method"]) != name:
                continue
            preset = row.get("preset", run["settings"].get("preset", ""))
            cells = (
                *(preset, heat, interval(row, "speedup", ".2f"), f"{row['target_nfe']:.1f}"),
                *(f"{row['tokens_per_pass']:.2f}", interval(row, "quality_over_ar", "+.3f")),
                *(row["same_as_ar"] or "", str(row["images"])),
            )
            lines.append(cells)
            settings.append((preset, heat, settings_line(run["settings"]["methods"][row["method"]])))
    if not lines:
        return ""
    run = runs_of(record)[0]
    machine, model, protocol = run["machine"], run["model"], run.get("protocol", {})
    head = (
        "preset",
        "temperature",
        "speedup (95 %)",
        "target passes",
        "tokens per pass",
        "quality minus AR's, nats (95 %)",
    )
    parts.append(markdown((*head, "equal to AR at 0", "pictures"), lines))
    parts.append(markdown(("preset", "temperature", "settings"), settings))
    curve = run.get("cost_curve") or {}
    knee = curve.get("knee", {}).get("nodes") if curve else None
    knees = f", knee of the cost curve at {knee:.0f} nodes" if knee else ""
    parts.append(
        f"Protocol {protocol.get('version', '')}, {model['target']} on {model['engine']}, {machine['cores']} cores of "
        f"{machine['processor']}{knees}. Command: `{run['command']}`"
    )
    return "\n\n".join(parts) + "\n"


def interval(row: Mapping[str, Any], name: str, form: str = ".2f") -> str:
    """A figure with its interval, as in "1.20 (1.10 to 1.30)"; empty if there is no figure."""
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return ""
    return f"{value:{form}}" if low is None or high is None else f"{value:{form}} ({low:{form}} to {high:{form}})"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])
