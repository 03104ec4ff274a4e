"""The parts of a page that hold figures: tables, maps and the cost curve, every number marked with its place in the
JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import colormaps

from underpaint.runtime.evaluation.report import above_floor
from underpaint.runtime.page.pictures import data_uri


class FigureColumn(NamedTuple):
    """A column of the leaderboard. field: of a row; low, high: the ends of its interval, where it has one."""

    head: str
    field: str
    form: str
    low: str | None = None
    high: str | None = None
    note: str = ""


COLUMNS: Final = (
    FigureColumn(
        "speed-up", "speedup", ".2f", "speedup_low", "speedup_high", "over plain autoregression, with a 95 % interval"
    ),
    FigureColumn("s per image", "seconds_per_image", ".3f", note="from the condition to the last token"),
    FigureColumn("target NFE", "target_nfe", ".1f", note="forward passes of the target for one image"),
    FigureColumn("drafter NFE", "drafter_nfe", ".1f", note="forward passes of the drafter for one image"),
    FigureColumn(
        "tokens per cycle", "tokens_per_cycle", ".2f", note="accepted tokens and the extra one, over cycles that draft"
    ),
    FigureColumn("draft kept", "kept_share", ".1%", note="of all cells, those that hold a drafted token"),
    FigureColumn(
        "token bias",
        "token_bias",
        ".4f",
        note="total variation between a token's distribution as it was decided and the target's; 0 where lossless",
    ),
    FigureColumn(
        "prompt accuracy", "prompt_accuracy", ".3f", note="of the pictures, those the judge reads as the prompt says"
    ),
    FigureColumn(
        "less AR's",
        "accuracy_over_ar",
        "+.3f",
        "accuracy_over_ar_low",
        "accuracy_over_ar_high",
        "prompt accuracy less plain autoregression's, with a 95 % interval over prompts",
    ),
    FigureColumn(
        "Fréchet distance",
        "frechet_distance",
        ".1f",
        note="to real pictures, in the judge's features; a dash at or below its floor",
    ),
    FigureColumn("its floor", "frechet_floor", ".1f", note="what as many real pictures have"),
    FigureColumn("same as AR", "identical_share", ".1%", note="of the images, at temperature 0"),
    FigureColumn("overhead", "overhead_share", ".1%", note="of the seconds, outside the models"),
    FigureColumn("images", "images", "d", note="drawn by the method"),
)
"""What is known of a row and where; columns without a value in any row are left out."""


def number(value: float, form: str, *place: str | int) -> str:
    """A number as text, marked with its place in the JSON, so that the two can be held against each other."""
    at = html.escape(json.dumps(place), quote=True)
    return f'<span data-at="{at}" data-form="{form}">{format(value, form)}</span>'


def leaderboard(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of methods, the fastest first."""
    shown = [column for column in COLUMNS if any(row.get(column.field) is not None for row in rows)]
    order = sorted(range(len(rows)), key=lambda place: -(rows[place].get("speedup") or 0.0))
    names = [("method", "how it was drawn"), ("lossless", "whether the distribution of its pictures is the target's")]
    heads = [_head(head, note, "none", words=True) for head, note in names]
    for column in shown:
        heads.append(_head(column.head, column.note, "descending" if column.field == "speedup" else "none"))
        if column.field == "speedup":
            heads.append('<th scope="col"><span class="unseen">speed-up, drawn</span></th>')
    ends = [row.get("speedup_high") or row.get("speedup") or 1.0 for row in rows]
    body = "".join(_row(rows[place], place, shown, max(1.0, *ends)) for place in order)
    notes = "".join(f"<dt>{html.escape(c.head)}</dt><dd>{html.escape(c.note)}</dd>" for c in shown if c.note)
    return (
        '<div class="wide" role="region" aria-labelledby="leaderboard-title" tabindex="0"><table class="sortable">'
        "<caption>One row a method. The buttons in the heads sort.</caption>"
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<details><summary>What the columns mean</summary><dl>{notes}</dl></details>"
    )


def _head(text: str, note: str, sort: str, words: bool = False) -> str:
    kind = ' class="words"' if words else ""
    title = html.escape(note)
    button = f'<button type="button" title="{title}">{html.escape(text)}<span aria-hidden="true"></span></button>'
    return f'<th scope="col" aria-sort="{sort}"{kind}>{button}</th>'


def _row(row: Mapping[str, Any], place: int, columns: Sequence[FigureColumn], most: float) -> str:
    name = html.escape(row["method"])
    lossless = "yes" if row["lossless"] else "no"
    cells = [f'<th scope="row" class="words" data-value="{name}">{name}</th>']
    cells.append(f'<td class="words {lossless}" data-value="{lossless}">{lossless}</td>')
    for column in columns:
        cells.append(_cell(row, place, column))
        if column.field == "speedup":
            cells.append(_whisker(row, most))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(row: Mapping[str, Any], place: int, column: FigureColumn) -> str:
    value = row.get(column.field)
    hidden = column.field == "frechet_distance" and not above_floor(value, row.get("frechet_floor"))
    if value is None or hidden:
        absent = "not known" if value is None else "not above its floor"
        return f'<td data-value=""><span class="unseen">{absent}</span><span aria-hidden="true">-</span></td>'
    text = number(value, column.form, "rows", place, column.field)
    low, high = (None if end is None else row.get(end) for end in (column.low, column.high))
    if low is not None and high is not None and column.low and column.high:
        ends = [number(end, column.form, "rows", place, name) for end, name in ((low, column.low), (high, column.high))]
        text += f" <small>({ends[0]} to {ends[1]})</small>"
    return f'<td data-value="{value!r}">{text}</td>'


def _whisker(row: Mapping[str, Any], most: float) -> str:
    """The speed-up and its interval as a drawing; the numbers stand beside it."""
    value = row["speedup"]
    low, high = row.get("speedup_low") or value, row.get("speedup_high") or value
    at = [round(100 * each / most, 2) for each in (low, high, value, 1.0)]
    return (
        '<td class="whisker" aria-hidden="true"><svg viewBox="0 0 104 12" width="104" height="12">'
        f'<line class="one" x1="{at[3]}" x2="{at[3]}" y1="0" y2="12"/>'
        f'<line x1="{at[0]}" x2="{at[1]}" y1="6" y2="6"/><circle cx="{at[2]}" cy="6" r="3"/></svg></td>'
    )


def acceptance_maps(maps: Mapping[str, Sequence[Sequence[float]]], rows: Sequence[Mapping[str, Any]]) -> str:
    """A map for each method that drafts, by a drafter or a window, with its values in a table behind it."""
    drafting = {row["method"] for row in rows if row.get("kept_share") is not None}
    figures = [_map(name, np.array(cells)) for name, cells in maps.items() if name in drafting]
    if not figures:
        return "<p>None of these methods drafts.</p>"
    scale = _coloured(np.linspace(0.0, 1.0, 64)[None])
    return (
        f'<p class="scale">0 % <img src="{scale}" alt="colours from dark (never) to bright (always)"> 100 %</p>'
        f'<div class="maps">{"".join(figures)}</div>'
    )


def _map(name: str, cells: np.ndarray[Any, Any]) -> str:
    highest, lowest = (np.unravel_index(place, cells.shape) for place in (cells.argmax(), cells.argmin()))
    text = (
        f"{name}: a cell was an accepted draft in {cells.mean():.0%} of images on average; most often at row "
        f"{highest[0] + 1}, column {highest[1] + 1} ({cells.max():.0%}), least at row {lowest[0] + 1}, column "
        f"{lowest[1] + 1} ({cells.min():.0%})"
    )
    lines = "".join(
        f'<tr><th scope="row">{y + 1}</th>'
        + "".join(f"<td>{number(value, '.2f', 'acceptance_per_cell', name, y, x)}</td>" for x, value in enumerate(line))
        + "</tr>"
        for y, line in enumerate(cells.tolist())
    )
    heads = "".join(f'<th scope="col">{x + 1}</th>' for x in range(cells.shape[1]))
    label = html.escape(name)
    return (
        f'<figure><img class="pixels" src="{_coloured(cells)}" alt="{html.escape(text)}"><figcaption>{label} '
        f'<small>mean {cells.mean():.0%}</small></figcaption><details><summary>Values<span class="unseen"> of {label}'
        f'</span></summary><div class="wide" tabindex="0" role="region" aria-label="Values of {label}"><table>'
        f'<thead><tr><th scope="col">row</th>{heads}</tr></thead><tbody>{lines}</tbody></table></div></details>'
        "</figure>"
    )


def _coloured(cells: np.ndarray[Any, Any]) -> str:
    return data_uri((colormaps["viridis"](cells)[..., :3] * 255).round().astype(np.uint8))


def facts(results: Mapping[str, Any]) -> str:
    """What tells this run from others: its command, machine, models and sampling."""
    machine, model, settings = results["machine"], results["model"], results["settings"]
    prompts = settings.get("prompts") or []
    pairs = [
        ("Command", results.get("command", "")),
        ("Machine", ", ".join(f"{key} {value}" for key, value in machine.items() if not isinstance(value, dict))),
        ("Models", f"{model['target']}, {model.get('drafter') or 'no drafter'}, on {model['engine']}"),
        *(("SHA-256", ", ".join(f"{name} {sha[:12]}" for name, sha in model["sha256"].items())),),
        (
            "Sampling",
            f"temperature {settings['temperature']}, top-k {settings.get('top_k')}, top-p {settings.get('top_p')}, "
            f"guidance {settings.get('guidance')}, {settings.get('preset', '')} settings",
        ),
        ("Prompts", f"{len(prompts)}, with seeds {', '.join(map(str, settings.get('seeds') or []))}"),
    ]
    return "".join(f"<dt>{name}</dt><dd>{html.escape(str(value))}</dd>" for name, value in pairs if value)
