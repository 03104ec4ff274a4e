"""`underpaint premises`: measure the figures that the papers argue from, on any model."""

from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer

from underpaint.cli.costs import curve_for
from underpaint.cli.errors import bad_input, on_interrupt
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import describe_sampling
from underpaint.cli.options import (
    Backend,
    Guidance,
    Models,
    Resolution,
    Seed,
    Temperature,
    TopK,
    TopP,
    grouped,
    read_sampling,
)
from underpaint.cli.tables import Column, ResultTable, figure, show
from underpaint.cli.terminal import Format, FormatOption, JsonFile, check_json, emit_json, note, progress

if TYPE_CHECKING:
    from underpaint.artifacts.cost_curve import CostCurveFile
    from underpaint.artifacts.knee import Knee
    from underpaint.runtime.models import OpenModels
    from underpaint.sim.premises.figures import Figure, Premises

_NO_FILE = PromptOptions()
_NO_LIVE = LiveOptions()
_MOST_IMAGES: Final = 500
_PASSES: Final = (8, 16)
"""Sizes, in nodes, of the passes in the table."""
_PUBLISHED: Final = {
    "overlap 1": "about 0.04 of drafted tokens accepted (LlamaGen, arXiv 2410.03355)",
}
"""Figures that papers published of LlamaGen, by row."""


@grouped
def premises(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="What to draw, as for `generate`; default: built-in prompts.")
    ] = None,
    prompt_options: PromptOptions = _NO_FILE,
    seeds: Annotated[int, typer.Option(help="Images per prompt, with seeds counted from --seed.", min=1, max=500)] = 1,
    seed: Seed = 0,
    temperature: Temperature = None,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    depths: Annotated[
        int, typer.Option(help="How many tokens past the root to follow the drafter.", min=1, max=64)
    ] = 4,
    nearest: Annotated[int, typer.Option(help="How many of the nearest codes to sum.", min=1, max=100)] = 10,
    costs: Annotated[
        bool, typer.Option("--costs/--no-costs", help="Also measure the time of target passes while decoding.")
    ] = True,
    models: Models = None,
    live: LiveOptions = _NO_LIVE,
    resolution: Resolution = None,
    backend: Backend = "cpu",
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """Measure whether the papers' premises hold: flat distributions, near-duplicate codes, local difficulty.

    Plain autoregression draws the pictures. All figures describe the distributions after guidance, temperature, top-k
    and top-p. The papers' setting is --top-k 0.
    """
    from underpaint.artifacts.results import with_envelope
    from underpaint.runtime.drawing import noise_of
    from underpaint.runtime.engines.context import EngineError
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.sim.premises.figures import PremiseRecorder
    from underpaint.sim.premises.regions import cell_regions

    with bad_input():
        if temperature == 0:
            raise ValueError("--temperature: expected more than 0, because at 0 every distribution has one token")
        check_json(json_file)
        pipeline = live.open_models(models, resolution, None, backend)
        sampling = read_sampling(temperature, guidance, top_k, top_p, pipeline)
        conditions = choose(pipeline, prompts or (), prompt_options).conditions
        images = [(condition, one) for condition in conditions for one in range(seed, seed + seeds)]
        _check_sizes(pipeline, len(images), depths)
        recorder = PremiseRecorder(pipeline.tables.neighbours, depths, nearest)
    curve = None
    with on_interrupt(lambda: "stopped: nothing was written"):
        with bad_input(EngineError), progress("drawing", len(images)) as advance:
            drafter = None if pipeline.loaded_drafter is None else pipeline.drafter(sampling).model
            for done, (condition, number) in enumerate(images, start=1):
                target = pipeline.target(condition, sampling).model
                tokens = recorder.add(target, drafter, noise_of(condition, number))
                if pipeline.decoder is not None:
                    recorder.place(cell_regions(pipeline.picture(tokens), pipeline.grid))
                advance(done)
        figures = recorder.premises()
        if costs:
            curve = curve_for(pipeline, sampling)
    passes, knee = _passes(curve), _knee(curve)
    rows = _rows(figures, passes, knee)
    title = f"{pipeline.fingerprint()['target']}, {pipeline.title()}, {describe_sampling(sampling, figures.vocab_size)}"
    values = {
        "model": dict(pipeline.fingerprint()),
        "settings": {
            **{name: getattr(sampling, name) for name in ("temperature", "guidance", "top_k", "top_p")},
            "prompts": [condition.caption() for condition in conditions],
            "seeds": list(range(seed, seed + seeds)),
            "nearest": nearest,
            "depths": figures.depths,
        },
        "rows": rows,
        "by_cell": {
            "top_probability": figures.top_probability.mean(axis=0).round(6).tolist(),
            "entropy": figures.entropy.mean(axis=0).round(6).tolist(),
        },
        "passes": [{"nodes": size, "times": times} for size, times in passes],
        "knee": None if knee is None else knee._asdict(),
    }
    if not emit_json(json_file, with_envelope("premises", describe_machine(), typed_command(), values)):
        show([ResultTable(f"{title}: {len(images)} images", _COLUMNS, rows)], form)
        for row in rows:
            if row["published"] is not None:
                note(f"Published of {row['figure']}: {row['published']}.", form)
        if knee is not None:
            note(f"Inside decoding cycles on this machine {knee.describe()}.", form)


def _check_sizes(pipeline: "OpenModels", images: int, depths: int) -> None:
    """Raise ValueError, with the largest possible number, for more images or depths than can be recorded."""
    from underpaint.algos.memory import check_memory

    cells, codes = pipeline.grid.cells, pipeline.tables.vocab_size
    if images > _MOST_IMAGES:
        raise ValueError(f"--prompts-count, --seeds: expected at most {_MOST_IMAGES} images, got {images}")
    if depths >= cells:
        raise ValueError(f"--depths: expected at most {cells - 1}, the number of cells after the first, got {depths}")
    check_memory("recording an image", "--depths", depths, 3 * 8 * cells * codes)
    check_memory("the recorded images", "--prompts-count", images, 2 * 4 * cells * codes)


def _passes(curve: "CostCurveFile | None") -> list[tuple[int, float]]:
    """Return (nodes, time in plain passes) of target passes inside decoding cycles, by measured size."""
    if curve is None or curve.in_cycle is None:
        return []
    return [(size, ms / curve.in_cycle.plain.target_ms) for size, ms in curve.in_cycle.target_ms]


def _knee(curve: "CostCurveFile | None") -> "Knee | None":
    """Return the knee of target passes inside decoding cycles, in ms and nodes; None if they were not measured."""
    from underpaint.artifacts.knee import find_knee

    return None if curve is None or curve.in_cycle is None else find_knee(curve.in_cycle.target_ms)


def _rows(figures: "Premises", passes: list[tuple[int, float]], knee: "Knee | None") -> list[dict[str, Any]]:
    from underpaint.sim.premises.figures import Figure, mean_figure
    from underpaint.sim.premises.regions import REGIONS

    rows: list[dict[str, Any]] = []

    def add(key: str, name: str, one: "Figure | None") -> None:
        if one is not None and isfinite(one.value):
            values = {"value": one.value, "low": one.low, "high": one.high, "published": _PUBLISHED.get(key)}
            rows.append({"figure": name, **values})

    add("top", "likeliest token, mean probability", figures.mean_top())
    add("perplexity", "perplexity", figures.perplexity())
    add("entropy", "entropy, nats", mean_figure(figures.entropy))
    for name in REGIONS:
        where = f"{name} cells ({figures.region_share(name):.0%})"
        add("region", f"likeliest token in {where}", figures.region_top(name))
        add("region entropy", f"entropy in {where}, nats", figures.region_entropy(name))
    add("factor", "likeliest token, surest region over least sure", figures.region_factor())
    add("near", f"mass of the {figures.nearest} nearest codes", mean_figure(figures.near_mass))
    add("control", f"mass of {figures.nearest} random codes as frequent", mean_figure(figures.control_mass))
    add("ratio", "nearest codes over random ones", figures.near_ratio())
    for depth in range(figures.depths):
        past = f"{depth + 1} past the root"
        add(f"overlap {depth + 1}", f"overlap of drafter and target, {past}", figures.acceptance_at(depth))
        add("agreement", f"same likeliest token, {past}", figures.agreement_at(depth))
        add("draft top", f"drafter's likeliest token, {past}", figures.draft_top_at(depth))
        add("draft entropy", f"drafter's entropy, {past}, nats", figures.draft_entropy_at(depth))
    add("left", "overlap, correlation with the left cell's", figures.locality("left"))
    add("above", "overlap, correlation with the upper cell's", figures.locality("above"))
    add("elsewhere", "the same with another image's cell", figures.locality("elsewhere"))
    for size in _PASSES:
        if passes and passes[0][0] <= size <= passes[-1][0]:
            times = float(np.interp(size, [one for one, _ in passes], [one for _, one in passes]))
            add(f"pass {size}", f"a target pass over {size} nodes in a cycle, plain passes", Figure(times, None, None))
    if knee is not None and knee.nodes is not None:
        add("knee", "knee of those passes, nodes", Figure(knee.nodes, None, None))
    return rows


_COLUMNS: Final = (
    Column("figure"),
    figure("value", "value", ".3f"),
    figure("low", "95 % from", ".3f"),
    figure("high", "to", ".3f"),
)
