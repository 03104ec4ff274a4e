"""How figures look: at the width of a paper's column, in colours that colour-blind readers tell apart."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from underpaint.artifacts.origin import GENERATOR

FORMATS: Final = ("pdf", "png", "svg")
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette without its yellow, which is faint on paper."""
_MARKERS: Final = "os^DvPX*<>"
_LEGEND_ROWS: Final = 4
"""Rows of a legend that a figure has room for."""
_LEGEND_ROW: Final = 0.15
"""Inches of another."""
_STYLE: Final[Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 6.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "svg.hashsalt": "underpaint",
}


def rendered(draw: Callable[[], Figure], form: str) -> bytes:
    """Draw a figure as a file's content, the same at every call. form: one of `FORMATS`."""
    marks: Mapping[str, dict[str, Any]] = {
        "pdf": {"Creator": GENERATOR, "CreationDate": None},
        "svg": {"Creator": GENERATOR, "Date": None},
        "png": {"Software": GENERATOR},
    }
    stream = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        draw().savefig(stream, format=form, dpi=300, metadata=marks[form], bbox_inches="tight", pad_inches=0.02)
    return stream.getvalue()


def canvas(width: float, height: float, entries: int = 0) -> tuple[Figure, Axes]:
    """A figure that grows by the rows of a long legend, so that its axes keep their size."""
    rows = -(-entries // columns(width))
    height += _LEGEND_ROW * max(0, rows - _LEGEND_ROWS)
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def columns(width: float) -> int:
    """Columns of a legend in a figure of `width` inches."""
    return 2 if width < 5 else 4


def look_of(place: int) -> dict[str, Any]:
    """Colour and marker of the `place`-th group."""
    fill = "full" if place < len(_COLOURS) else "none"
    return {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)], "fillstyle": fill}


def legend(figure: Figure, entries: int, width: float) -> None:
    """Add a legend below the axes, where there is more than one entry."""
    if entries > 1:
        figure.legend(loc="outside lower center", ncols=min(entries, columns(width)), frameon=False)
