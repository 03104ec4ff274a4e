"""The report of a sweep: one HTML page that needs nothing beside it."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from underpaint.algos.batched.sparse_table import over_rows
from underpaint.algos.draft import POLICIES
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.page.document import PAGES
from underpaint.sim.batched.decoding import make_scheme, run_lockstep
from underpaint.sim.replay.trace import entropy, load
from underpaint.sim.report.figures import FIGURES, FigureSpec, Line, NotInData, label, maps, rendered
from underpaint.sim.sweep.plan import TRACE, Job, SweepPlan, synthetic_model_of

_MAP_IMAGES = 64


class Plot(NamedTuple):
    """A figure of the page."""

    title: str
    note: str
    svg: str


def plots(lines: Sequence[Line], plan: SweepPlan) -> list[Plot]:
    """The figures that these results allow, on the sweep's first machine."""
    machine = plan.machines[0]
    shown = [_plot(spec, partial(spec.draw, lines, machine)) for spec in FIGURES.values() if spec.of == "results"]
    traces = [load(Path(name)) for name in plan.models[:1] if name.endswith(TRACE)]
    shown += [_plot(FIGURES["acceptance"], partial(FIGURES["acceptance"].draw, trace)) for trace in traces]
    shown.append(depth_maps(lines))
    return [plot for plot in shown if plot is not None]


def _plot(spec: FigureSpec, draw: Callable[[], Figure]) -> Plot | None:
    try:
        return Plot(spec.title, spec.note, _svg(draw))
    except NotInData:
        return None


def _svg(draw: Callable[[], Figure]) -> str:
    text = rendered(draw, "svg").decode()
    return text[text.index("<svg") :]


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
        nats = np.concatenate([[np.nan], over_rows(model.target, entropy)[rows].mean(axis=0)]).reshape(model.grid)
        note = f"Model {job.model}, the first image of its pool, many seeds. Both are means over what was drawn."
        svg = _svg(partial(maps, nats, done.depth_at.reshape(model.grid), POLICIES["adt"].name))
        return Plot("Difficulty and depth", note, svg)
    return None


def page(lines: Sequence[Line], plan: SweepPlan, command: str) -> str:
    """The page. Rows stand by speed-up on the first machine, the fastest first; a click on a heading sorts."""
    ordered = sorted(lines, key=lambda line: -line["speedup"][plan.machines[0]][0])
    return PAGES.get_template("sweep.html").render(
        lines=ordered,
        machines=plan.machines,
        command=command,
        winners=winners(ordered, plan),
        plots=plots(ordered, plan),
        words=[
            pair
            for name in ("model", "policy", "rule")
            for pair in ((name, itemgetter(name)), (f"{name} settings", partial(_settings, f"{name}_settings")))
        ],
        numbers=[
            ("images", "images", ".0f"),
            ("alignment", "alignment", ".2f"),
            ("tokens per cycle", "tokens_per_cycle", ".2f"),
            ("depth", "mean_depth", ".2f"),
            ("token bias", "token_bias", ".3f"),
        ],
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


def _settings(name: str, line: Line) -> str:
    return _short(line[name])


def _short(*settings: str) -> str:
    merged: dict[str, Any] = {}
    for text in settings:
        merged |= json.loads(text)
    return ", ".join(f"{key}={value}" for key, value in merged.items()) or "-"
