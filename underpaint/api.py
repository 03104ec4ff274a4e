"""The public functions of `import underpaint`: open models, draw, compare, register a rule and report on it exactly.

They build on packages that you may also use directly. The exports of `underpaint` itself are few, and they stay
stable.
"""

from __future__ import annotations

import builtins
import io
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.draft import POLICIES, PolicySpec
from underpaint.algos.registry import suggest
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.costs.machine_curve import with_costs
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.drawing import draw as draw_once
from underpaint.runtime.evaluation.comparison import (
    ComparisonPlan,
    build_methods,
    check_opens,
    named_variants,
    read_conditions,
    with_baseline,
)
from underpaint.runtime.evaluation.drawer import run
from underpaint.runtime.evaluation.picture_judge import judge_of
from underpaint.runtime.evaluation.plan import RunPlan
from underpaint.runtime.evaluation.report import ComparisonReport, make_report
from underpaint.runtime.methods import DEFAULT_METHOD
from underpaint.runtime.methods.registry import METHODS, MethodSpec, build_method, resolve, usual_preset
from underpaint.runtime.pipeline import Pipeline
from underpaint.sim.exact.rule_report import ExactReport, exact_report
from underpaint.zoo.load import FOLDER

__all__ = [
    "METHODS",
    "POLICIES",
    "RULES",
    "ComparisonReport",
    "Condition",
    "Drawing",
    "ExactReport",
    "MethodSpec",
    "Pipeline",
    "PolicySpec",
    "RuleSpec",
    "SamplingParams",
    "compare",
    "draw",
    "exact_report",
    "open_pipeline",
    "register_rule",
]


def open_pipeline(
    folder: str | Path | None = None,
    *,
    resolution: int | None = None,
    low: str | Path | None = None,
    backend: str = "cpu",
) -> Pipeline:
    """Open the models of a folder, or those that ship with Underpaint.

    Args:
        folder: A folder with a `model_index.json`; None opens the shipped models.
        resolution: Side of the images in pixels; None takes the largest in the folder.
        low: A second folder, with a smaller target of the same codebook, for methods that draft at a low resolution.
        backend: "cpu", "tensorrt", "tensorrt-rtx" or another backend that `Pipeline.open` takes.

    Raises:
        ValueError: The models cannot be used; the message names the file and what to do.
        OSError: A file cannot be read; the message names it and what to do.
    """
    return Pipeline.open(
        FOLDER if folder is None else Path(folder),
        resolution=resolution,
        low=None if low is None else Path(low),
        backend=backend,
    )


def draw(
    pipeline: Pipeline,
    prompt: str,
    method: str = DEFAULT_METHOD,
    *,
    temperature: float | None = None,
    seed: int = 0,
    settings: Sequence[str] = (),
    preset: str | None = None,
    sampling: SamplingParams | None = None,
) -> Drawing:
    """Draw one image, which a notebook displays; `pipeline.picture(drawing.tokens_array())` returns its pixels.

    Args:
        pipeline: The opened models.
        prompt: A prompt of the kind that the models take: words, a class, ids, or the path of an .npy file of features.
        method: A name that `underpaint methods` lists, or "policy:rule". The default method is lossless.
        temperature: Overrides the temperature of `sampling`; None keeps it.
        seed: Seed of the random numbers.
        settings: Settings of the method, as `name=value` strings.
        preset: "tuned" or "paper"; None takes "tuned" for the shipped family, "paper" for published models.
        sampling: Guidance, temperature, top-k and top-p; None takes the values that the models are meant for.

    Returns:
        The tokens, and the cost of drawing them.

    Raises:
        ValueError: An argument is invalid; the message says what to write instead.
    """
    params = _sampled(sampling or pipeline.sampling, temperature)
    config = resolve(method, params.temperature, None, settings, preset or usual_preset(pipeline))
    condition = pipeline.condition(prompt)
    tables = with_costs(pipeline, pipeline.tables, [config], params)
    drawing = draw_once(pipeline, build_method(method, config, tables), params, condition, seed)
    return drawing if pipeline.decoder is None else _PicturedDrawing.of(drawing, pipeline)


def _sampled(sampling: SamplingParams, temperature: float | None) -> SamplingParams:
    return sampling if temperature is None else replace(sampling, temperature=temperature)


class _PicturedDrawing(Drawing):
    """A drawing that notebooks display as an image."""

    __slots__ = ("_pipeline",)
    _pipeline: Pipeline

    @classmethod
    def of(cls, drawing: Drawing, pipeline: Pipeline) -> Drawing:
        """Return the same drawing, together with the models that decode it."""
        copy = cls(**{field.name: getattr(drawing, field.name) for field in fields(drawing)})
        object.__setattr__(copy, "_pipeline", pipeline)
        return copy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Drawing) and astuple(self) == astuple(other)

    def __hash__(self) -> int:
        return hash(astuple(self))

    def __reduce__(self) -> tuple[type[Drawing], tuple[Any, ...]]:
        return Drawing, astuple(self)  # a copy in another process does not carry the models

    def _repr_png_(self) -> bytes:
        """Return the image as the bytes of a PNG file, for IPython's rich display."""
        from PIL import Image

        encoded = io.BytesIO()
        Image.fromarray(self._pipeline.picture(self.tokens_array())).save(encoded, "PNG")
        return encoded.getvalue()


def compare(
    pipeline: Pipeline,
    methods: Sequence[str],
    prompts: Sequence[str] = (),
    *,
    temperature: float | None = None,
    seeds: int = 1,
    settings: Mapping[str, Sequence[str]] | None = None,
    preset: str | None = None,
    sampling: SamplingParams | None = None,
    folder: str | Path | None = None,
) -> ComparisonReport:
    """Draw the same prompts by several methods and by plain autoregression, and report speed, cost and quality.

    Args:
        pipeline: The opened models. Arguments that are not listed here are those of `draw`.
        methods: The methods to compare.
        prompts: The prompts. If empty, 8 prompts of the grammar, or class 0 for models that do not take the grammar.
        seeds: Number of seeds per prompt, counted from 0.
        settings: For each method, its settings as `name=value` strings.
        folder: Folder for finished drawings, so that a stopped comparison can resume; None saves nothing.

    Raises:
        ValueError: An argument is invalid; the message says what to write instead.
    """
    params, preset = _sampled(sampling or pipeline.sampling, temperature), preset or usual_preset(pipeline)
    names = with_baseline(methods)
    for name in settings or ():
        if name not in names:
            raise ValueError(f"settings: '{name}' is not among the methods; {suggest(name, names)}")
    built = build_methods(pipeline, named_variants(names, settings), params.temperature, preset)
    conditions = read_conditions(pipeline, prompts, None)
    plan = ComparisonPlan(built, conditions, tuple(range(seeds)), params, preset)
    check_opens(pipeline, plan)
    plan = plan.with_tables(with_costs(pipeline, pipeline.tables, [one.config for one in built], params))
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        whole = RunPlan.of(pipeline, plan, judge_of(pipeline))
        log = whole.open_log(Path(place))
        run(whole, log, lambda progress: None)
        return make_report(whole, log)


def register_rule(spec: RuleSpec, *, replace: bool | None = None) -> RuleSpec:
    """Add an acceptance rule, so that every method and `exact_report` can use it by name.

    See docs/how-to/add-a-rule.md.

    Args:
        spec: The rule.
        replace: Whether to replace an earlier rule of the same name. By default, a notebook or an interactive session
            replaces it, because a cell that defines a rule is run many times, and a script refuses. Underpaint's own
            rules are never replaced.

    Returns:
        `spec`.

    Raises:
        ValueError: The name is taken.
    """
    return RULES.register(spec, replace=_is_interactive() if replace is None else replace)


def _is_interactive() -> bool:
    """Whether Python runs interactively: in a notebook, in IPython, or at Python's own prompt."""
    return hasattr(builtins, "__IPYTHON__") or hasattr(sys, "ps1")
