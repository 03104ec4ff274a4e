"""The gallery of a page: pictures by prompt and method, and the cells whose codes are other than AR's."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from underpaint.algos.arrays import BoolArray
from underpaint.algos.protocols import Grid
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.page.pictures import PictureStore


def gallery(
    drawings: Mapping[tuple[str, str], Drawing],
    rows: Sequence[Mapping[str, Any]],
    prompts: Sequence[str],
    grid: Grid,
    store: PictureStore,
    replayed: Mapping[tuple[str, str], int],
) -> str:
    """A table with a row a method and a column a prompt.

    drawings: by method and prompt. replayed: the place of the replay of a method and a prompt, where there is one.
    """
    heads = "".join(f'<th scope="col"><span class="prompt">{html.escape(prompt)}</span></th>' for prompt in prompts)
    lines = []
    for row in rows:
        name = row["method"]
        cells = []
        for prompt in prompts:
            drawing, baseline = drawings.get((name, prompt)), drawings.get((BASELINE, prompt))
            cells.append("<td></td>" if drawing is None else _cell(drawing, baseline, grid, store, replayed))
        lines.append(f'<tr><th scope="row" class="words">{html.escape(name)}</th>{"".join(cells)}</tr>')
    head = f'<thead><tr><th scope="col" class="words">method</th>{heads}</tr></thead>'
    return (
        '<div class="wide" role="region" aria-labelledby="gallery-title" tabindex="0"><table class="gallery">'
        "<caption>A row a method, a column a prompt; all under the same noise.</caption>"
        f"{head}<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(
    drawing: Drawing,
    baseline: Drawing | None,
    grid: Grid,
    store: PictureStore,
    replayed: Mapping[tuple[str, str], int],
) -> str:
    picture = store.add(drawing.tokens)
    text, overlay = f"{drawing.prompt}, drawn by {drawing.method}", ""
    count = None
    if baseline is not None and drawing.method != BASELINE:
        differs = np.not_equal(drawing.tokens, baseline.tokens).reshape(grid)
        count = int(differs.sum())
        text += f"; {count} of {grid.cells} codes differ from AR's"
        if count:
            paths = f'<path class="same" d="{runs(~differs)}"/><path class="edge" d="{edges(differs)}"/>'
            size = f'viewBox="0 0 {grid.width} {grid.height}" preserveAspectRatio="none"'
            overlay = f'<svg class="differs" {size} aria-hidden="true">{paths}</svg>'
    shown = "" if count is None else f"<small>{count or 'no'} code{'s differ' if count != 1 else ' differs'}</small>"
    turn = replayed.get((drawing.method, drawing.prompt))
    if turn is not None:
        label = html.escape(f"Replay: {drawing.prompt}, by {drawing.method}")
        shown += f' <button type="button" class="link" data-replay="{turn}" aria-label="{label}">replay</button>'
    image = f'<img class="pixels" data-picture="{picture}" alt="{html.escape(text)}">'
    return f'<td><div class="framed">{image}{overlay}</div><div>{shown}</div></td>'


def runs(cells: BoolArray) -> str:
    """The cells of a mask [H, W] as an SVG path, a rectangle for each run in a row."""
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
