"""The search for settings, and the protocol's budget: what needs no engine."""

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.algos.registry import Bounds, Tune, check_bounds, values_to_tune
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.run_log import OtherRun
from underpaint.runtime.evaluation.comparison import BASELINE, choose_prompts
from underpaint.runtime.evaluation.drawing_log import DrawingLog
from underpaint.runtime.evaluation.plan import RunPlan
from underpaint.runtime.evaluation.report_row import ReportRow
from underpaint.runtime.methods.registry import METHODS, resolve
from underpaint.runtime.methods.settings import settings_to_tune
from underpaint.runtime.protocol.budget import LEAST, fit_protocol, limited, most_within
from underpaint.runtime.protocol.protocol import PLAIN_EVERY, Protocol, Sizes
from underpaint.runtime.protocol.settings_search import QualityBound, drawings_of, rounds
from underpaint.runtime.protocol.tuning import Tuning


@dataclass(frozen=True)
class Part:
    depth: Annotated[Annotated[int, Bounds(1, 9)], Tune((2, 4))] = 4
    word: Annotated[Literal["a", "b"], Tune()] = "a"
    flag: Annotated[bool, Tune()] = False
    window: Annotated[Annotated[int, Bounds(1, 9)] | None, Tune((1, 2))] = None
    widths: Annotated[tuple[int, ...], Tune(((1, 1), (2, 1)))] = (1, 1)
    free: int = 3


def test_what_is_tried_is_what_a_setting_declares() -> None:
    assert values_to_tune(Part)["word"] == ("a", "b")
    assert "free" not in values_to_tune(Part)
    grid = settings_to_tune(Part, {"depth": 3, "word": "a", "flag": False, "window": None, "widths": (1, 1)}, "part")
    assert grid == {"part.depth": ["2", "4"], "part.word": ["b"], "part.flag": ["true"], "part.widths": ["2,1"]}
    assert "word" not in settings_to_tune(Part, {"word": "another"})  # such a word makes the method what it is


def test_bounds_and_choices_hold_where_values_to_tune_are_declared() -> None:
    for wrong in (Part(depth=10), Part(window=10), Part(word="c")):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must be"):
            check_bounds("part", wrong)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_value_to_tune_is_a_setting_of_its_method(temperature: float) -> None:
    tried = 0
    for spec in METHODS:
        config = resolve(spec.name, temperature)
        for setting, values in config.to_tune().items():
            for value in values:
                changed = config.with_settings(spec.name, [f"{setting}={value}"])
                assert changed.to_dict() != config.to_dict(), (spec.name, setting, value)
                tried += 1
    assert tried > 100


def test_a_round_keeps_a_quarter_and_draws_four_times_as_many_prompts() -> None:
    assert rounds(16, 100) == [(16, 7), (4, 25), (2, 100)]
    assert rounds(2, 100) == [(2, 100)]
    assert rounds(16, 4) == [(16, 2), (4, 2), (2, 4)]
    assert drawings_of(16, 100) == 16 * 7 + 5 * 18 + 3 * 75


@given(st.floats(0.0, 1500.0))
def test_every_method_gets_the_most_prompts_that_fit_into_a_budget(budget: float) -> None:
    wanted = {(0, BASELINE): 200, (0, "fast"): 200, (0, "slow"): 200, (1, "paper"): 50, (1, BASELINE): 200}
    seconds = {(0, BASELINE): 0.5, (0, "fast"): 0.1, (0, "slow"): 5.0, (1, "paper"): 1.0, (1, BASELINE): 0.5}

    def at_most(most: int) -> dict[tuple[int, str], int]:
        counts = {key: min(count, most) for key, count in wanted.items()}
        return counts | {(1, BASELINE): counts[1, "paper"]}

    def cost(counts: dict[tuple[int, str], int]) -> float:
        return sum((count + 1) * seconds[key] for key, count in counts.items())

    fits = [at_most(most) for most in range(LEAST, 201) if cost(at_most(most)) <= budget]
    most = most_within(wanted, budget, lambda most: cost(limited(wanted, most)))
    assert limited(wanted, most) == (fits[-1] if fits else at_most(LEAST))


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=4)
    | st.integers(1, 40).map(lambda methods: [(2 + at % 3, 1 + at % 2) for at in range(methods)])
)
def test_every_drawing_of_the_protocol_has_plain_autoregression_on_its_prompt(sizes: list[tuple[int, int]]) -> None:
    method_counts = {(place, f"m{at}"): count for at, counts in enumerate(sizes) for place, count in enumerate(counts)}
    counts = limited({**method_counts, (0, BASELINE): 1, (1, BASELINE): 1}, 12)
    names = [BASELINE, *(f"m{at}" for at in range(len(sizes)))]
    prompts = [SimpleNamespace(caption=lambda turn=turn: f"prompt {turn}") for turn in range(12)]
    plan = SimpleNamespace(conditions=prompts, methods=[SimpleNamespace(name=name) for name in names])
    run = SimpleNamespace(models=[SimpleNamespace(comparison=plan)] * 2)
    whole = Protocol(cast(RunPlan, run), (), counts)
    jobs = whole.jobs()
    assert len(jobs) == len(set(jobs))
    assert Counter((job.model, job.method) for job in jobs if not job.repeat) == counts
    for _, of_a_prompt in groupby(jobs, lambda job: (job.model, job.prompt)):
        round_jobs = list(of_a_prompt)
        plain_at = [at for at, job in enumerate(round_jobs) if job.method == BASELINE]
        assert [round_jobs[at].repeat for at in plain_at] == list(range(len(plain_at)))
        assert plain_at == list(range(0, len(round_jobs), PLAIN_EVERY + 1))
        assert not any(job.repeat for job in round_jobs if job.method != BASELINE)
    plain = {(job.model, job.prompt) for job in jobs if job.method == BASELINE}
    assert {(job.model, job.prompt) for job in jobs} == plain
    assert whole.total_seconds(dict.fromkeys(counts, 1.0)) == len(jobs) + len(counts)
    fewer = whole.limited(3).jobs()
    assert fewer == [job for job in jobs if job.prompt in {f"prompt {turn}" for turn in range(3)}]
    assert jobs[: len(fewer)] == fewer  # more hours add rounds behind those that are drawn


def test_the_protocol_at_a_smaller_scale_keeps_the_least() -> None:
    assert Sizes() == (100, 200, 50)
    assert Sizes().scaled(0.1) == (10, 20, 5)
    assert Sizes().scaled(0.001) == (LEAST, 2, 2)


class AllDrawn:
    """A log with every drawing, each of a second."""

    def __contains__(self, key: object) -> bool:
        return True

    def drawing(self, key: object) -> SimpleNamespace:
        return SimpleNamespace(seconds=1.0)


def test_a_search_that_has_begun_keeps_its_prompts_under_other_hours(tmp_path: Path) -> None:
    models: Any = SyntheticPipeline()
    sampling, name = SamplingParams(), "eagle2"

    def tuning() -> Tuning:
        return Tuning(models, (name,), [sampling], choose_prompts(8), None, None, models.tables, 2, tmp_path, {})

    entries = [SimpleNamespace(name=one) for one in (BASELINE, name)]
    prompts = [SimpleNamespace(caption=lambda: "a fox")] * 8
    run: Any = SimpleNamespace(
        models=[SimpleNamespace(comparison=SimpleNamespace(conditions=prompts, methods=entries, sampling=sampling))]
    )
    first, log = Protocol(run, (), {(0, BASELINE): 8, (0, name): 8}), cast(DrawingLog, AllDrawn())
    for hours, begun in ((0.005, LEAST), (1.0, LEAST), (None, LEAST)):
        tuned = tuning()
        _, record, _ = fit_protocol(first, log, hours, tuned)
        assert record["tuned_on"] == {"eagle2 at temperature 1": begun}
        search = tuned.search(name, sampling)
        assert len(search.plan.conditions) == begun
        search.run.open_log(tuned.folder(name, 1.0)).begin()
    search = tuning().search(name, sampling)  # `tune` has no hours, so other prompts are another search
    with pytest.raises(OtherRun, match="it differs in prompts"):
        search.run.open_log(tuning().folder(name, 1.0))


def test_a_bound_reads_the_measure_that_it_names() -> None:
    names = ("attribute_log_probability_over_ar", "log_likelihood_over_ar")
    figures = {f"{name}{end}": None for name in names for end in ("_low", "_high")}
    row = cast(ReportRow, SimpleNamespace(lossless=False, **{**figures, names[0]: -0.2, names[1]: 0.1}))
    assert not QualityBound("judge", 0.1).is_met(row)
    assert QualityBound("judge", 0.2).is_met(row)
    assert QualityBound("log-likelihood", 0.0).is_met(row)
