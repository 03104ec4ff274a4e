"""The style of figures: sized for a paper's column, with colours that colour-blind readers can distinguish."""

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
"""The palette of Okabe and Ito without its yellow, which is faint on paper."""
_MARKERS: Final = "os^DvPX*<>"
_LEGEND_ROWS: Final = 4
"""Number of legend rows that fit into a figure of the default height."""
_LEGEND_ROW: Final = 0.15
"""Height in inches of each further legend row."""
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
    """Draw a figure and return the content of its file, identical at every call.

    Args:
        draw: Draws the figure.
        form: One of `FORMATS`.
    """
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
    """Create a figure whose height grows with a long legend, so that its axes keep their size."""
    rows = -(-entries // columns(width))
    height += _LEGEND_ROW * max(0, rows - _LEGEND_ROWS)
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def columns(width: float) -> int:
    """Number of legend columns in a figure of `width` inches."""
    return 2 if width < 5 else 4


def look_of(place: int) -> dict[str, Any]:
    """Colour, marker and fill style of the `place`-th group."""
    fill = "full" if place < len(_COLOURS) else "none"
    return {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)], "fillstyle": fill}


def legend(figure: Figure, entries: int, width: float) -> None:
    """Add a legend below the axes if there is more than one entry."""
    if entries > 1:
        figure.legend(loc="outside lower center", ncols=min(entries, columns(width)), frameon=False)
