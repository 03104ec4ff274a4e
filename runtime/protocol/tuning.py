"""Tuning of methods on one folder of models: the methods, the search for each, and the preset file of the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.evaluation.comparison import Variant, open_method
from underpaint.runtime.evaluation.drawing_log import DrawingLog
from underpaint.runtime.evaluation.machine import describe_machine
from underpaint.runtime.evaluation.picture_judge import PictureJudge, judge_of
from underpaint.runtime.methods.method import ModelTables
from underpaint.runtime.methods.preset_file import PresetFile, read_preset_file
from underpaint.runtime.models import OpenModels
from underpaint.runtime.protocol.settings_search import QualityBound, Search, candidates

PRESET: Final = "preset.json"
_SAMPLING: Final = ("guidance", "top_k", "top_p")
"""Sampling parameters that all temperatures of a tuning share."""


def judge_for(bound: QualityBound | None, pipeline: OpenModels, conditions: Sequence[Condition]) -> PictureJudge | None:
    """The judge of pictures, if any; raises ValueError if the bound needs a judge and none can score the conditions."""
    judge = judge_of(pipeline)
    if bound is not None and bound.measure == "judge":
        if judge is None:
            raise ValueError(
                f"--within: {pipeline.folder} holds no judge to measure quality by; pass --measure log-likelihood"
            )
        if not all(condition.attributes for condition in conditions):
            raise ValueError(
                "--within: the judge needs prompts whose attributes it knows, and some of these have none; pass "
                "--measure log-likelihood"
            )
    return judge


@dataclass(slots=True)
class Tuning:
    """Methods to tune on one folder of models.

    Attributes:
        pipeline: The models.
        names: The methods that these models support at the temperatures in `samplings`.
        samplings: Sampling parameters of the target, one per temperature, which alone differs between them.
        conditions: The prompts to tune on.
        bound: The largest quality loss; None tries lossless settings only.
        judge: Scores pictures; None without a judge.
        tables: The models' tables, with pass costs for methods that choose by them.
        most: Largest number of settings tried per method.
        out: Folder for the drawings and the preset file.
        skipped: Methods that the user did not name and the models reject, with the reason.
        counts: Number of conditions to tune on by a time budget, by (method, temperature); a missing key means all. See
            `size`.
    """

    pipeline: OpenModels
    names: tuple[str, ...]
    samplings: Sequence[SamplingParams]
    conditions: Sequence[Condition]
    bound: QualityBound | None
    judge: PictureJudge | None
    tables: ModelTables
    most: int
    out: Path
    skipped: dict[str, str]
    counts: dict[tuple[str, float], int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pipeline: OpenModels,
        names: Sequence[str],
        samplings: Sequence[SamplingParams],
        conditions: Sequence[Condition],
        bound: QualityBound | None,
        judge: PictureJudge | None,
        tables: ModelTables,
        most: int,
        out: Path,
        *,
        named: bool,
    ) -> Tuning:
        """Open every method before the first drawing.

        Args:
            pipeline, samplings, conditions, bound, judge, tables, most, out: See the attributes.
            names: The methods; the models may reject some.
            named: Whether the user named the methods, so that rejecting one is an error.

        Raises:
            ValueError: A named method, or every method, is rejected.
        """
        tuning = cls(pipeline, (), samplings, conditions, bound, judge, tables, most, out, skipped={})
        for name in names:
            why = tuning._refusal(name)
            if why and named:
                raise ValueError(f"method '{name}': {why}")
            if why:
                tuning.skipped[name] = why
            else:
                tuning.names = (*tuning.names, name)
        if not tuning.names:
            raise ValueError(f"none of the methods can be tuned; the first: {next(iter(tuning.skipped.items()))}")
        return tuning

    def _refusal(self, name: str) -> str:
        """The reason why a method cannot be tuned on these models; empty if it can."""
        for sampling in self.samplings:
            try:
                method = open_method(self.pipeline, Variant(name, name), self.conditions[0], sampling, self.tables)
            except ValueError as error:
                return str(error)
            if not method.lossless and self.bound is None:
                return "it is relaxed, so tuning it needs a bound of quality; pass --within"
        return ""

    @property
    def preset_path(self) -> Path:
        """Path of the preset file."""
        return self.out / PRESET

    def folder(self, name: str, temperature: float) -> Path:
        """Folder for the drawings of one search."""
        return self.out / f"{name.replace(':', '_')}-t{temperature:g}"

    def size(self, name: str, temperature: float) -> int:
        """Number of conditions of one search. If it has begun, another time budget does not change it.

        Raises:
            ValueError: The search's record of drawings is damaged.
        """
        if (name, temperature) not in self.counts:
            return len(self.conditions)
        begun = self._settings_of(name, temperature)
        return len(begun["prompts"]) if begun else self.counts[name, temperature]

    def _settings_of(self, name: str, temperature: float) -> Mapping[str, Any]:
        """The settings in the record of a search; empty if it has not begun."""
        models: list[dict[str, Any]] = DrawingLog(self.folder(name, temperature), None).settings.get("models", [])
        return models[0] if models else {}

    def search(self, name: str, sampling: SamplingParams) -> Search:
        """The search over the settings of one method; raises ValueError as `size`."""
        first, lossless = self.conditions[0], self.bound is None
        tried = candidates(name, self.pipeline, sampling, self.tables, first, self.most, lossless=lossless)
        conditions = self.conditions[: self.size(name, sampling.temperature)]
        return Search.of(name, tried, self.pipeline, sampling, conditions, self.judge, self.bound)

    def begin(self, about: Mapping[str, Any], command: str) -> PresetFile:
        """The preset file of an earlier run, or a new one without methods.

        Args:
            about: The prompts, stored in the file.
            command: The tuning command, stored in the file.

        Raises:
            ValueError: The file is damaged, or was made with other models, tuning options or engine, or elsewhere.
        """
        bound = None if self.bound is None else self.bound._asdict()
        sampling = {name: getattr(self.samplings[0], name) for name in _SAMPLING}
        tuning = {"prompts": about, "within": bound, "candidates": self.most, "sampling": sampling}
        path, model = self.preset_path, dict(self.pipeline.fingerprint())
        preset = PresetFile(str(path), command, describe_machine(), model, tuning, {})
        if not path.exists():
            return preset
        before = read_preset_file(path)
        before.check(model, str(self.pipeline.folder))
        differs = [name for name in tuning if before.tuning.get(name) != tuning[name]]
        then, now = _timing_conditions(before), _timing_conditions(preset)
        differs += sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
        if differs:
            raise ValueError(
                f"{path} is of another tuning (it differs in {', '.join(differs)}); repeat that command to go on with "
                "it, or choose another folder: --out"
            )
        for name, method in before.methods.items():
            for one in filter(None, (method.sampled, method.greedy)):
                before.config(name, one.temperature)
        return replace(preset, methods=before.methods)


def _timing_conditions(preset: PresetFile) -> dict[str, Any]:
    """What the speed of settings depends on besides the models' hashes, as JSON: engine, threads, machine and so on."""
    machine = {name: preset.machine.get(name) for name in ("processor", "cores")}
    plain: dict[str, Any] = json.loads(json.dumps({**preset.model, **machine, "sha256": None}))
    return plain
