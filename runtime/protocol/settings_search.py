"""Search for a method's fastest settings on one machine and folder of models, by successive halving.

Every round draws each prompt with plain autoregression, the current settings and the remaining candidates, so all
ratios compare paired drawings. Each round keeps the best quarter and draws four times as many prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.evaluation.comparison import (
    BASELINE,
    ComparisonPlan,
    Variant,
    build_methods,
    named_variants,
    open_method,
)
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog
from underpaint.runtime.evaluation.paired import FigureInterval, speedup
from underpaint.runtime.evaluation.picture_judge import PictureJudge
from underpaint.runtime.evaluation.plan import RunPlan
from underpaint.runtime.evaluation.report import drawn_rows
from underpaint.runtime.evaluation.report_row import ReportRow
from underpaint.runtime.methods.method import DecodingMethod, ModelTables
from underpaint.runtime.methods.preset_file import ChosenSettings
from underpaint.runtime.methods.registry import PAPER, TUNED, resolve
from underpaint.runtime.models import OpenModels

Measure: TypeAlias = Literal["judge", "log-likelihood"]
MEASURES: Final = get_args(Measure)
LEAST_PROMPTS: Final = 4
REDUCTION: Final = 4
"""A round keeps one in this many candidates, but at least `FINALISTS`."""
FINALISTS: Final = 2
_SEED: Final = 20261


class QualityBound(NamedTuple):
    """The largest quality loss against plain autoregression.

    Attributes:
        measure: "judge" (the judge's mean log-probability of a prompt's attributes) or "log-likelihood" (the target's
            mean log-probability of a token).
        drop: Largest mean drop below plain autoregression on the same prompts, in nats, >= 0.
    """

    measure: Measure
    drop: float

    def difference(self, row: ReportRow) -> tuple[float | None, float | None, float | None]:
        """Mean difference of a row's quality to plain autoregression, with the ends of its 95 % interval."""
        name = "attribute_log_probability_over_ar" if self.measure == "judge" else "log_likelihood_over_ar"
        return getattr(row, name), getattr(row, f"{name}_low"), getattr(row, f"{name}_high")

    def is_met(self, row: ReportRow) -> bool:
        """Whether a row's mean difference is within the bound; always true for a lossless method."""
        mean = self.difference(row)[0]
        return row.lossless or (mean is not None and mean >= -self.drop)


class Candidate(NamedTuple):
    """Settings to try, with the method ready to draw under a name that lists them."""

    preset: str
    settings: tuple[str, ...]
    method: DecodingMethod


def candidates(
    name: str,
    models: OpenModels,
    sampling: SamplingParams,
    tables: ModelTables,
    condition: Condition,
    count: int,
    *,
    lossless: bool,
) -> list[Candidate]:
    """List settings of a method to try, the current ones first.

    The order is: the presets "tuned" and "paper", changes of a single setting, and random combinations of the settings'
    declared values (see `algos.registry.Tune`). The random choice is the same every time. Settings that the models
    reject are left out.

    Args:
        name: The method.
        models: The models that draw.
        sampling: Sampling parameters of the target.
        tables: The models' tables, with pass costs if the method chooses by them.
        condition: A condition that the models accept.
        count: Largest number of candidates, >= 1.
        lossless: Whether to leave out relaxed settings.

    Returns:
        The candidates; empty if the models reject all of them, or if all are relaxed and `lossless` is set.
    """
    grid = resolve(name, sampling.temperature).to_tune()
    rng = np.random.default_rng(_SEED)
    single = [(f"{setting}={value}",) for setting, values in grid.items() for value in values]
    if len(single) > (half := max(1, (count - 2) // 2)):
        single = [single[place] for place in rng.permutation(len(single))[:half]]
    combined = []
    for _ in range(10 * count if prod(len(values) + 1 for values in grid.values()) > len(single) + 1 else 0):
        values = {setting: [None, *values] for setting, values in grid.items()}
        chosen = {setting: one[int(rng.integers(len(one)))] for setting, one in values.items()}
        combined.append(tuple(f"{setting}={value}" for setting, value in chosen.items() if value is not None))
    tried: list[Candidate] = []
    for preset, settings in [(TUNED, ()), (PAPER, ()), *((TUNED, one) for one in (*single, *combined))]:
        if len(tried) == count:
            break
        label = " ".join((name, *([preset] if preset == PAPER else []), *settings))
        try:
            method = open_method(models, Variant(label, name, settings), condition, sampling, tables, preset)
        except ValueError:
            continue
        new = all(one.method.config.to_dict() != method.config.to_dict() for one in tried)
        if new and (method.lossless or not lossless):
            tried.append(Candidate(preset, settings, method))
    return tried


class Round(NamedTuple):
    """One round of the search: the number of candidates, and the number of prompts counted from the first."""

    candidates: int
    prompts: int


def rounds(count: int, prompts: int) -> list[Round]:
    """The rounds of a search; each keeps a quarter of the candidates and uses four times as many prompts.

    Args:
        count: Number of candidates, >= 1.
        prompts: Number of prompts in the last round, >= 2.
    """
    counts = [count]
    while counts[-1] > FINALISTS:
        counts.append(max(FINALISTS, ceil(counts[-1] / REDUCTION)))
    last = len(counts) - 1
    return [Round(one, max(2, ceil(prompts / REDUCTION ** (last - turn)))) for turn, one in enumerate(counts)]


def drawings_of(count: int, prompts: int) -> int:
    """Largest number of drawings in a search, of candidates and current settings, without plain autoregression."""
    total, before = 0, 0
    for turn, one in enumerate(rounds(count, prompts)):
        total += (one.candidates + (turn > 0)) * (one.prompts - before)
        before = one.prompts
    return total


@dataclass(frozen=True, slots=True)
class Search:
    """The search over the candidates of one method at one temperature.

    Attributes:
        name: The method.
        tried: Its candidates, the current settings first.
        run: Plain autoregression and every candidate, on every prompt.
        bound: The quality bound; None if all candidates are lossless.
    """

    name: str
    tried: tuple[Candidate, ...]
    run: RunPlan
    bound: QualityBound | None

    @classmethod
    def of(
        cls,
        name: str,
        tried: Sequence[Candidate],
        models: OpenModels,
        sampling: SamplingParams,
        conditions: Sequence[Condition],
        judge: PictureJudge | None,
        bound: QualityBound | None,
    ) -> Search:
        """Build the search over candidates from `candidates`; the judge is used only if the bound measures by it."""
        plain = build_methods(models, named_variants([BASELINE]), sampling.temperature)
        methods = (*plain, *(one.method for one in tried))
        plan = ComparisonPlan(methods, tuple(conditions), (0,), sampling)
        relaxed = bound if any(not one.method.lossless for one in tried) else None
        judges = judge if relaxed is not None and relaxed.measure == "judge" else None
        return cls(name, tuple(tried), RunPlan.of(models, plan, judges), relaxed)

    @property
    def plan(self) -> ComparisonPlan:
        """The plan of all drawings that the search may need."""
        return self.run.models[0].comparison

    def select(self, log: DrawingLog, draw: Callable[[Sequence[DrawingKey], str], None]) -> ChosenSettings | None:
        """Search, and return the best settings.

        The result is the current settings, unless others are faster on the same prompts with a 95 % interval entirely
        above 1, or the current settings miss the bound.

        Args:
            log: The drawings so far; the search resumes from them.
            draw: Callback that draws the given drawings that the log lacks; its second argument names the round.

        Returns:
            The best settings; None if no candidate is within the bound.
        """
        prompts = [condition.caption() for condition in self.plan.conditions]
        current, alive = self.tried[0].method.name, [one.method.name for one in self.tried]
        steps = rounds(len(alive), len(prompts))
        rows: dict[str, ReportRow] = {}
        for turn, step in enumerate(steps):
            names, round_prompts = {BASELINE, current, *alive}, set(prompts[: step.prompts])
            keys = [key for key in self.plan.jobs() if key.method in names and key.prompt in round_prompts]
            draw(keys, f"{self.name}, round {turn + 1} of {len(steps)}")
            rows = self._rows(log, names, step.prompts)
            if turn + 1 < len(steps):
                alive = sorted(alive, key=lambda one: self._rank(rows[one]))[: steps[turn + 1].candidates]
        met = [one for one in {current: None, **dict.fromkeys(alive)} if self._is_met(rows[one])]
        if not met:
            return None
        by_name = {name: [log.drawing(DrawingKey(name, one, 0)) for one in prompts] for name in (current, *alive)}
        seconds = {name: [one.seconds for one in drawings] for name, drawings in by_name.items()}
        gains = {name: speedup(seconds[current], seconds[name]) for name in met}
        best = max(met, key=lambda one: gains[one].value)
        if current in met and not (gains[best].low or 0.0) > 1.0:
            best = current
        return self._chosen(best, rows[best], gains[best])

    def _rows(self, log: DrawingLog, names: set[str], prompts: int) -> dict[str, ReportRow]:
        model = self.run.models[0]
        methods = tuple(one for one in self.plan.methods if one.name in names)
        part = replace(self.plan, methods=methods, conditions=self.plan.conditions[:prompts])
        likelihood = self.bound is not None and self.bound.measure == "log-likelihood"
        run = RunPlan((replace(model, comparison=part),))
        rows, _, _ = drawn_rows(run, 0, log, likelihood=likelihood, compared=False)
        return {row.method: row for row in rows}

    def _is_met(self, row: ReportRow) -> bool:
        return self.bound is None or self.bound.is_met(row)

    def _rank(self, row: ReportRow) -> tuple[bool, bool, float]:
        """Sort key: rows within the bound first, rows whose whole interval misses it last; then faster rows first."""
        high = None if self.bound is None or row.lossless else self.bound.difference(row)[2]
        beyond = self.bound is not None and high is not None and high < -self.bound.drop
        return beyond, not self._is_met(row), -row.speedup

    def _chosen(self, name: str, row: ReportRow, gain: FigureInterval) -> ChosenSettings:
        chosen = next(one for one in self.tried if one.method.name == name)
        quality: dict[str, Any] = {}
        if self.bound is not None:
            mean, low, high = self.bound.difference(row)
            quality = {"quality_over_ar": mean, "quality_over_ar_low": low, "quality_over_ar_high": high}
        measured: Mapping[str, Any] = {
            "tried": len(self.tried),
            "images": row.images,
            "seconds_per_image": row.seconds_per_image,
            "speedup": row.speedup,
            "speedup_low": row.speedup_low,
            "speedup_high": row.speedup_high,
            "over_current": gain.value,
            "over_current_low": gain.low,
            "over_current_high": gain.high,
            **quality,
        }
        temperature = self.plan.sampling.temperature
        config = resolve(self.name, temperature, None, chosen.settings, chosen.preset)
        return ChosenSettings(temperature, chosen.preset, chosen.settings, config.to_dict(), row.lossless, measured)
