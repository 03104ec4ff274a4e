"""Draws the pictures of a comparison as one image, with a row per method."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure

from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.origin import GENERATOR
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.evaluation.report_row import ReportRow

_INK: Final = "#22252b"
_QUIET: Final = "#6b7280"
_PAPER: Final = "#ffffff"
_LOSSY: Final = "#b45309"
_CELL_INCHES: Final = 1.35
_LINE_INCHES: Final = 0.19
_LETTER_INCHES: Final = 0.105
"""Width of a letter in a heading."""
_CAPTION_LETTERS: Final = 20
_CAPTION_LINE_INCHES: Final = 0.11
MOST_COLUMNS: Final = 32
"""Largest number of prompts shown; few viewers open a wider image."""


def write_gallery(
    path: Path, rows: Sequence[ReportRow], pictures: Mapping[str, Sequence[Picture]], prompts: Sequence[str], title: str
) -> None:
    """Write an image with a row per method, labelled with its speedup, and a column per prompt.

    Pixels are enlarged without smoothing. Only the first `MOST_COLUMNS` prompts are shown.
    """
    columns = min(len(prompts), MOST_COLUMNS)
    label = 1.9
    width = label + columns * _CELL_INCHES + 0.15
    heading = _heading(title, width)
    captions = ["\n".join(textwrap.wrap(one, _CAPTION_LETTERS, break_long_words=False)) for one in prompts[:columns]]
    lines = 1 + max((caption.count("\n") for caption in captions), default=0)
    top = max(1.0, 0.4 + lines * _CAPTION_LINE_INCHES) + _LINE_INCHES * heading.count("\n")
    height = top + len(rows) * _CELL_INCHES + 0.15
    figure = Figure(figsize=(width, height), facecolor=_PAPER)
    left, above = 0.12 / width, 1 - 0.12 / height
    # Without parse_math=False, two "$" in a prompt would be mathematics.
    figure.text(left, above, heading, fontsize=11, weight="bold", color=_INK, va="top", parse_math=False)
    for line, row in enumerate(rows):
        bottom = height - top - (line + 1) * _CELL_INCHES
        middle = (bottom + _CELL_INCHES / 2) / height
        _method_label(figure, row, (label - 0.12) / width, middle, 0.17 / height)
        for column, picture in enumerate(pictures[row.method][:columns]):
            place = (label + column * _CELL_INCHES, bottom, _CELL_INCHES - 0.06, _CELL_INCHES - 0.06)
            axes = figure.add_axes((place[0] / width, place[1] / height, place[2] / width, place[3] / height))
            axes.imshow(picture, interpolation="nearest")
            _bare(axes)
            if line == 0:
                axes.set_title(captions[column], fontsize=6, color=_QUIET, pad=4, parse_math=False)
    _save(figure, path)


def _method_label(figure: Figure, row: ReportRow, right: float, middle: float, step: float) -> None:
    interval = f"{row.speedup_low:.2f}-{row.speedup_high:.2f}" if row.speedup_low is not None else "one image"
    lines = (
        (row.method, 9.5, "bold", _INK),
        (f"{row.speedup:.2f}x", 9.0, "normal", _INK),
        (interval, 6.5, "normal", _QUIET),
        ("lossless" if row.lossless else "relaxed", 6.5, "normal", _QUIET if row.lossless else _LOSSY),
    )
    for index, (text, size, weight, colour) in enumerate(lines):
        place = right, middle + (1.5 - index) * step
        look: Mapping[str, Any] = {"fontsize": size, "weight": weight, "color": colour}
        figure.text(*place, text, ha="right", va="center", parse_math=False, **look)


def _bare(axes: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _heading(title: str, width: float) -> str:
    """The title, wrapped to the lines that a figure `width` inches wide needs."""
    return "\n".join(textwrap.wrap(title, max(20, int((width - 0.3) / _LETTER_INCHES))))


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor=_PAPER, metadata={"Software": GENERATOR})
    write_beside(path, buffer.getvalue())
