"""Speed against quality for many settings of methods, and which of them are Pareto-optimal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure

from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.origin import GENERATOR
from underpaint.runtime.evaluation.comparison import BASELINE, Variant
from underpaint.runtime.evaluation.report_row import ReportRow, above_floor
from underpaint.runtime.methods.settings import split_setting

_INK: Final = "#22252b"
_QUIET: Final = "#9aa0a8"
_COLOURS: Final = ("#1d6fb8", "#b45309", "#2f8f5b", "#8b5cf6", "#c0264b", "#0e7490", "#6b7280")
CLOSE: Final = 0.02
"""Accuracy loss against plain autoregression that still counts as none."""


_JUDGED: Final = (
    ("prompt_accuracy", "prompt accuracy (higher is better)"),
    ("frechet_distance", "Fréchet distance (lower is better)"),
)
_UNJUDGED: Final = (
    (
        "log_likelihood_over_ar",
        "log-likelihood of a token minus AR's, nats (0 is the target's own; else bias)",
    ),
)
"""Figures on the x axes of speedup plots, with the axis labels."""
MOST_VARIANTS: Final = 500
"""Largest number of variants in one sweep: each draws every prompt, and has a table row and a mark in the plot."""


def variants(varied: Sequence[str], fixed: Sequence[str], methods: Sequence[str]) -> tuple[Variant, ...]:
    """Return every combination of the varied settings within a method, and each of `methods` at its defaults.

    Labels name the varied settings.

    Args:
        varied: Texts `method.name=value,value,...`. If a value contains commas, semicolons separate the values:
            `eagle1.widths=2,2,1;3,2`.
        fixed: Texts `method.name=value`, for all variants of a method.
        methods: Names of methods; one that is also varied is drawn both ways.

    Raises:
        ValueError: A text has another form, a fixed setting is of a method without variants, a setting is varied twice
            or also fixed, or there are more than `MOST_VARIANTS` variants.
    """
    axes: dict[str, dict[str, list[str]]] = {method: {} for method in methods}
    for text in varied:
        method, name, values = _parts(text)
        if name in axes.setdefault(method, {}):
            raise ValueError(f"--vary {text}: '{method}.{name}' varies already; give all its values at once")
        axes[method][name] = [value.strip() for value in values.split(";" if ";" in values else ",")]
    settings: dict[str, list[str]] = {method: [] for method in axes}
    for text in fixed:
        method, name, value = _parts(text)
        if method not in axes:
            raise ValueError(f"--set {text}: no variant of '{method}' is asked for; name one of {', '.join(axes)}")
        if name in axes[method]:
            raise ValueError(f"--set {text}: '{method}.{name}' varies; give the value to --vary, or leave it out there")
        settings[method].append(f"{name}={value}")
    both = {method for method, by_name in axes.items() if by_name and method in methods}
    count = sum(prod(len(values) for values in by_name.values()) for by_name in axes.values()) + len(both)
    if count > MOST_VARIANTS:
        raise ValueError(
            f"--vary: expected at most {MOST_VARIANTS} methods and variants, got {count:,}; vary fewer values"
        )
    combined = []
    for method, by_name in axes.items():
        if method in both:
            combined.append(Variant(method, method, tuple(settings[method])))
        for combination in product(*by_name.values()):
            changes = tuple(f"{name}={chosen}" for name, chosen in zip(by_name, combination, strict=True))
            combined.append(Variant(" ".join((method, *changes)), method, (*settings[method], *changes)))
    return tuple(combined)


def _parts(text: str) -> tuple[str, str, str]:
    key, value = split_setting(text)
    method, dot, name = key.partition(".")
    if not dot or not value:
        raise ValueError(f"{text!r}: expected method.name=value, such as mulo.tau=0.1,0.2")
    return method, name, value


def quality_of(row: ReportRow) -> float:
    """A row's quality; larger is better.

    If a judge read the pictures, this is the prompt accuracy. Otherwise it is minus the absolute difference between the
    target's mean log-probability of a token and plain decoding's, in nats: tokens more likely than the target's own are
    as biased as less likely ones. A lossless method has 0, whatever its sample says.
    """
    if row.prompt_accuracy is not None:
        return row.prompt_accuracy
    return 0.0 if row.lossless or row.log_likelihood_over_ar is None else -abs(row.log_likelihood_over_ar)


def is_pareto_optimal(rows: Sequence[ReportRow]) -> list[bool]:
    """Which rows are Pareto-optimal: no other is at least as fast and as good by `quality_of`, and better in one."""
    places = [(row.speedup, quality_of(row)) for row in rows]
    return [not any(one != place and one[0] >= place[0] and one[1] >= place[1] for one in places) for place in places]


def to_dict(
    rows: Sequence[ReportRow], tried: Sequence[Variant], plain_rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows as JSON, each with its method, settings and whether it is Pareto-optimal."""
    by_label = {one.label: one for one in tried}
    return [
        {
            **plain,
            "variant_of": by_label[row.method].method,
            "variant": list(by_label[row.method].settings),
            "pareto": best,
        }
        for row, plain, best in zip(rows, plain_rows, is_pareto_optimal(rows), strict=True)
    ]


def write_pareto(path: Path, rows: Sequence[ReportRow], tried: Sequence[Variant], title: str) -> None:
    """Plot speedup over quality, with a line through the Pareto-optimal settings.

    If a judge read the pictures, quality is prompt accuracy, and a second plot shows the Fréchet distance. Otherwise it
    is the target's log-likelihood minus plain decoding's, see `quality_of`.
    """
    figure = Figure(figsize=(13.0, 5.6), facecolor="white")
    figure.suptitle(title, fontsize=10, color=_INK)
    method_of = {one.label: one.method for one in tried}
    methods = list(dict.fromkeys(method_of[row.method] for row in rows))
    base = next(row for row in rows if row.method == BASELINE)
    judged = any(row.prompt_accuracy is not None for row in rows)
    panels = _JUDGED if judged else _UNJUDGED
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for one, (across, label) in zip(axes, panels, strict=True):
        for place, method in enumerate(methods):
            method_rows = [row for row in rows if method_of[row.method] == method and _says_something(row, across)]
            where, speeds = [getattr(row, across) for row in method_rows], [row.speedup for row in method_rows]
            spread = [
                [row.speedup - (row.speedup_low or row.speedup) for row in method_rows],
                [(row.speedup_high or row.speedup) - row.speedup for row in method_rows],
            ]
            colour = _COLOURS[place % len(_COLOURS)]
            one.errorbar(where, speeds, spread, fmt="o", ms=4.5, lw=0.6, color=colour, label=method, alpha=0.85)
        one.set_xlabel(label, fontsize=9)
        one.grid(color="#eceef1", lw=0.6)
        one.set_axisbelow(True)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    axes[0].set_ylabel("speedup over AR", fontsize=9)
    _draw_pareto(axes[0], rows)
    if base.prompt_accuracy is not None:
        axes[0].axvline(base.prompt_accuracy - CLOSE, color=_QUIET, lw=0.8, ls="--")
    if judged and base.frechet_floor is not None:
        axes[1].axvline(base.frechet_floor, color=_QUIET, lw=0.8, ls="--")
    if not judged:
        axes[0].axvline(0.0, color=_QUIET, lw=0.8, ls="--")
    axes[-1].legend(fontsize=8, frameon=False, loc="best")
    dashed = "AR's accuracy less 2 points; the floor of the distance" if judged else "AR's own"
    figure.text(0.01, 0.01, f"Dashed: {dashed}.", fontsize=7, color=_INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight", metadata={"Software": GENERATOR})
    write_beside(path, buffer.getvalue())


def _says_something(row: ReportRow, figure: str) -> bool:
    """Whether a row has a figure to plot; a Fréchet distance must exceed its floor."""
    if figure == "frechet_distance":
        return above_floor(row.frechet_distance, row.frechet_floor)
    return getattr(row, figure) is not None


def _draw_pareto(axes: Any, rows: Sequence[ReportRow]) -> None:
    places = [row.log_likelihood_over_ar if row.prompt_accuracy is None else row.prompt_accuracy for row in rows]
    optimal = zip(places, rows, is_pareto_optimal(rows), strict=True)
    best = sorted(
        ((place, row) for place, row, keeps in optimal if keeps and place is not None),
        key=lambda one: (one[0], -one[1].speedup),
    )
    axes.plot([place for place, _ in best], [row.speedup for _, row in best], color=_INK, lw=0.9, zorder=1)
    middle = sum(axes.get_xlim()) / 2
    for place, row in best:
        right = place > middle  # a label to its right would overlap the next plot
        axes.annotate(
            row.method,
            (place, row.speedup),
            fontsize=6,
            color=_INK,
            xytext=(-4 if right else 4, 4),
            textcoords="offset points",
            horizontalalignment="right" if right else "left",
        )
