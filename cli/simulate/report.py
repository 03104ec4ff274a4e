"""The report of a sweep, as one self-contained HTML page."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from underpaint.runtime.page.document import PAGES
from underpaint.sim.replay.trace import load
from underpaint.sim.report.canvas import rendered
from underpaint.sim.report.figures import FIGURES, FigureSpec, Line, NotInData, label
from underpaint.sim.sweep.plan import TRACE, SweepPlan


class Plot(NamedTuple):
    """A figure of the page, as SVG."""

    title: str
    note: str
    svg: str


def plots(lines: Sequence[Line], plan: SweepPlan) -> list[Plot]:
    """Draw the figures that these results allow, on the sweep's first machine."""
    machine = plan.machines[0]
    candidates = [_plot(spec, partial(spec.draw, lines, machine)) for spec in FIGURES.values() if spec.of == "results"]
    traces = [load(Path(name)) for name in plan.models[:1] if name.endswith(TRACE)]
    candidates += [_plot(FIGURES["acceptance"], partial(FIGURES["acceptance"].draw, trace)) for trace in traces]
    return [plot for plot in candidates if plot is not None]


def _plot(spec: FigureSpec, draw: Callable[[], Figure]) -> Plot | None:
    try:
        return Plot(spec.title, spec.note, _svg(draw))
    except NotInData:
        return None


def _svg(draw: Callable[[], Figure]) -> str:
    text = rendered(draw, "svg").decode()
    return text[text.index("<svg") :]


def page(lines: Sequence[Line], plan: SweepPlan, command: str) -> str:
    """Return the HTML page. Rows start with the fastest on the first machine; a click on a heading sorts them."""
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
    """Return the fastest and the fastest lossless line per model and machine, with speedup as (mean, low, high)."""
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
