"""Check published speedups: can one cost ratio explain all rows of a table?

A speedup is tokens per cycle divided by the cost of a cycle in plain steps. That cost is 1 + ratio * mean depth if a
drafter runs once per level ("depth" tables), and constant without a drafter ("steps" tables). If the tree is known or
assumed, a roofline gives a lower bound of the cost, and no ratio is fitted.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from underpaint.algos.protocols import Grid
from underpaint.algos.registry import build
from underpaint.algos.spatial.row_front import front_steps
from underpaint.sim.latency.machines import roofline

Kind: TypeAlias = Literal["depth", "steps", "speedup", "alone", "fronts"]
TOLERANCE = 0.10
"""Largest relative error of a row that still fits."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of a published table. Figures that the table lacks are 0.

    Attributes:
        method: Name of the method.
        data: The data or the model of this row, in words.
        speedup: The published speedup.
        tokens_per_cycle: Mean tokens per cycle.
        mean_depth: Mean depth of the draft tree per cycle.
        height, width: Rows and columns of an image.
        window: The window of the row fronts.
        steps: Number of steps of an image.
        paper, tag: If different from the table's.
        missing: What the paper would have to report for a prediction, in words; "" if nothing is known to be missing.
    """

    method: str
    data: str
    speedup: float
    tokens_per_cycle: float = 0.0
    mean_depth: float = 0.0
    height: int = 0
    width: int = 0
    window: int = 0
    steps: int = 0
    paper: str = ""
    tag: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one table.

    Attributes:
        name: Name of the table.
        paper: The paper with the table.
        tag: How reliable the table is; see the note in published.json.
        kind: How its rows are checked.
        model: The model that the table is about.
        setting: Conditions of the table, in words.
        rows: The rows.
        latency: Name of a roofline ("": none).
        depth, nodes, width: The draft tree assumed on the roofline.
    """

    name: str
    paper: str
    tag: str
    kind: Kind
    model: str
    setting: str
    rows: tuple[PublishedRow, ...]
    latency: str = ""
    depth: int = 0
    nodes: int = 0
    width: int = 0


class Checked(NamedTuple):
    """A published row and its prediction.

    Attributes:
        group: The row's table.
        row: The published row.
        predicted: The predicted speedup; None if there is none.
        error: Relative error of the predicted speedup: predicted / published - 1.
        cost: The cost of a drafter pass ("depth") or of a cycle ("steps", "speedup") in plain steps, fitted or bounded.
        implied: The same cost from this row alone; for "speedup" rows, the tokens per cycle that the speedup requires.
        verdict: The result of the check, in words.
        by_roofline: The speedup of the row's own tokens per cycle and depth on the table's roofline.
    """

    group: Group
    row: PublishedRow
    predicted: float | None
    error: float | None
    cost: float | None
    implied: float | None
    verdict: str
    by_roofline: float | None = None

    @property
    def roofline_error(self) -> float | None:
        """Relative error of the speedup that the roofline predicts; None if it predicts none."""
        return None if self.by_roofline is None else self.by_roofline / self.row.speedup - 1.0

    @property
    def paper(self) -> str:
        """The paper of the row."""
        return self.row.paper or self.group.paper

    @property
    def tag(self) -> str:
        """How reliable the row is; see the note in published.json."""
        return self.row.tag or self.group.tag


def groups() -> tuple[Group, ...]:
    """Load all published tables."""
    values: dict[str, Any] = json.loads(
        files("underpaint.sim.report").joinpath("published.json").read_text(encoding="utf-8")
    )
    tables = []
    for plain in values["groups"]:
        rows = tuple(build(PublishedRow, row, f"published '{plain['name']}'") for row in plain["rows"])
        group = build(Group, {**plain, "rows": rows}, f"published '{plain['name']}'")
        if group.kind not in get_args(Kind):
            raise ValueError(f"published '{group.name}': kind must be one of {', '.join(get_args(Kind))}")
        tables.append(group)
    return tuple(tables)


def implied_cost(group: Group, row: PublishedRow) -> float:
    """The drafter's cost ratio ("depth") or the cost of a step ("steps") that explains this row alone."""
    cycle = row.tokens_per_cycle / row.speedup
    return (cycle - 1.0) / row.mean_depth if group.kind == "depth" else cycle


def predicted(group: Group, row: PublishedRow, cost: float) -> float:
    """Predict the row's speedup from a cost ratio."""
    return row.tokens_per_cycle / (1.0 + cost * row.mean_depth if group.kind == "depth" else cost)


def check(group: Group) -> tuple[Checked, ...]:
    """Check every row of a table; in "depth" and "steps" tables against a cost ratio fitted on the first row."""
    if group.kind in ("depth", "steps"):
        return _fitted(group)
    if group.kind == "fronts":
        return tuple(_front(group, row) for row in group.rows)
    if group.kind == "alone":
        return tuple(Checked(group, row, None, None, None, None, _unchecked(row)) for row in group.rows)
    return tuple(_bounded(group, row) for row in group.rows)


def _unchecked(row: PublishedRow) -> str:
    return "nothing to check it by" + (f"; missing: {row.missing}" if row.missing else "")


def _fitted(group: Group) -> tuple[Checked, ...]:
    implied_costs = [implied_cost(group, row) for row in group.rows]
    cost = implied_costs[0]
    least = 0.0 if group.kind == "depth" else 1.0
    checks = []
    for place, (row, ratio) in enumerate(zip(group.rows, implied_costs, strict=True)):
        speed = predicted(group, row, cost)
        error = speed / row.speedup - 1.0
        if ratio < least:
            verdict = f"{1.0 - ratio:.0%} faster than its own steps" if least else "faster than its own tokens"
        elif not place:
            verdict = "fitted on"
        else:
            verdict = "fits" if abs(error) <= TOLERANCE else "does not fit"
        by_roofline = row.tokens_per_cycle / _cycle(group, row.mean_depth or group.depth) if group.latency else None
        checks.append(Checked(group, row, speed, error, cost, ratio, verdict, by_roofline))
    return tuple(checks)


def _cycle(group: Group, depth: float) -> float:
    """Cost of a cycle with the group's tree on its roofline, in plain steps; all levels but the first are wide."""
    costs = roofline(group.latency)
    plain, whole = costs.verify_ms(np.array([1, group.nodes]))
    first, wide = costs.draft_ms(np.array([1, group.width]))
    return float((whole + first + wide * (depth - 1.0)) / plain)


def _front(group: Group, row: PublishedRow) -> Checked:
    grid = Grid(row.height, row.width)
    windows = [row.window] if row.window else range(1, row.width + 1)
    window = min(windows, key=lambda one: abs(front_steps(grid, one) - row.steps))
    speed = grid.cells / front_steps(grid, window)
    error = speed / row.speedup - 1.0
    verdict = "fits" if abs(error) <= TOLERANCE else "does not fit"
    verdict += "" if row.window else f" (the nearest window, {window}, takes {front_steps(grid, window)} steps)"
    return Checked(group, row, speed, error, None, None, verdict)


def _bounded(group: Group, row: PublishedRow) -> Checked:
    """Compute the tokens per cycle that the speedup requires on the roofline, and whether the tree can reach them. If
    the row reports its tokens per cycle, the roofline predicts its speedup too.
    """
    cycle = _cycle(group, group.depth)
    needed = row.speedup * cycle
    by_roofline = row.tokens_per_cycle / cycle if row.tokens_per_cycle else None
    if needed < 1.0:
        return Checked(group, row, None, None, cycle, needed, _slower(cycle, row), by_roofline)
    verdict = f"takes {needed:.2f} tokens a cycle" + ("" if needed <= group.depth + 1 else ": impossible")
    if row.tokens_per_cycle:
        verdict += f", published {row.tokens_per_cycle:.2f}"
    verdict += f"; missing: {row.missing}" if row.missing else ""
    return Checked(group, row, None, None, cycle, needed, verdict, by_roofline)


def _slower(cycle: float, row: PublishedRow) -> str:
    return f"a cycle took {1.0 / row.speedup:.2f} plain steps; the roofline says {cycle:.2f}"
