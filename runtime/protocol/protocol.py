"""Protocol 1: every method with two presets at two temperatures, on frozen prompts, in paired rounds.

A round draws one prompt with every method, at both temperatures, and with plain autoregression before every
`PLAIN_EVERY` of them. A disturbance of the machine therefore affects all methods, and every ratio compares drawings
made a few minutes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.cost_curve import CostCurveFile
from underpaint.artifacts.results import merged, with_envelope
from underpaint.runtime.conditions import Condition
from underpaint.runtime.evaluation.comparison import BASELINE, ComparisonPlan, Variant, open_method
from underpaint.runtime.evaluation.drawer import OpenedDrawer
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog, DrawnJob
from underpaint.runtime.evaluation.machine import describe_machine
from underpaint.runtime.evaluation.picture_judge import PictureJudge, judged_fingerprint
from underpaint.runtime.evaluation.plan import ModelPlan, RunPlan
from underpaint.runtime.evaluation.report import drawn_rows, model_values
from underpaint.runtime.methods.method import DecodingMethod, ModelTables
from underpaint.runtime.methods.preset_file import PresetFile
from underpaint.runtime.methods.registry import PAPER, TUNED
from underpaint.runtime.models import OpenModels
from underpaint.runtime.protocol.budget import LEAST, limited, most_within

VERSION: Final = 1
TEMPERATURES: Final = (1.0, 0.0)
TUNE_SKIP: Final = 0
"""Index of the first prompt used for tuning."""
REPORT_SKIP: Final = 1000
"""Index of the first reported prompt: no settings of the shipped models were ever tuned on it or on later ones."""
PLAIN_EVERY: Final = 16
"""Number of drawings between two of plain autoregression, whose mean time all speedups of a round share: with one a
round, the plain step of a record of 51 rounds was 6 % slower at one temperature than at the other."""
WITHIN: Final = 0.05
"""Largest quality loss of tuned settings against plain autoregression, in nats."""


class Sizes(NamedTuple):
    """Number of prompts for tuning, for reporting the tuned settings, and for reporting the papers' settings."""

    tune: int = 100
    tuned: int = 200
    paper: int = 50

    def scaled(self, scale: float) -> Sizes:
        """The sizes times `scale`, with at least `LEAST` prompts to tune on and 2 to report."""
        tune, tuned, paper = (round(scale * count) for count in self)
        return Sizes(max(LEAST, tune), max(2, tuned), max(2, paper))


class Entry(NamedTuple):
    """A method with one preset, drawn under its own label."""

    label: str
    name: str
    preset: str


@dataclass(frozen=True, slots=True)
class Protocol:
    """The drawings of a protocol.

    Attributes:
        run: The models at each of `TEMPERATURES`, with every method at both presets.
        entries: The methods and their labels.
        counts: Number of prompts to draw, from the first on, by (temperature index, label).
        left_out: Methods that these models reject, with the reason.
    """

    run: RunPlan
    entries: tuple[Entry, ...]
    counts: Mapping[tuple[int, str], int]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pipeline: OpenModels,
        names: Sequence[str],
        samplings: Sequence[SamplingParams],
        tables: ModelTables,
        conditions: Sequence[Condition],
        judge: PictureJudge | None,
        preset: str | PresetFile,
        sizes: Sizes,
        prompts_file: Mapping[str, Any],
    ) -> Protocol:
        """Build the protocol for opened models, without the methods and presets that they reject.

        Args:
            pipeline: The models.
            names: The methods.
            samplings: Sampling parameters of the target at each of `TEMPERATURES`.
            tables: The models' tables, with pass costs for methods that choose by them.
            conditions: The prompts to report.
            judge: Scores pictures; None without a judge.
            preset: The preset of the entries labelled as tuned.
            sizes: Number of prompts to draw.
            prompts_file: See `PromptFile.to_dict`; empty without a file.
        """
        plans, entries, counts, left_out = [], dict[str, Entry](), dict[tuple[int, str], int](), dict[str, str]()
        for place, params in enumerate(samplings):
            heat, methods = params.temperature, list[DecodingMethod]()
            for name in (BASELINE, *(name for name in names if name != BASELINE)):
                configs = list[dict[str, Any]]()
                for kind, chosen in ((TUNED, preset), (PAPER, PAPER)):
                    label = name if kind == TUNED else f"{name} ({PAPER})"
                    try:
                        method = open_method(pipeline, Variant(label, name), conditions[0], params, tables, chosen)
                    except ValueError as error:
                        left_out[f"{label} at temperature {heat:g}"] = str(error)
                        continue
                    if method.config.to_dict() in configs:
                        continue
                    configs.append(method.config.to_dict())
                    methods.append(method)
                    entries[label] = Entry(label, name, kind)
                    counts[place, label] = min(sizes.tuned if kind == TUNED else sizes.paper, len(conditions))
            plan = ComparisonPlan(tuple(methods), tuple(conditions), (0,), params, preset)
            fingerprint = judged_fingerprint(pipeline, judge)
            plans.append(ModelPlan(pipeline, plan, judge, fingerprint, prompts_file=prompts_file))
        # Opening methods opens models, so the fingerprint covers all of them only now.
        whole = judged_fingerprint(pipeline, judge)
        return cls(
            RunPlan(tuple(replace(one, fingerprint=whole) for one in plans)), tuple(entries.values()), counts, left_out
        )

    def jobs(self, rounds: int | None = None) -> list[DrawingKey]:
        """The drawings of the first `rounds` rounds (default: all), in order; each method in turn comes first after
        plain autoregression.
        """
        most = max(self.counts.values())
        return [key for turn in range(most if rounds is None else min(rounds, most)) for key in self._round(turn)]

    def _round(self, turn: int) -> Iterator[DrawingKey]:
        for place, model in enumerate(self.run.models):
            caption = model.comparison.conditions[turn].caption()
            labels = [one.name for one in model.comparison.methods if one.name != BASELINE]
            names = [label for label in labels if turn < self.counts[place, label]]
            first = turn % len(names) if names else 0
            for number, name in enumerate(names[first:] + names[:first]):
                repeat, between = divmod(number, PLAIN_EVERY)
                if not between:
                    yield DrawingKey(BASELINE, caption, 0, place, repeat)
                yield DrawingKey(name, caption, 0, place)

    def drawer(self) -> Callable[[DrawingKey], DrawnJob]:
        """A function that draws a job with the models opened here."""
        drawers = [OpenedDrawer(model.pipeline, model.comparison) for model in self.run.models]
        return lambda job: replace(drawers[job.model](job), model=job.model, repeat=job.repeat)

    def seconds(self, log: DrawingLog) -> dict[tuple[int, str], float]:
        """Seconds of a drawing by (temperature index, label), once the first round is drawn."""
        first = [key for key in self.jobs(1) if not key.repeat]
        return {(key.model, key.method): log.drawing(key).seconds for key in first if key in log}

    def fitted(self, seconds: Mapping[tuple[int, str], float], budget: float) -> Protocol:
        """Limit the prompts of every method so that drawing takes about `budget` seconds.

        Plain autoregression is drawn on every prompt that any other method is drawn on.
        """
        return self.limited(most_within(self.counts, budget, lambda most: self.limited(most).total_seconds(seconds)))

    def limited(self, most: int) -> Protocol:
        """The same protocol with at most `most` prompts per method."""
        return replace(self, counts=limited(self.counts, most))

    def total_seconds(self, seconds: Mapping[tuple[int, str], float]) -> float:
        """Estimated seconds of all drawings, including one uncounted drawing per method."""
        return sum(seconds[key] for key in self.counts) + sum(seconds[job.model, job.method] for job in self.jobs())

    def record(
        self,
        log: DrawingLog,
        command: str,
        curve: CostCurveFile | None,
        about: Mapping[str, Any],
        report: Callable[[int, int], None] | None = None,
    ) -> dict[str, Any]:
        """The results so far, one run per temperature, in the form of `artifacts/results_schema.json`.

        Args:
            log: The drawings; some may be missing.
            command: The command that made them.
            curve: The machine's cost curve; None if the models have no drafter.
            about: Further entries for the record's "protocol".
            report: Callback: number of methods reported so far, and in total.

        Raises:
            ValueError: Nothing is drawn yet.
        """
        machine, runs = describe_machine(), []
        entries = {one.label: one for one in self.entries}
        done = sum(key in log for key in self.jobs())
        for place, model in enumerate(self.run.models):
            if not any(job.model == place for job in log):
                continue
            before, size = place * len(entries), len(self.run.models) * len(entries)

            def tell(done: int, most: int, before: int = before, size: int = size) -> None:
                if report is not None:
                    report(before + done, size)

            rows, _, _ = drawn_rows(self.run, place, log, likelihood=model.judge is None, compared=False, report=tell)
            values = model_values(model, rows)
            for row in values["rows"]:
                entry = entries[row["method"]]
                row |= {"variant_of": entry.name, "preset": entry.preset}
                row["planned"] = self.counts[place, entry.label]
            values["cost_curve"] = None if curve is None else curve.to_record()
            values["protocol"] = {
                "version": VERSION,
                "drawn": done,
                "planned": len(self.jobs()),
                "left_out": dict(self.left_out),
                **about,
            }
            heat = model.comparison.sampling.temperature
            runs.append((f"temperature {heat:g}", with_envelope("compare", machine, command, values)))
        if not runs:
            raise ValueError(f"{log.folder} holds no drawings of the protocol yet; leave --no-draw out")
        return merged(runs)
