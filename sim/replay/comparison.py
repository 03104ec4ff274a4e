"""Read the results of `underpaint compare`, and check that a trace and a cost curve match them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from underpaint.artifacts.cost_curve import CostCurveFile
from underpaint.artifacts.results import read_results
from underpaint.sim.replay.predict_rows import SETTINGS
from underpaint.sim.replay.trace import Trace


class Comparison(NamedTuple):
    """The results of a comparison.

    Attributes:
        methods: Recipes by name.
        rows: Measured figures by name.
        prompts: The compared prompts.
        sampler: Guidance, temperature, top_k and top_p.
        model: Description of the compared model.
    """

    methods: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Mapping[str, Any]]
    prompts: frozenset[str]
    sampler: Mapping[str, Any]
    model: Mapping[str, Any]


def load_comparison(path: Path) -> Comparison:
    """Load the JSON of `underpaint compare`; ValueError if the file is no comparison or has another version."""
    values = read_results(path)
    try:
        return comparison_of(values)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no comparison ({error!r}); write one with `underpaint compare --json`") from error


def comparison_of(values: Mapping[str, Any]) -> Comparison:
    """Build a comparison from its record; ValueError, KeyError or TypeError if the record is not a comparison."""
    settings = values["settings"]
    sampler = {name: settings[name] for name in ("guidance", "temperature", "top_k", "top_p")}
    rows = {row["method"]: row for row in values["rows"]}
    methods = {name: settings["methods"][name] for name in rows}
    for method, row in rows.items():
        recipe = methods[method]
        counted = ("tokens_per_cycle", "mean_depth") if "policy" in recipe else ("drafter_nfe",)
        for name in ("target_nfe", "speedup", *counted):
            float(row[name])
        for name in SETTINGS if recipe.get("loop") == "mulo" else ():
            recipe["settings"][name]
    return Comparison(methods, rows, frozenset(settings["prompts"]), sampler, values["model"])


def check_belong(trace: Trace, comparison: Comparison) -> None:
    """Raise ValueError unless trace and comparison have the same model and sampler, and share no prompt."""
    about = trace.about
    model = about.get("model", {})
    for what in ("target", "drafter", "grid"):
        ours, theirs = model.get(what), comparison.model.get(what)
        if ours != theirs:
            raise ValueError(
                f"the trace is of another model than the comparison ({what}: {ours} and {theirs}); record one with "
                "`underpaint trace` at the comparison's resolution"
            )
    # Either may have loaded models that the other did not need; only models that both loaded must be the same.
    hashes, theirs = model.get("sha256", {}), comparison.model.get("sha256", {})
    differ = sorted(name for name in hashes.keys() & theirs.keys() if hashes[name] != theirs[name])
    if differ:
        raise ValueError(
            f"the trace is of another model than the comparison (another training of {', '.join(differ)}); record both "
            "again with the same models"
        )
    if about.get("sampler") != dict(comparison.sampler):
        raise ValueError(
            f"the trace was sampled with {about.get('sampler')}, the comparison with {dict(comparison.sampler)}; "
            "record a trace with the same options"
        )
    common = sorted(comparison.prompts & set(about.get("prompts", ())))
    if common:
        raise ValueError(f"the trace holds prompts of the comparison ({common[0]!r}, ...); record it on other prompts")


def check_measured_on(curve: CostCurveFile, comparison: Comparison) -> None:
    """Raise ValueError if the curve has other models than the comparison, or rows per pass unlike its guidance."""
    model = curve.model
    guided = 2 if comparison.sampler["guidance"] != 1.0 else 1
    compared = {**{name: comparison.model.get(name) for name in ("target", "drafter")}, "rows": guided}
    for what, theirs in compared.items():
        if None not in (model.get(what), theirs) and model[what] != theirs:
            raise ValueError(
                f"{curve.name}.json is the curve of another model than the comparison's ({what}: {model[what]} and "
                f"{theirs}); measure one with `underpaint costs --full --resolution ... --guidance ...`"
            )
