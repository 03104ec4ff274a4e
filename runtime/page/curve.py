"""The cost curve of a comparison: what a target pass costs by its nodes, and where each method's cycles lie."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, Final

from underpaint.runtime.page.tables import number

_FIELDS: Final = ("mean_nodes", "target_ms_per_cycle", "drafter_ms_per_cycle", "host_ms_per_cycle")
_WIDTH: Final = 640
_HEIGHT: Final = 300
_LEFT: Final = 52
_RIGHT: Final = 20
_TOP: Final = 16
_FOOT: Final = 44
_LEAST: Final = 1e-4
"""Of an axis, which never ends at 0."""


def cost_curve(curve: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]]) -> str:
    """A drawing of the measured curve with a point for each method that drafts trees, and both as tables."""
    points = [
        (row["method"], place, row["mean_nodes"] + 1.0, row["target_ms_per_cycle"])
        for place, row in enumerate(rows)
        if all(row.get(field) is not None for field in _FIELDS)
    ]
    line = [] if curve is None else [(float(nodes), float(ms)) for nodes, ms in curve["verify_ms"]]
    if not points and not line:
        return "<p>These models have no measured cost curve, and none of these methods drafts trees.</p>"
    across = _scale(max([x for x, _ in line] + [point[2] for point in points]))
    up = _scale(max([y for _, y in line] + [point[3] for point in points]))
    parts = [*_axes(across, up)]
    if line:
        path = " ".join(f"{_x(x, across):.1f},{_y(y, up):.1f}" for x, y in line)
        parts.append(f'<polyline class="curve" points="{path}"/>')
        parts += [f'<circle class="curve" cx="{_x(x, across):.1f}" cy="{_y(y, up):.1f}" r="2"/>' for x, y in line]
    for turn, (_, _, x, y) in enumerate(points):
        at = _x(x, across), _y(y, up)
        parts.append(f'<circle class="point" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="8"/>')
        parts.append(f'<text class="point" x="{at[0]:.1f}" y="{at[1] + 3.5:.1f}">{turn + 1}</text>')
    text = "The measured curve of the target's passes" if line else "Cycles of the methods"
    text += ", and where the methods' mean cycles lie; both stand in the tables below."
    drawing = (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text}">{"".join(parts)}</svg>'
    )
    return f"<figure>{drawing}<figcaption>{_caption(bool(line))}</figcaption></figure>{_tables(curve, rows, points)}"


def _caption(measured: bool) -> str:
    found = "Numbers: the target's share of a method's mean cycle in this comparison."
    line = "Line: a target pass repeated alone on this machine."
    return f"{line} {found}" if measured else found


def _tables(
    curve: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]], points: Sequence[tuple[str, int, float, float]]
) -> str:
    lines = []
    for turn, (name, place, _, _) in enumerate(points):
        cells = [f"<td>{number(rows[place][field], '.2f', 'rows', place, field)}</td>" for field in _FIELDS]
        method = f'<th scope="row" class="words">{html.escape(name)}</th>'
        lines.append(f"<tr><td>{turn + 1}</td>{method}{''.join(cells)}</tr>")
    heads = ("no.", "method", "drafted nodes", "target ms", "drafter ms", "host ms")
    found = ""
    if lines:
        shown = "".join(f'<th scope="col"{" class=words" if head == "method" else ""}>{head}</th>' for head in heads)
        found += (
            '<div class="wide" tabindex="0" role="region" aria-label="Cycles of the methods"><table>'
            f"<caption>A cycle of each method, means.</caption><thead><tr>{shown}</tr></thead>"
            f"<tbody>{''.join(lines)}</tbody></table></div>"
        )
    if curve is not None:
        pairs = "".join(
            f"<tr><td>{number(nodes, 'd', 'cost_curve', 'verify_ms', at, 0)}</td>"
            f"<td>{number(ms, '.3f', 'cost_curve', 'verify_ms', at, 1)}</td></tr>"
            for at, (nodes, ms) in enumerate(curve["verify_ms"])
        )
        found += (
            '<details><summary>The curve\'s values</summary><table><thead><tr><th scope="col">nodes</th>'
            f'<th scope="col">ms</th></tr></thead><tbody>{pairs}</tbody></table></details>'
        )
    return found


def _scale(most: float) -> tuple[float, float]:
    """The largest value that an axis shows, and the step between its marks."""
    most = max(most, _LEAST)
    steps = (10.0**exponent * digit for exponent in range(-4, 10) for digit in (1, 2, 5))
    step = next(each for each in steps if most / each <= 6)
    return step * -(-most // step), step


def _x(value: float, scale: tuple[float, float]) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / scale[0]


def _y(value: float, scale: tuple[float, float]) -> float:
    return _HEIGHT - _FOOT - (_HEIGHT - _FOOT - _TOP) * value / scale[0]


def _axes(across: tuple[float, float], up: tuple[float, float]) -> list[str]:
    parts = []
    for mark in range(round(up[0] / up[1]) + 1):
        y = _y(mark * up[1], up)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="left" x="{_LEFT - 6}" y="{y + 4:.1f}">{mark * up[1]:g}</text>')
    for mark in range(round(across[0] / across[1]) + 1):
        x = _x(mark * across[1], across)
        parts.append(f'<text class="mid" x="{x:.1f}" y="{_HEIGHT - _FOOT + 16}">{mark * across[1]:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="mid" x="{middle}" y="{_HEIGHT - 8}">nodes that the target scores</text>')
    parts.append(f'<text class="mid" transform="translate(14 {_HEIGHT / 2 - 10}) rotate(-90)">ms of a pass</text>')
    return parts
