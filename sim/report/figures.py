"""Figures of sweeps and traces; `canvas` defines their style."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from underpaint.algos.arrays import FloatArray
from underpaint.sim.latency.machines import FIXED
from underpaint.sim.replay.trace import Trace
from underpaint.sim.report.canvas import canvas, columns, legend, look_of
from underpaint.sim.report.statistics import INTERVAL_DEVIATIONS

Line: TypeAlias = Mapping[str, Any]
"""A line of a sweep's results."""
COLUMN: Final = 3.4
"""Width in inches of one column of a two-column paper."""
PAGE: Final = 7.0
"""Width in inches of both columns."""
_BARS: Final = 12
"""Largest number of bars in a figure; the fastest are shown."""


class NotInData(ValueError):
    """The results or the trace lack the data of a figure; the message says how to get them."""


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A named figure.

    Attributes:
        name: The value of `underpaint plot --figure`.
        title: The figure's title.
        note: How to read the figure.
        of: The data that it shows: a sweep's results or a trace.
        draw: The drawing function; takes a sweep's lines, a machine and a width in inches, or a trace and a width.
    """

    name: str
    title: str
    note: str
    of: Literal["results", "trace"]
    draw: Callable[..., Figure]


def label(line: Line) -> str:
    """The label of a line: policy and rule (a window's method, and its rule if any), with a note at temperature 0."""
    words = f"{line['policy']} + {line['rule']}" if line["rule"] else str(line["policy"])
    return words + (", temperature 0" if line.get("temperature") == 0.0 else "")


def grouped(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Group lines by label, sorted; labels include the model if there are several models."""
    groups: dict[str, list[Line]] = {}
    several = len({line["model"] for line in lines}) > 1
    for line in sorted(lines, key=label):
        groups.setdefault(f"{label(line)} on {line['model']}" if several else label(line), []).append(line)
    return groups


def _speed(line: Line, machine: str) -> float:
    return float(line["speedup"][machine][0])


def _fastest(lines: Sequence[Line], machine: str) -> Line:
    return max(lines, key=lambda line: _speed(line, machine))


def _scatter(lines: Sequence[Line], machine: str, across: str, width: float) -> tuple[Figure, Axes]:
    """Plot speedup against the field `across`, with 95 % intervals and a colour and marker per policy and rule."""
    lines_with_field = [line for line in lines if line[across] is not None]
    if not lines_with_field:
        raise NotInData(f"no result has the figure '{across}'; simulate policies and rules that have it")
    groups = grouped(lines_with_field)
    figure, axes = canvas(width, 0.68 * width, len(groups))
    for place, (name, members) in enumerate(groups.items()):
        speeds = np.array([line["speedup"][machine] for line in members])
        errors = np.abs(speeds[:, 1:] - speeds[:, :1]).T
        where = [line[across] for line in members]
        axes.errorbar(where, speeds[:, 0], errors, linestyle="none", elinewidth=0.7, label=name, **look_of(place))
    axes.axhline(1.0, color="0.6", linewidth=0.7, zorder=0)
    axes.set_ylabel(f"speedup on {machine}")
    legend(figure, len(groups), width)
    return figure, axes


def speedup_tokens(lines: Sequence[Line], machine: str, width: float = COLUMN) -> Figure:
    """Plot speedup against tokens per cycle. On the dashed line, drafting would cost nothing."""
    figure, axes = _scatter(lines, machine, "tokens_per_cycle", width)
    low, high = axes.get_xlim()
    axes.plot([max(low, 1.0), high], [max(low, 1.0), high], color="0.4", linestyle="--", linewidth=0.8, zorder=0)
    axes.set_xlim(low, high)
    axes.set_xlabel("tokens a target pass")
    return figure


def speedup_alignment(lines: Sequence[Line], machine: str, width: float = COLUMN) -> Figure:
    """Plot speedup against the overlap of target and drafter."""
    figure, axes = _scatter(lines, machine, "alignment", width)
    axes.set_xlabel("alignment: mean 1 - TV(target, drafter)")
    return figure


def pareto(lines: Sequence[Line], machine: str, width: float = COLUMN) -> Figure:
    """Plot speedup against exact bias, with the Pareto front of the results."""
    figure, axes = _scatter(lines, machine, "token_bias", width)
    front = pareto_front(lines, machine)
    biases = [float(line["token_bias"]) for line in front]
    axes.step(
        [*biases, axes.get_xlim()[1]],
        [*(_speed(line, machine) for line in front), _speed(front[-1], machine)],
        where="post",
        color="0.3",
        linewidth=0.9,
        zorder=0,
    )
    axes.set_xlabel("bias: total variation of the next token's distribution")
    return figure


def pareto_front(lines: Sequence[Line], machine: str) -> list[Line]:
    """The Pareto front of bias and speedup among lines with known bias, sorted by rising bias."""
    front: list[Line] = []
    lines_with_bias = [line for line in lines if line["token_bias"] is not None]
    for line in sorted(lines_with_bias, key=lambda line: (line["token_bias"], -_speed(line, machine))):
        if not front or _speed(line, machine) > _speed(front[-1], machine):
            front.append(line)
    return front


def depth_width(lines: Sequence[Line], machine: str, width: float = COLUMN) -> Figure:
    """Plot speedup over depth and width of draft trees, for the policy and rule with the most combinations."""
    best: tuple[str, dict[tuple[int, int], float]] = ("", {})
    for name, members in grouped(lines).items():
        cells: dict[tuple[int, int], float] = {}
        for line in members:
            settings = json.loads(line["policy_settings"])
            if {"depth", "top_k"} <= settings.keys():
                place = int(settings["depth"]), int(settings["top_k"])
                cells[place] = max(cells.get(place, 0.0), _speed(line, machine))
        if len(cells) > len(best[1]):
            best = name, cells
    name, cells = best
    depths, widths = (sorted({place[axis] for place in cells}) for axis in (0, 1))
    if len(depths) < 2 or len(widths) < 2:
        raise NotInData(
            "a depth x width map needs two values of both; sweep --vary policy.depth=2,3,5 and policy.top_k=4,10"
        )
    speeds = np.array([[cells.get((depth, wide), np.nan) for wide in widths] for depth in depths])
    figure, axes = canvas(width, 0.75 * width)
    image = axes.imshow(speeds, origin="lower", cmap="cividis", aspect="auto")
    axes.set_xticks(range(len(widths)), [str(wide) for wide in widths])
    axes.set_yticks(range(len(depths)), [str(depth) for depth in depths])
    middle = (np.nanmin(speeds) + np.nanmax(speeds)) / 2.0
    for row, column in np.argwhere(np.isfinite(speeds)):
        ink = "black" if speeds[row, column] > middle else "white"
        axes.text(column, row, f"{speeds[row, column]:.2f}", ha="center", va="center", color=ink, fontsize=7)
    axes.set(title=name, xlabel="width (top-k)", ylabel="depth (levels)")
    axes.title.set_fontsize(8)
    figure.colorbar(image, label=f"speedup on {machine}")
    return figure


def batch_of(machine: str) -> tuple[str, int, bool]:
    """Split a name such as "a100/llamagen-xl/batch8-fixed" into machine, batch size, and whether images wait."""
    name, slash, images = machine.rpartition("/batch")
    count = images.removesuffix(FIXED)
    return (name, int(count), count != images) if slash and count.isdigit() else (machine, 1, False)


def batch(lines: Sequence[Line], machine: str, width: float = COLUMN) -> Figure:
    """Plot speedup against batch size, for the fastest settings of each policy and rule at each size.

    On dashed lines, the images of a batch start together, and the slots of those that end early stay empty.
    """
    base_machine = batch_of(machine)[0]
    machines = {batch_of(name)[1:]: name for name in lines[0]["speedup"] if batch_of(name)[0] == base_machine}
    sizes = sorted({size for size, _ in machines})
    if len(sizes) < 2:
        raise NotInData(
            f"batch curves need one machine at two batches; sweep --machines {base_machine},{base_machine}/batch4,"
            f"{base_machine}/batch16"
        )
    groups = grouped(lines)
    figure, axes = canvas(width, 0.68 * width, len(groups))
    for place, (name, members) in enumerate(groups.items()):
        for waits, style in ((False, "-"), (True, "--")):
            at = [
                (size, machines[size, waits and size > 1]) for size in sizes if (size, waits and size > 1) in machines
            ]
            if len(at) > 1:
                speeds = np.array([_fastest(members, where)["speedup"][where] for _, where in at])
                errors = np.abs(speeds[:, 1:] - speeds[:, :1]).T
                look = {"elinewidth": 0.7, "linewidth": 1, "linestyle": style, **look_of(place)}
                axes.errorbar([size for size, _ in at], speeds[:, 0], errors, label="" if waits else name, **look)
    axes.axhline(1.0, color="0.6", linewidth=0.7, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="images of a batch", ylabel=f"speedup on {base_machine}")
    legend(figure, len(groups), width)
    return figure


def cycle_time(lines: Sequence[Line], machine: str, width: float = COLUMN) -> Figure:
    """Plot the parts of a mean cycle in ms (passes, host, waiting for a batch's last), for the fastest settings."""
    chosen = sorted(
        ((name, _fastest(members, machine)) for name, members in grouped(lines).items()),
        key=lambda named: _speed(named[1], machine),
    )
    chosen = chosen[-_BARS:]
    figure, axes = canvas(width, 0.9 + 0.22 * len(chosen))
    starts = np.zeros(len(chosen))
    parts = np.array([line["cycle_ms"][machine] for _, line in chosen]).T
    for name, part, colour, hatch in zip(
        ("target passes", "drafter passes", "host", "waiting for the last of a batch"),
        parts,
        ("#0072B2", "#E69F00", "#999999", "#CC79A7"),
        ("", "///", "...", "xxx"),
        strict=True,
    ):
        if not part.any():
            continue
        axes.barh(
            range(len(chosen)),
            part,
            left=starts,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.4,
            label=name,
        )
        starts += part
    for row, ((_, line), end) in enumerate(zip(chosen, starts, strict=True)):
        text = f" {line['tokens_per_cycle']:.2f} tokens, {_speed(line, machine):.2f}x"
        axes.text(end, row, text, va="center", fontsize=6.5)
    axes.set_yticks(range(len(chosen)), [name for name, _ in chosen])
    axes.set_xlim(right=1.45 * float(starts.max()))
    axes.set_xlabel(f"ms of a mean cycle on {machine}")
    figure.legend(loc="outside lower center", ncols=columns(width), frameon=False)
    return figure


def acceptance(trace: Trace, width: float = PAGE) -> Figure:
    """Plot the overlap 1 - TV of drafter and target: by tokens past the root, and by cell right after the root."""
    images, depths, cells = trace.acceptance.shape
    if not depths:
        raise NotInData(
            "acceptance needs a drafter, and the trace has none; add the array draft_logits and trace it again"
        )
    figure = Figure(figsize=(width, 0.4 * width), layout="constrained")
    curve, by_cell = figure.subplots(1, 2)
    plotted_depths = range(min(depths, cells - 1))
    per_image = np.stack([trace.acceptance[:, depth, depth + 1 :].mean(axis=1) for depth in plotted_depths], axis=1)
    half = INTERVAL_DEVIATIONS * per_image.std(axis=0, ddof=1) / np.sqrt(images) if images > 1 else None
    curve.errorbar(
        [depth + 1 for depth in plotted_depths], per_image.mean(axis=0), half, linewidth=1, elinewidth=0.7, **look_of(0)
    )
    curve.set(xlabel="tokens past the root", ylabel="acceptance: mean 1 - TV", ylim=(0, 1))
    curve.set_xticks([depth + 1 for depth in plotted_depths])
    first: FloatArray = trace.acceptance[:, 0].mean(axis=0)
    first[0] = np.nan  # the first cell is never drafted
    image = by_cell.imshow(first.reshape(trace.grid), vmin=0, vmax=1, cmap="cividis")
    by_cell.set(xticks=[], yticks=[], xlabel="cells, right after the root")
    figure.colorbar(image, ax=by_cell, label="acceptance")
    return figure


FIGURES: Final[Mapping[str, FigureSpec]] = {
    spec.name: spec
    for spec in (
        FigureSpec(
            *("speedup-tokens", "Speedup against tokens a pass"),
            "One point a configuration; bars are 95 % intervals. On the dashed line drafting would cost nothing.",
            *("results", speedup_tokens),
        ),
        FigureSpec(
            *("alignment", "Speedup against alignment"),
            "One point a configuration; bars are 95 % intervals.",
            *("results", speedup_alignment),
        ),
        FigureSpec(
            *("pareto", "Speed against bias"),
            "Lossless rules stand at 0. No result lies above the line. Rules that decide by an argmax or a threshold "
            "have no such figure: left out.",
            *("results", pareto),
        ),
        FigureSpec(
            *("depth-width", "Depth and width"),
            "The fastest configuration with each depth and width.",
            *("results", depth_width),
        ),
        FigureSpec(
            *("batch", "Batch curves"),
            "The fastest settings of each policy and rule at each batch; bars are 95 % intervals. Dashed: the slots of "
            "images that end early stay empty.",
            *("results", batch),
        ),
        FigureSpec(
            *("cycle-time", "Where a cycle's time goes"),
            "The fastest settings of each policy and rule; beside each bar its tokens a cycle and its speedup.",
            *("results", cycle_time),
        ),
        FigureSpec(
            *("acceptance", "Acceptance by depth and by cell"),
            "The overlap of drafter and target along the recorded tokens; bars are 95 % intervals over images.",
            *("trace", acceptance),
        ),
    )
}
"""The figures of `underpaint plot`."""
