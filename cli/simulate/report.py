"""The report of a sweep: one HTML page that needs nothing beside it."""

import dataclasses
import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from underpaint.algos.draft import POLICIES
from underpaint.algos.tree import NO_TOKEN
from underpaint.artifacts.origin import GENERATOR_META
from underpaint.cli.simulate.plots import Line, Plot, against_alignment, frontier, heat_map, label, maps
from underpaint.sim.batched.decoding import make_scheme, run_lockstep
from underpaint.sim.replay.trace import entropy
from underpaint.sim.sweep.plan import Job, SweepPlan, synthetic_model_of

_MAP_IMAGES = 64
_COLUMNS = (
    *("model", "model settings", "policy", "policy settings", "rule", "rule settings"),
    *("images", "alignment", "tokens per cycle", "depth", "token bias"),
)
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1b1b1f;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
code,pre{background:#f3f3f5;border-radius:4px;padding:.1rem .3rem;white-space:pre-wrap;overflow-wrap:anywhere}
pre{padding:.6rem .8rem}p.note{color:#5b5b66;margin:.2rem 0}figure{margin:0}svg{max-width:100%;height:auto}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.82rem;width:100%}
th,td{padding:.2rem .5rem;text-align:right;border-bottom:1px solid #e4e4ea;white-space:nowrap}
th{cursor:pointer;position:sticky;top:0;background:#fff}th.words,td.words{text-align:left}
tr.best td{background:#eef7ee}
"""
_SORT = """
document.querySelectorAll('th').forEach(head => head.addEventListener('click', () => {
  const body = head.closest('table').tBodies[0], rows = [...body.rows], column = head.cellIndex;
  const down = head.dataset.down !== '1';
  const value = row => {
    const text = row.cells[column].dataset.value;
    return isNaN(text) || text === '' ? text : +text;
  };
  rows.sort((a, b) => { const x = value(a), y = value(b); return (x > y ? 1 : x < y ? -1 : 0) * (down ? -1 : 1); });
  head.dataset.down = down ? '1' : '0';
  rows.forEach(row => body.append(row));
}));
"""


def plots(lines: Sequence[Line], plan: SweepPlan) -> list[Plot]:
    """The plots that these results allow, on the sweep's first machine."""
    machine = plan.machines[0]
    found = [against_alignment(lines, machine), frontier(lines, machine), heat_map(lines, machine), depth_maps(lines)]
    return [plot for plot in found if plot is not None]


def depth_maps(lines: Sequence[Line]) -> Plot | None:
    """Difficulty and depth of the first adaptive configuration; None where no policy adapts in lockstep."""
    for line in lines:
        if line["policy"] != "adt" or line["engine"] != "lockstep":
            continue
        job = Job.of(line)
        model = synthetic_model_of(job.model, job.model_settings)
        model = dataclasses.replace(model, starts=model.starts[:1])
        settings = json.loads(job.policy_settings), json.loads(job.rule_settings)
        scheme = make_scheme(model, job.policy, job.rule, *settings)
        done = run_lockstep(model, scheme, _MAP_IMAGES, 0)
        cells = np.arange(1, model.grid.cells)
        above = cells - model.grid.width
        upper = np.where(above >= 0, done.canvas[:, np.maximum(above, 0)], NO_TOKEN)
        rows = model.rows(np.zeros(1, dtype=np.int64)[:, None], cells[None], done.canvas[:, cells - 1], upper)
        nats = np.concatenate([[np.nan], entropy(model.target)[rows].mean(axis=0)])
        return maps(nats.reshape(model.grid), done.depth_at.reshape(model.grid), job.model, POLICIES["adt"].name)
    return None


def page(lines: Sequence[Line], plan: SweepPlan, command: str) -> str:
    """The page. Rows stand by speed-up on the first machine, the fastest first; a click on a heading sorts."""
    ordered = sorted(lines, key=lambda line: -line["speedup"][plan.machines[0]][0])
    figures = "".join(
        f"<figure><h2>{html.escape(plot.title)}</h2>{plot.svg}"
        f"<figcaption><p class=note>{html.escape(plot.note)}</p></figcaption></figure>"
        for plot in plots(ordered, plan)
    )
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        f"{GENERATOR_META}"
        "<meta name=viewport content='width=device-width,initial-scale=1'><title>Underpaint: a sweep</title>"
        f"<style>{_STYLE}</style></head><body><h1>A sweep: {len(lines) * len(plan.machines)} configurations</h1>"
        f"<p>{len(lines)} simulations, each on {len(plan.machines)} latency models: "
        f"{html.escape(', '.join(plan.machines))}. Speed-ups are against plain autoregression on the same model, with "
        f"95 % intervals over images. Rooflines are bounds, not measurements.</p>"
        f"<pre>{html.escape(command)}</pre>{_winners(ordered, plan)}{figures}"
        f"<h2>All configurations</h2><div class=wide>{_table(ordered, plan)}</div>"
        f"<script>{_SORT}</script></body></html>"
    )


def winners(lines: Sequence[Line], plan: SweepPlan) -> list[dict[str, Any]]:
    """The fastest by any rule and the fastest lossless one, of every model and machine; speedup: (mean, low, high)."""
    rows = []
    for model in dict.fromkeys(line["model"] for line in lines):
        for machine in plan.machines:
            here = [line for line in lines if line["model"] == model]
            for what, members in (
                ("any rule", here),
                ("lossless", [line for line in here if line["token_bias"] == 0.0]),
            ):
                if members:
                    best = max(members, key=lambda line: float(line["speedup"][machine][0]))
                    names = {"model": model, "machine": machine, "among": what, "fastest": label(best)}
                    settings = _short(best["policy_settings"], best["rule_settings"])
                    rows.append({**names, "settings": settings, "speedup": best["speedup"][machine]})
    return rows


def _winners(lines: Sequence[Line], plan: SweepPlan) -> str:
    rows = []
    for row in winners(lines, plan):
        cells = (str(row[name]) for name in ("model", "machine", "among", "fastest", "settings"))
        words = "".join(f"<td class=words data-value=''>{html.escape(cell)}</td>" for cell in cells)
        rows.append(f"<tr>{words}<td>{_speed(row['speedup'])}</td></tr>")
    heads = "".join(f"<th class=words>{head}</th>" for head in ("model", "machine", "among", "fastest", "settings"))
    table = f"<table><thead><tr>{heads}<th>speed-up</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<h2>The fastest</h2><div class=wide>{table}</div>"


def _short(*settings: str) -> str:
    merged: dict[str, Any] = {}
    for text in settings:
        merged |= json.loads(text)
    return ", ".join(f"{key}={value}" for key, value in merged.items()) or "-"


def _speed(parts: Sequence[float]) -> str:
    return f"{parts[0]:.2f} ({parts[1]:.2f} to {parts[2]:.2f})"


def _table(lines: Sequence[Line], plan: SweepPlan) -> str:
    heads = "".join(f"<th{' class=words' if place < 6 else ''}>{name}</th>" for place, name in enumerate(_COLUMNS))
    heads += "".join(f"<th>{html.escape(machine)}</th>" for machine in plan.machines)
    body = []
    for line in lines:
        words = (
            *(line["model"], _short(line["model_settings"]), line["policy"], _short(line["policy_settings"])),
            *(line["rule"], _short(line["rule_settings"])),
        )
        cells = [f"<td class=words data-value='{html.escape(word, True)}'>{html.escape(word)}</td>" for word in words]
        numbers = (
            (line["images"], ".0f"),
            *((line[name], ".2f") for name in ("alignment", "tokens_per_cycle", "mean_depth")),
            (line["token_bias"], ".3f"),
        )
        for value, form in numbers:
            shown = "-" if value is None else format(value, form)
            cells.append(f"<td data-value='{'' if value is None else value}'>{shown}</td>")
        for machine in plan.machines:
            speed = line["speedup"][machine]
            cells.append(f"<td data-value='{speed[0]}'>{_speed(speed)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
