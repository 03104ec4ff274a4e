"""The public functions of `import underpaint`: open models, draw, compare, register a rule, know it exactly.

Everything here stands on the parts below it, which may be used directly; what `underpaint` itself exports is small and
stays as it is.
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
    """Open a folder of models; without one, the models that ship.

    resolution: side of the pictures in pixels; None takes the largest that the folder has. low: a second folder, with a
    smaller target of the same codes, for methods that draft with one. backend: "cpu", "tensorrt" or "tensorrt-rtx".
    Raises ValueError or OSError, naming the file and what to do.
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
    """Draw one picture; a notebook shows it, and `pipeline.picture(drawing.tokens_array())` gives its pixels.

    prompt: as the models of the folder take it: words, a class, ids, or the path of an .npy file of features.
    method: see `underpaint methods`, or "policy:rule"; the default is lossless. settings: `name=value` texts. preset:
    "tuned" or "paper"; None takes tuned settings for the shipped family and the papers' for published models.
    sampling: guidance, temperature, top-k and top-p; None takes those that the models are meant for. temperature: in
    place of that one; None leaves it.
    Raises ValueError, saying what to write instead.
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
    """A drawing that notebooks show as its picture."""

    __slots__ = ("_pipeline",)
    _pipeline: Pipeline

    @classmethod
    def of(cls, drawing: Drawing, pipeline: Pipeline) -> Drawing:
        """The same drawing, with the models that decode it."""
        made = cls(**{field.name: getattr(drawing, field.name) for field in fields(drawing)})
        object.__setattr__(made, "_pipeline", pipeline)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Drawing) and astuple(self) == astuple(other)

    def __hash__(self) -> int:
        return hash(astuple(self))

    def __reduce__(self) -> tuple[type[Drawing], tuple[Any, ...]]:
        return Drawing, astuple(self)  # a copy in another process has no models

    def _repr_png_(self) -> bytes:
        """The picture as a PNG file (IPython's rich display)."""
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
    """Draw the same prompts by several methods beside plain autoregression, and report speed, cost and quality.

    prompts: without any, 8 of the prompt grammar are chosen, or class 0 is drawn where models take no such prompts.
    seeds: per prompt, counted from 0. settings: `name=value` texts by method. folder: where finished drawings are kept,
    so that a stopped comparison goes on; None keeps nothing. The other arguments are those of `draw`.
    Raises ValueError, saying what to write instead.
    """
    params, preset = _sampled(sampling or pipeline.sampling, temperature), preset or usual_preset(pipeline)
    built = build_methods(pipeline, named_variants(with_baseline(methods), settings), params.temperature, preset)
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
        replace: Whether to replace a rule that was added under the same name before. By default it is replaced in a
            notebook or an interactive session, where a cell that defines a rule is run many times, and refused in a
            script. A rule of the project is never replaced.

    Returns:
        `spec`.

    Raises:
        ValueError: The name is taken.
    """
    return RULES.register(spec, replace=_is_interactive() if replace is None else replace)


def _is_interactive() -> bool:
    """Whether code is typed in: in a notebook, in IPython, or at Python's own prompt."""
    return hasattr(builtins, "__IPYTHON__") or hasattr(sys, "ps1")
