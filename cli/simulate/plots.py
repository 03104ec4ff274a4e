"""Plots of a sweep, as SVG."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from underpaint.algos.arrays import FloatArray

Line = Mapping[str, Any]
_PLAIN: Any = {"svg.hashsalt": "underpaint", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


class Plot(NamedTuple):
    """A figure of the report."""

    title: str
    note: str
    svg: str


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)
    text = stream.getvalue()
    return text[text.index("<svg") :]


def label(line: Line) -> str:
    """Policy and rule; a window's method and its rule, where it has one, and temperature 0."""
    words = f"{line['policy']} + {line['rule']}" if line["rule"] else str(line["policy"])
    return words + (", temperature 0" if line.get("temperature") == 0.0 else "")


def _grouped(lines: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(label(line), []).append(line)
    return groups


def _colours(names: Sequence[str]) -> dict[str, Any]:
    palette = plt.get_cmap("tab20")
    return {name: palette(place % 20) for place, name in enumerate(sorted(names))}


def _scatter(lines: Sequence[Line], machine: str, across: str, shown: str, title: str, note: str) -> Plot | None:
    members = [line for line in lines if line[across] is not None]
    if not members:
        return None
    with plt.rc_context(_PLAIN):
        figure, axes = plt.subplots(figsize=(7.2, 4.2))
        groups = _grouped(members)
        colours = _colours(list(groups))
        for name, members in groups.items():
            speeds = np.array([line["speedup"][machine] for line in members])
            errors = np.abs(speeds[:, 1:] - speeds[:, :1]).T
            where = [line[across] for line in members]
            axes.errorbar(where, speeds[:, 0], errors, fmt="o", ms=4, lw=0.8, color=colours[name], label=name)
        axes.axhline(1.0, color="0.6", lw=0.8)
        axes.set_xlabel(shown)
        axes.set_ylabel(f"speed-up on {machine}")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        return Plot(title, note, _svg(figure))


def against_alignment(lines: Sequence[Line], machine: str) -> Plot | None:
    """Speed-up against 1 - TV of target and drafter."""
    return _scatter(
        *(lines, machine, "alignment", "alignment: mean 1 - TV(target, drafter)"),
        *("Speed-up against alignment", "One point a configuration; bars are 95 % intervals over images."),
    )


def frontier(lines: Sequence[Line], machine: str) -> Plot | None:
    """Speed-up against the bias of the next token's distribution."""
    return _scatter(
        *(lines, machine, "token_bias", "total variation of the next token's distribution"),
        "Speed against bias",
        "Lossless rules stand at 0. Rules that decide by an argmax or a threshold have no such figure: left out.",
    )


def heat_map(lines: Sequence[Line], machine: str) -> Plot | None:
    """Speed-up over tree depth and width, where a sweep varies both."""
    cells: dict[tuple[int, int], list[float]] = {}
    for line in lines:
        settings = json.loads(line["policy_settings"])
        if {"depth", "top_k"} <= settings.keys():
            place = int(settings["depth"]), int(settings["top_k"])
            cells.setdefault(place, []).append(line["speedup"][machine][0])
    depths, widths = (sorted({place[axis] for place in cells}) for axis in (0, 1))
    if len(depths) < 2 or len(widths) < 2:
        return None
    means = np.array([[np.mean(cells.get((depth, width), [np.nan])) for width in widths] for depth in depths])
    with plt.rc_context(_PLAIN):
        figure, axes = plt.subplots(figsize=(4.8, 3.6))
        shown = axes.imshow(means, origin="lower", cmap="viridis", aspect="auto")
        axes.set_xticks(range(len(widths)), [str(width) for width in widths])
        axes.set_yticks(range(len(depths)), [str(depth) for depth in depths])
        for row, column in np.ndindex(means.shape):
            ink = "k" if means[row, column] > np.nanmean(means) else "w"
            axes.text(column, row, f"{means[row, column]:.2f}", ha="center", va="center", color=ink, fontsize=8)
        axes.set_xlabel("width (top-k)")
        axes.set_ylabel("depth (levels)")
        figure.colorbar(shown, label=f"speed-up on {machine}")
        return Plot("Depth and width", "Mean over all configurations with that depth and width.", _svg(figure))


def maps(difficulty: FloatArray, depth: FloatArray, model: str, policy: str) -> Plot:
    """[H, W] twice: the entropy of each cell's distribution, and the depth of the trees grown there."""
    with plt.rc_context(_PLAIN):
        figure, both = plt.subplots(1, 2, figsize=(7.2, 3.2))
        for axes, values, title, unit in (
            (both[0], difficulty, "difficulty", "entropy, nats"),
            (both[1], depth, f"depth chosen by {policy}", "levels"),
        ):
            shown = axes.imshow(values, cmap="magma")
            axes.set_title(title, fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
            figure.colorbar(shown, label=unit)
        note = f"Model {model}, the first image of its pool, many seeds. Both are means over what was drawn."
        return Plot("Difficulty and depth", note, _svg(figure))
