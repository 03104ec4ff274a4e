"""The picture strip of a multi-scale drawing: cycle by cycle, what was drafted, rejected and redrawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib.figure import Figure

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.spatial.mulo import RepairCycle
from underpaint.algos.tree import NO_TOKEN
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.origin import marked
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.pipeline import Pipeline

_INK: Final = "#22252b"
_BLANK: Final = 236
_REJECTED: Final = (0.80, 0.10, 0.15)
_REGION: Final = (0.95, 0.60, 0.05)
_ISLANDS: Final = (
    *((0.12, 0.47, 0.71), (0.17, 0.63, 0.17), (0.58, 0.40, 0.74), (0.89, 0.47, 0.76)),
    *((0.74, 0.74, 0.13), (0.09, 0.75, 0.81), (0.84, 0.15, 0.16), (0.55, 0.34, 0.29)),
)
_INCHES: Final = 1.9


def write_strip(path: Path, pipeline: Pipeline, cycles: Sequence[RepairCycle], title: str) -> None:
    """One row a cycle: the draft, the cells the rule rejected, what was redrawn for them, its islands, the result.

    Rows of the image that are not drawn yet are grey. An island's colour pales from the first step to the last.
    """
    heads = ("draft", "rejected", "redrawn", "side by side", "result")
    width, top = len(heads) * _INCHES + 0.9, 0.55
    height = top + len(cycles) * _INCHES
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.1 / width, 1 - 0.2 / height, title, fontsize=9, weight="bold", color=_INK, va="center")
    for line, cycle in enumerate(cycles):
        bottom = height - top - (line + 1) * _INCHES
        text = (
            f"rows {cycle.rows.start}-{cycle.rows.stop - 1}\n{int(cycle.rejected.sum())} rejected\n"
            f"{int(cycle.region.sum())} redrawn\nin {len(cycle.steps)} steps"
        )
        figure.text(0.1 / width, (bottom + _INCHES / 2) / height, text, fontsize=6.5, color=_INK, va="center")
        for column, picture in enumerate(_pictures(pipeline, cycle)):
            left = 0.9 + column * _INCHES
            place = (left / width, bottom / height, (_INCHES - 0.06) / width, (_INCHES - 0.06) / height)
            axes = figure.add_axes(place)
            axes.imshow(picture, interpolation="nearest")
            axes.set_axis_off()
            if line == 0:
                axes.set_title(heads[column], fontsize=8, color=_INK, pad=3)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=160)
    write_beside(path, marked(drawn.getvalue()))


def _pictures(pipeline: Pipeline, cycle: RepairCycle) -> tuple[Any, ...]:
    """The five pictures [side, side, 3] of a cycle."""
    inside = cycle.draft != NO_TOKEN
    drafted = _picture(pipeline, np.where(inside, cycle.draft, cycle.tokens))
    return (
        drafted,
        _tinted(drafted, cycle.rejected, np.broadcast_to(_REJECTED, (*inside.shape, 3))),
        _tinted(drafted, cycle.region, np.where(cycle.rejected[..., None], _REJECTED, _REGION)),
        _tinted(drafted, cycle.region, _island_colours(cycle), 0.85),
        _picture(pipeline, cycle.tokens),
    )


def _picture(pipeline: Pipeline, tokens: IntArray) -> Picture:
    """The picture of the rows drawn so far [H, W]; those below are grey."""
    drawn = int((tokens != NO_TOKEN).all(axis=1).sum())
    filled = np.concatenate(
        [tokens[:drawn], np.broadcast_to(tokens[drawn - 1], (len(tokens) - drawn, tokens.shape[1]))]
    )
    picture = pipeline.picture(filled.reshape(-1)).copy()
    picture[drawn * (picture.shape[0] // len(tokens)) :] = _BLANK
    return picture


def _island_colours(cycle: RepairCycle) -> FloatArray:
    """[H, W, 3]: a colour an island, paler the later its cell was decided."""
    step_of = np.zeros(cycle.region.size)
    for step, cells in enumerate(cycle.steps):
        step_of[list(cells)] = step
    palette = np.array(_ISLANDS)[cycle.islands % len(_ISLANDS)]
    late = (step_of / max(1, len(cycle.steps) - 1)).reshape(*cycle.region.shape, 1)
    colours: FloatArray = palette + 0.7 * late * (1.0 - palette)
    return colours


def _tinted(picture: Picture, mask: BoolArray, colours: FloatArray, strength: float = 0.6) -> FloatArray:
    """The picture in [0, 1] with the cells of `mask` [H, W] tinted by `colours` [H, W, 3]."""
    size = picture.shape[0] // mask.shape[0]
    blend = np.kron(mask.astype(np.float64), np.ones((size, size)))[..., None] * strength
    over = colours.repeat(size, axis=0).repeat(size, axis=1)
    tinted: FloatArray = picture / 255.0 * (1.0 - blend) + over * blend
    return tinted
