"""Advice from a trace: the coarse sweep, its finalists, and a drafter moved by an exact share."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.sim.replay.test_own_logits import model, written  # noqa: F401
from underpaint.algos.accept.lantern import Lantern
from underpaint.algos.rows import SamplingParams
from underpaint.algos.transport import overlap
from underpaint.sim.advise import finalists, screening_plan, simulated, with_drafter, within_limits
from underpaint.sim.batched.decoding import make_rule
from underpaint.sim.latency.run_times import run_times_of
from underpaint.sim.replay.own_logits import trace_of_own
from underpaint.sim.replay.trace import Trace, dense, replay
from underpaint.sim.sweep.plan import Job, check, jobs
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableModel


@pytest.fixture
def trace(model: TableModel, tmp_path: Path) -> Trace:  # noqa: F811
    return trace_of_own([written(model, tmp_path)], SamplingParams(), None, 24)


def drafter_of(trace: Trace) -> np.ndarray:
    return dense(trace.draft_tokens, trace.draft_probs, trace.vocab_size)


def test_a_better_drafter_closes_exactly_the_share(trace: Trace) -> None:
    target = dense(trace.target_tokens, trace.target_probs, trace.vocab_size)[:, None]
    apart = 1.0 - overlap(target, drafter_of(trace))
    better, mean_overlap = with_drafter(trace, 0.2, True)
    assert 1.0 - overlap(target, drafter_of(better)) == pytest.approx(0.8 * apart, abs=1e-6)
    assert mean_overlap == pytest.approx(1.0 - 0.8 * apart[:, 0, 1:].mean(), abs=1e-6)
    worse, less = with_drafter(trace, 0.2, False)
    assert drafter_of(worse) == pytest.approx(0.8 * drafter_of(trace) + 0.2 / 24, abs=1e-6)
    assert less < mean_overlap


def test_intervals_are_over_recorded_images(trace: Trace) -> None:
    replayed, job = replay(trace), Job("t", "{}", "chain", '{"length": 2}', "chain", "{}")
    candidate, prices = simulated(replayed, job, 0.0, 3), run_times_of("a100/llamagen-xl")
    assert candidate.tokens.tolist() == [24 * 32] * 4, "four images, each decoded so often that there are 128"
    speed = candidate.speedup(prices)
    assert speed.low < speed.mean < speed.high
    slower = candidate.speedup(prices, extra_ms=prices.plain_ms)
    assert slower.mean < speed.mean
    ms = candidate.ms(prices)
    assert speed.mean == pytest.approx(candidate.tokens.sum() * prices.plain_ms / ms.sum())


def test_finalists_are_the_fastest_of_each_policy_within_the_bound() -> None:
    def line(policy: str, speed: float, bias: float | None) -> dict[str, object]:
        job = Job("t", "{}", policy, f'{{"s": {speed}}}', "r", "{}")
        return {**job.to_dict(), "speedup": {"m": [speed, speed, speed]}, "token_bias": bias}

    lines = [line("a", 2.0, 0.0), line("a", 3.0, 0.2), line("a", 4.0, None), line("b", 2.5, 0.1), line("c", 1.0, 0.0)]
    assert [(one.policy, one.policy_settings) for one in finalists(lines, "m", 0.1)] == [
        *(("b", '{"s": 2.5}'), ("a", '{"s": 2.0}'), ("c", '{"s": 1.0}'))
    ]
    assert [one.policy for one in finalists(lines, "m", 0.0)] == ["a", "c"]


def test_relaxed_rules_are_tried_only_where_a_bias_is_allowed(trace: Trace) -> None:
    replayed = replay(trace)
    assert "lantern" not in screening_plan("t", replayed, "m", 0.0, 0.1, 0).rules
    plan = screening_plan("t", replayed, "m", 0.1, 0.1, 0)
    assert plan.rules[-1] == "lantern"
    assert plan.vary["rule.delta"] == (0.1, 0.2)
    bare = dataclasses.replace(replayed, codebook=np.empty((replayed.vocab_size, 0)))
    with pytest.raises(ValueError, match="expected a trace with a codebook"):
        screening_plan("t", bare, "m", 0.1, 0.1, 0)


def test_drafts_are_no_deeper_than_the_trace(trace: Trace) -> None:
    plan = screening_plan("t", replay(trace), "m", 0.0, 0.1, 0)
    assert max(plan.vary["policy.length"]) == max(plan.vary["policy.depth"]) == 3
    assert max(map(len, plan.vary["policy.widths"])) == 2
    assert within_limits(1, 24) | {"policy.total_tokens": ()} == {
        "policy.length": (1,),
        "policy.depth": (1,),
        "policy.widths": ((4,),),
        "policy.top_k": (4, 10),
        "policy.total_tokens": (),
    }


@pytest.mark.parametrize("codes", [2, 3, 4, 7, 9, 10])
def test_a_small_vocabulary_is_advised_on_with_settings_that_fit_it(codes: int) -> None:
    settings = {"vocab_size": codes, "clusters": 1, "height": 3, "width": 3, "images": 2}
    small = make_synthetic_model("field", settings)
    plan = screening_plan("field", small, "a100/llamagen-xl", 0.0, 0.1, 0)
    plan = dataclasses.replace(plan, vary={**plan.vary, **{f"model.{name}": (one,) for name, one in settings.items()}})
    check(plan, jobs(plan))


def test_near_codes_are_found_once_for_all_jobs_of_a_trace(trace: Trace) -> None:
    replayed = replay(trace)
    one, other = (make_rule(replayed, "lantern", {"k": k, "delta": 0.1}) for k in (4, 8))
    assert isinstance(one, Lantern)
    assert isinstance(other, Lantern)
    assert one.neighbours is other.neighbours
