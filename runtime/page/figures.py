"""The figures on a comparison's page: leaderboard, gallery, acceptance maps and the cost curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import colormaps

from underpaint.algos.arrays import BoolArray
from underpaint.algos.protocols import Grid
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.evaluation.report_row import above_floor
from underpaint.runtime.page.pictures import PictureStore, data_uri

Row = Mapping[str, Any]
"""A row of the results; see `runtime.evaluation.report_row.ReportRow`."""


class FigureColumn(NamedTuple):
    """A column of the leaderboard.

    Attributes:
        head: The column's heading.
        field: The figure's name in a row.
        form: The format of the numbers, as in `format`.
        note: What the figure means.
        interval: Whether rows also have `field_low` and `field_high`.
    """

    head: str
    field: str
    form: str
    note: str
    interval: bool = False

    def value(self, row: Row) -> float | None:
        """The figure; None if the row has none, or if a Fréchet distance is not above its floor."""
        value: float | None = row.get(self.field)
        if self.field == "frechet_distance" and not above_floor(value, row.get("frechet_floor")):
            return None
        return value


COLUMNS: Final = (
    FigureColumn("speedup", "speedup", ".2f", "over plain autoregression, with a 95 % interval", interval=True),
    FigureColumn("s per image", "seconds_per_image", ".3f", "from the condition to the last token"),
    FigureColumn("target NFE", "target_nfe", ".1f", "forward passes of the target for one image"),
    FigureColumn("drafter NFE", "drafter_nfe", ".1f", "forward passes of the drafter for one image"),
    FigureColumn(
        "tokens per cycle", "tokens_per_cycle", ".2f", "accepted tokens and the extra one, after the first token"
    ),
    FigureColumn("draft kept", "kept_share", ".1%", "share of cells that hold a drafted token"),
    FigureColumn(
        "token bias",
        "token_bias",
        ".4f",
        "total variation between a token's distribution as it was decided and the target's; 0 where lossless",
    ),
    FigureColumn(
        "prompt accuracy", "prompt_accuracy", ".3f", "share of pictures that the judge reads as the prompt says"
    ),
    FigureColumn(
        "minus AR's",
        "accuracy_over_ar",
        "+.3f",
        "prompt accuracy minus plain autoregression's, with a 95 % interval over prompts",
        interval=True,
    ),
    FigureColumn(
        "Fréchet distance",
        "frechet_distance",
        ".1f",
        "to real pictures, in the judge's features; a dash at or below its floor",
    ),
    FigureColumn("its floor", "frechet_floor", ".1f", "the distance of equally many real pictures"),
    FigureColumn("same as AR", "identical_share", ".1%", "share of images with exactly AR's tokens, at temperature 0"),
    FigureColumn("overhead", "overhead_share", ".1%", "share of the time outside the models"),
    FigureColumn("images", "images", "d", "drawn by the method"),
)
"""The columns of the leaderboard."""


def leaderboard(rows: Sequence[Row]) -> dict[str, Any]:
    """The indices of the methods from the fastest on, the columns that any of them has, and each one's whisker.

    A whisker has the ends of the speedup's interval, the speedup and 1, in percent of the largest end.
    """
    ends = [row.get("speedup_high") or row.get("speedup") or 1.0 for row in rows]
    whiskers = []
    for row in rows:
        value = row["speedup"]
        marks = row.get("speedup_low") or value, row.get("speedup_high") or value, value, 1.0
        whiskers.append([round(100 * each / max(1.0, *ends), 2) for each in marks])
    return {
        "columns": [column for column in COLUMNS if any(row.get(column.field) is not None for row in rows)],
        "ranked": sorted(range(len(rows)), key=lambda place: -(rows[place].get("speedup") or 0.0)),
        "whiskers": whiskers,
    }


class GalleryCell(NamedTuple):
    """A picture of the gallery.

    Attributes:
        prompt: The prompt's text.
        picture: Index of the picture in the store.
        differs: Number of codes that differ from AR's; None for AR itself, or without AR.
        same: The cells with AR's codes, as an SVG path.
        edge: The lines around the other cells, as an SVG path.
        replay: Index of the picture's replay, or None.
    """

    prompt: str
    picture: int
    differs: int | None
    same: str
    edge: str
    replay: int | None


def gallery(
    drawings: Mapping[tuple[str, str], Drawing],
    methods: Sequence[str],
    prompts: Sequence[str],
    grid: Grid,
    store: PictureStore,
    replayed: Mapping[tuple[str, str], int],
) -> list[tuple[str, list[GalleryCell | None]]]:
    """Return the gallery, with one row per method and one column per prompt.

    Args:
        drawings: Drawings by method and prompt.
        methods: Names of the methods.
        prompts: Texts of the prompts.
        grid: The grid of image tokens.
        store: The store that the pictures are added to.
        replayed: Index of a replay by method and prompt.

    Returns:
        Each method's name and its cells; a cell is None if nothing was drawn.
    """

    def cell(method: str, prompt: str) -> GalleryCell | None:
        drawing, baseline = drawings.get((method, prompt)), drawings.get((BASELINE, prompt))
        if drawing is None:
            return None
        picture, replay = store.add(drawing.tokens), replayed.get((method, prompt))
        if baseline is None or method == BASELINE:
            return GalleryCell(prompt, picture, None, "", "", replay)
        differs = np.not_equal(drawing.tokens, baseline.tokens).reshape(grid)
        return GalleryCell(prompt, picture, int(differs.sum()), runs(~differs), edges(differs), replay)

    return [(method, [cell(method, prompt) for prompt in prompts]) for method in methods]


def runs(cells: BoolArray) -> str:
    """The cells of a mask [H, W] as an SVG path, with a rectangle for each run in a row."""
    return "".join(f"M{start} {y}h{stop - start}v1H{start}z" for y, start, stop in _runs(cells))


def edges(cells: BoolArray) -> str:
    """The lines between the cells of a mask [H, W] and the others, as an SVG path."""
    across, down = cells[1:] != cells[:-1], (cells[:, 1:] != cells[:, :-1]).T
    lines = [f"M{start} {y + 1}H{stop}" for y, start, stop in _runs(across)]
    return "".join(lines + [f"M{x + 1} {start}V{stop}" for x, start, stop in _runs(down)])


def _runs(cells: BoolArray) -> Iterator[tuple[int, int, int]]:
    """Row, start and stop of each run of True."""
    for y, line in enumerate(cells):
        turns = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]]).astype(np.int8))).tolist()
        for start, stop in zip(turns[::2], turns[1::2], strict=True):
            yield y, start, stop


class AcceptanceMap(NamedTuple):
    """A map of where a method's drafts were accepted.

    Attributes:
        method: The method's name.
        picture: The map as a data: URI.
        text: A description of the map.
        mean: Mean share over all cells.
        cells: The share of each cell, [H][W].
    """

    method: str
    picture: str
    text: str
    mean: float
    cells: list[list[float]]


def acceptance_maps(maps: Mapping[str, Sequence[Sequence[float]]], rows: Sequence[Row]) -> list[AcceptanceMap]:
    """A map for each method that drafts, with a drafter or a window."""
    drafting = {row["method"] for row in rows if row.get("kept_share") is not None}
    return [_map(name, np.array(cells)) for name, cells in maps.items() if name in drafting]


def _map(name: str, cells: np.ndarray[Any, Any]) -> AcceptanceMap:
    highest, lowest = (np.unravel_index(place, cells.shape) for place in (cells.argmax(), cells.argmin()))
    text = (
        f"{name}: a cell was an accepted draft in {cells.mean():.0%} of images on average; most often at row "
        f"{highest[0] + 1}, column {highest[1] + 1} ({cells.max():.0%}), least at row {lowest[0] + 1}, column "
        f"{lowest[1] + 1} ({cells.min():.0%})"
    )
    return AcceptanceMap(name, coloured(cells), text, float(cells.mean()), cells.tolist())


def coloured(cells: np.ndarray[Any, Any]) -> str:
    """Shares [H, W] from 0 to 1 as a data: URI of a picture, dark for 0 and bright for 1."""
    return data_uri((colormaps["viridis"](cells)[..., :3] * 255).round().astype(np.uint8))


CYCLE_FIELDS: Final = ("mean_nodes", "target_ms_per_cycle", "drafter_ms_per_cycle", "host_ms_per_cycle")
_LEAST: Final = 1e-4
"""Smallest end of an axis, so that no axis ends at 0."""


class CostChart(NamedTuple):
    """The time of a target pass by its nodes, drawn in pixels.

    Attributes:
        places: Indices of the rows that decode tree by tree.
        points: x and y of the mean cycle of each method in `places`.
        line: x and y of the measured curve.
        across: Positions of the marks on the x axis, with their values.
        up: Positions of the marks on the y axis, with their values.
        width: Width of the chart.
        height: Height of the chart.
        left: Left margin.
        right: Right margin.
        top: Top margin.
        foot: Bottom margin.
    """

    places: list[int]
    points: list[tuple[float, float]]
    line: list[tuple[float, float]]
    across: list[tuple[float, float]]
    up: list[tuple[float, float]]
    width: int = 640
    height: int = 300
    left: int = 52
    right: int = 20
    top: int = 16
    foot: int = 44


def cost_chart(curve: Mapping[str, Any] | None, rows: Sequence[Row]) -> CostChart | None:
    """The measured curve with a point for each method that decodes tree by tree, also plain autoregression; or None."""
    places = [at for at, row in enumerate(rows) if all(row.get(field) is not None for field in CYCLE_FIELDS)]
    points = [(rows[at]["mean_nodes"] + 1.0, rows[at]["target_ms_per_cycle"]) for at in places]
    line = [] if curve is None else [(float(nodes), float(ms)) for nodes, ms in curve["verify_ms"]]
    if not points and not line:
        return None
    empty = CostChart([], [], [], [], [])
    across, up = (_marks(max(pair[axis] for pair in points + line)) for axis in (0, 1))

    def x(value: float) -> float:
        return empty.left + (empty.width - empty.left - empty.right) * value / across[-1]

    def y(value: float) -> float:
        return empty.height - empty.foot - (empty.height - empty.foot - empty.top) * value / up[-1]

    return empty._replace(
        places=places,
        points=[(x(nodes), y(ms)) for nodes, ms in points],
        line=[(x(nodes), y(ms)) for nodes, ms in line],
        across=[(x(mark), mark) for mark in across],
        up=[(y(mark), mark) for mark in up],
    )


def _marks(most: float) -> list[float]:
    """The marks of an axis, from 0 to the first value that is not below `most`."""
    most = max(most, _LEAST)
    steps = (10.0**exponent * digit for exponent in range(-4, 10) for digit in (1, 2, 5))
    step = next(each for each in steps if most / each <= 6)
    return [step * mark for mark in range(round(-(-most // step)) + 1)]


def facts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The facts that distinguish this run: its command, machine, models and sampling."""
    machine, model, settings = results["machine"], results["model"], results["settings"]
    prompts = settings.get("prompts") or []
    pairs = [
        ("Command", results.get("command", "")),
        ("Machine", ", ".join(f"{key} {value}" for key, value in machine.items() if not isinstance(value, dict))),
        ("Models", f"{model['target']}, {model.get('drafter') or 'no drafter'}, on {model['engine']}"),
        ("SHA-256", ", ".join(f"{name} {sha[:12]}" for name, sha in model["sha256"].items())),
        (
            "Sampling",
            f"temperature {settings['temperature']}, top-k {settings.get('top_k')}, top-p {settings.get('top_p')}, "
            f"guidance {settings.get('guidance')}, {settings.get('preset', '')} settings",
        ),
        ("Prompts", f"{len(prompts)}, with seeds {', '.join(map(str, settings.get('seeds') or []))}"),
    ]
    return [(name, str(value)) for name, value in pairs if value]
