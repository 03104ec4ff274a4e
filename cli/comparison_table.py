"""The table of a comparison: a row a method."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from underpaint.cli.options import describe_sampling
from underpaint.cli.terminal import Column, Format, ResultTable, figure, note, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from underpaint.artifacts.cost_curve import CostCurveFile
    from underpaint.runtime.evaluation.comparison import ComparisonPlan
    from underpaint.runtime.evaluation.report import ReportRow
    from underpaint.runtime.pipeline import Pipeline


def title_of(pipeline: "Pipeline", plan: "ComparisonPlan") -> str:
    """What a table is of: the size of the pictures, how they are sampled, and the preset of the methods' settings."""
    sampling = describe_sampling(plan.sampling, pipeline.tables.vocab_size)
    return f"{pipeline.title()}, {sampling}, {plan.preset} settings"


def print_rows(
    reported: "Sequence[ReportRow]",
    pipeline: "Pipeline",
    title: str,
    curve: "CostCurveFile | None" = None,
    form: Format = Format.table,
) -> None:
    """Print a row a method, what the judge itself reads right, and the knee of the cost curve where it is known."""
    from underpaint.runtime.evaluation.comparison import BASELINE

    judged = pipeline.judge is not None
    rows = [{**asdict(row), **_joined(row)} for row in reported]
    show([ResultTable(title, _columns(judged, reported), rows)], form)
    judge = pipeline.judge
    own = None if judge is None else judge.reference.accuracy.get(judge.grammar.accuracy)
    if judge is not None and own is not None:
        what = judge.grammar.accuracy.replace("_", " ")
        note(f"The judge itself reads {own:.3f} of real scenes right ({what}).", form)
    if curve is not None:
        note(f"On this machine {curve.knee.describe()} (`underpaint costs`, curve {curve.fingerprint[:12]}).", form)
        plain = next((row.target_ms_per_cycle for row in reported if row.method == BASELINE), None)
        warning = None if plain is None else curve.outdated(plain)
        if warning is not None:
            note(f"Beware: {warning}.", form)


def _columns(judged: bool, reported: "Sequence[ReportRow]") -> list[Column]:
    """What a row of a comparison shows; JSON and CSV give intervals and parts as figures of their own."""
    quality = (
        figure("prompt_accuracy", "prompt\naccuracy", ".3f"),
        Column("accuracy_over_ar_interval", "less AR's\n(95 %)", right=True),
        Column("log_probability_interval", "judge's log-probability\nless AR's (95 %)", right=True),
        Column("frechet", "Fréchet\n(floor)", right=True),
    )
    return [
        Column("method", "method\n"),
        Column("lossless", "loss-\nless", right=True),
        figure("speedup", "speed-\nup", ".2f", "x"),
        Column("speedup_interval", "95 %\ninterval", right=True),
        figure("seconds_per_image", "s per\nimage", ".3f"),
        figure("target_nfe", "target\nNFE", ".1f"),
        figure("drafter_nfe", "drafter\nNFE", ".1f"),
        figure("tokens_per_cycle", "tokens\nper cycle", ".2f"),
        figure("mean_depth", "mean\ndepth", ".2f"),
        figure("mean_nodes", "nodes a\ncycle", ".2f"),
        figure("kept_share", "draft\nkept", ".0%"),
        figure("overhead_share", "over-\nhead", ".0%"),
        Column("ms_per_cycle", "ms a cycle: target\n+ drafter + host", right=True),
        *(quality if judged else ()),
        Column("auc_interval", "told from AR's\nAUC (95 %)", right=True),
        *(
            (Column("log_likelihood_interval", "log-likelihood\nless AR's (95 %)", right=True),)
            if any(row.log_likelihood is not None for row in reported)
            else ()
        ),
        figure("identical_share", "same\nas AR", ".1%"),
    ]


def _joined(row: "ReportRow") -> dict[str, str]:
    """Figures that stand in one cell."""
    low, high = row.speedup_low, row.speedup_high
    parts = (row.target_ms_per_cycle, row.drafter_ms_per_cycle, row.host_ms_per_cycle)
    return {
        "speedup_interval": "-" if low is None else f"{low:.2f}-{high:.2f}",
        "ms_per_cycle": " + ".join(_figure(part, ".2f") for part in parts),
        "accuracy_over_ar_interval": _difference(row, "accuracy_over_ar"),
        "log_probability_interval": _difference(row, "attribute_log_probability_over_ar"),
        "auc_interval": "-" if row.auc is None else f"{row.auc:.3f} ({row.auc_low:.3f} to {row.auc_high:.3f})",
        "log_likelihood_interval": _difference(row, "log_likelihood_over_ar"),
        "frechet": _frechet(row),
    }


def _frechet(row: "ReportRow") -> str:
    """The distance and its floor; nothing where the distance does not exceed the floor."""
    from underpaint.runtime.evaluation.report import above_floor

    if not above_floor(row.frechet_distance, row.frechet_floor):
        return "-"
    return f"{row.frechet_distance:.1f} ({row.frechet_floor:.1f})"


def _difference(row: "ReportRow", name: str) -> str:
    """A paired difference to the baseline with its interval."""
    value, low, high = (getattr(row, key) for key in (name, f"{name}_low", f"{name}_high"))
    return _figure(value, "+.3f") if low is None else f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
