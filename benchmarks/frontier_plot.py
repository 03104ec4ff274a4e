"""The picture of `benchmarks.frontier`: speed-up over bias, over the target's log-likelihood and over accuracy."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from benchmarks.small_png import with_palette

Row = Mapping[str, Any]


class Measure(NamedTuple):
    """What speed is set against. sign: 1 where more is better, -1 where less is."""

    words: str
    sign: int

    def loss(self, value: float) -> float:
        """How much worse than plain autoregression a figure is, at least 0: what is above AR's counts as AR's."""
        return max(0.0, -self.sign * value)


MEASURES: Final[Mapping[str, Measure]] = {
    "token_bias": Measure("total variation a token", -1),
    "log_likelihood_over_ar": Measure("log-likelihood a token, less AR's (nats)", 1),
    "accuracy_over_ar": Measure("prompt accuracy, less AR's", 1),
}

_INK: Final = "#22252b"
_SOFT: Final = "#5d646e"
_QUIET: Final = "#9aa0a8"
_FAMILIES: Final = (
    ("lossless", "#3f444d"),
    ("trees", "#1d6fb8"),
    ("windows", "#2f8f5b"),
    ("row fronts", "#c2570c"),
    ("multi-scale", "#8b5cf6"),
)
_MARKERS: Final = "osD^vP*X<>"
_COLOURS: Final = 64
"""Of the palette: lines and dots need no more, and the file is a fifth as large."""


def family_of(row: Row) -> str:
    """The family whose colour a method has."""
    name = row["method"]
    if row["lossless"]:
        return "lossless"
    if name.startswith("mulo"):
        return "multi-scale"
    if name.startswith("zipar"):
        return "row fronts"
    return "windows" if name in ("gsd", "pjd") else "trees"


def draw_frontier(rows: Sequence[Row]) -> bytes:
    """The picture as a PNG. A dot is hollow where some method is faster and no worse by the panel's measure; the line
    joins those that none dominates."""
    styles = _styles(rows)
    figure = Figure(figsize=(12.6, 4.7), facecolor="white", layout="constrained")
    panels = figure.subplots(1, len(MEASURES), sharey=True)
    for axes, (name, measure) in zip(panels, MEASURES.items(), strict=True):
        _panel(axes, rows, name, measure, styles)
    panels[0].set_ylabel("speed-up over plain autoregression", fontsize=9, color=_INK)
    shown = [
        Line2D([], [], marker=marker, color=colour, lw=0, ms=6, label=method)
        for method, (colour, marker) in styles.items()
    ]
    figure.legend(handles=shown, loc="outside right center", fontsize=8, frameon=False, title="fastest first")
    note = (
        "Hollow: another method is faster and no worse, where what is above AR's counts as AR's. Line: the methods "
        "that none dominates. Bars: 95 %."
    )
    figure.supxlabel(note, fontsize=8, color=_SOFT, x=0.01, ha="left")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    with Image.open(drawn) as picture:
        return with_palette(picture, _COLOURS)


def _panel(axes: Axes, rows: Sequence[Row], name: str, measure: Measure, styles: Mapping[str, tuple[str, str]]) -> None:
    own = [row for row in rows if row[name] is not None]
    best = [row for row in own if not row[f"{name}_dominated"]["by"]]  # the fastest first, and so the worst
    axes.plot([row[name] for row in best], [row["speedup"] for row in best], color=_QUIET, lw=1.0, zorder=1)
    for row in own:
        colour, marker = styles[row["method"]]
        hollow = bool(row[f"{name}_dominated"]["by"])
        axes.errorbar(
            row[name],
            row["speedup"],
            xerr=_ends(row, name),
            yerr=_ends(row, "speedup"),
            fmt=marker,
            ms=7,
            mew=1.3,
            color=colour,
            mfc="white" if hollow else colour,
            elinewidth=0.7,
            alpha=0.95,
            zorder=2 if hollow else 3,
        )
    axes.axhline(1.0, color=_QUIET, lw=0.7, ls="--", zorder=0)
    if name != "token_bias":
        axes.axvline(0.0, color=_QUIET, lw=0.7, ls="--", zorder=0)
    towards = "less is better" if measure.sign < 0 else "more is better"
    axes.set_xlabel(f"{measure.words}\n{towards}", fontsize=9, color=_INK)
    axes.grid(color="#eef0f3", lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=_INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if measure.sign < 0:
        axes.invert_xaxis()  # right and up is better in every panel


def _ends(row: Row, name: str) -> list[list[float]]:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    return [[max(0.0, value - low)], [max(0.0, high - value)]]


def _styles(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """The colour and the marker of each method, in the order of the rows."""
    colours, used = dict(_FAMILIES), dict.fromkeys(dict(_FAMILIES), 0)
    found = {}
    for row in rows:
        family = family_of(row)
        found[row["method"]] = (colours[family], _MARKERS[used[family] % len(_MARKERS)])
        used[family] += 1
    return found
