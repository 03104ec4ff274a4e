"""Recording of replays: on synthetic models, and the bias that is measured on the way."""

import dataclasses
import json

import numpy as np
import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.drawing import noise_of
from underpaint.runtime.evaluation.comparison import ComparisonPlan, choose_prompts
from underpaint.runtime.evaluation.drawer import run
from underpaint.runtime.evaluation.plan import RunPlan
from underpaint.runtime.evaluation.replay import Replay, ReplayLog, TreeEvent, record, record_replays
from underpaint.runtime.evaluation.report import make_report
from underpaint.runtime.evaluation.token_bias import draw_watched
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.methods.trees.method import TreeMethod

PIPELINE = SyntheticPipeline()


def planned(names, temperature=1.0):
    built = tuple(build_method(name, resolve(name, temperature), PIPELINE.tables) for name in names)
    comparison = ComparisonPlan(built, choose_prompts(2), (3, 4), SamplingParams(temperature=temperature))
    return RunPlan.of(PIPELINE, comparison, PIPELINE.judge)


def own(plan):
    return plan.models[0].comparison


def drawn(plan, folder):
    log = plan.open_log(folder)
    run(plan, log, lambda state: None)
    return log


def ignore(done, size):
    del done, size


def test_what_is_recorded_is_what_was_drawn(tmp_path):
    plan = planned(["ar", "eagle1", "adt+lantern"])
    log = drawn(plan, tmp_path)
    replays = ReplayLog(tmp_path, plan.to_dict())
    record_replays(plan, log, replays, 1, ignore)
    stored_replays = replays.replays()
    assert [one.method for one in stored_replays] == ["ar", "eagle1", "adt+lantern"]
    assert {one.seed for one in stored_replays} == {3}
    for one in stored_replays:
        drawing = log.drawing(one.key)
        assert one.tokens == drawing.tokens
        assert all(isinstance(event, TreeEvent) for event in one.events)
        assert tuple(len(event.path) for event in one.events[1:]) == drawing.accepted
        tokens = [(*(event.tokens[node] for node in event.path), event.extra) for event in one.events]
        assert tuple(token for part in tokens for token in part) == drawing.tokens
    assert ReplayLog(tmp_path, plan.to_dict()).replays() == stored_replays
    assert ReplayLog(tmp_path, None).replays() == stored_replays


def test_a_stop_keeps_what_is_recorded_and_another_run_replaces_it(tmp_path):
    plan = planned(["ar", "eagle2"])
    log, replays = drawn(plan, tmp_path), ReplayLog(tmp_path, plan.to_dict())

    def stop(done, size):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_replays(plan, log, replays, 2, stop)
    replays.path.write_bytes(replays.path.read_bytes() + b'{"method": "ea')  # what a killed process may leave
    again = ReplayLog(tmp_path, plan.to_dict())
    assert len(again.replays()) == 2
    record_replays(plan, log, again, 2, ignore)
    assert len(ReplayLog(tmp_path, plan.to_dict()).replays()) == 4
    other = ReplayLog(tmp_path, {"seeds": [9]})
    assert other.replays() == ()
    assert other.finished  # it lacks nothing of what was recorded for it
    other.add(again.replays()[0].key, again.replays()[0])
    assert len(replays.path.read_text().splitlines()) == 2


def test_another_picture_is_told(tmp_path):
    plan = planned(["ar", "eagle2"])
    log = drawn(plan, tmp_path)
    key = next(iter(log)).drawing
    tokens = list(key.tokens)
    tokens[5] = (tokens[5] + 1) % 40
    replays = ReplayLog(tmp_path, plan.to_dict())
    with pytest.raises(RuntimeError, match="another picture"):
        record(
            PIPELINE,
            own(plan).methods[0],
            own(plan),
            Replay("ar", key.prompt, 3, "tree", (), ()).key,
            tuple(tokens),
        )
    assert replays.replays() == ()


@pytest.mark.parametrize("name", ["eagle2", "speculative", "eagle1", "block"])
def test_a_lossless_rule_has_no_bias_when_it_is_watched(name, tmp_path):
    plan = planned(["ar", name])
    log = drawn(plan, tmp_path)
    method = own(plan).methods[1]
    assert isinstance(method, TreeMethod)
    key = Replay(name, own(plan).conditions[0].caption(), 3, "tree", (), ()).key
    watched = record(PIPELINE, dataclasses.replace(method, lossless=False), own(plan), key, log.drawing(key).tokens)
    assert watched.token_bias == pytest.approx(0.0, abs=1e-9)
    assert record(PIPELINE, method, own(plan), key, log.drawing(key).tokens).token_bias is None


def test_the_report_tells_the_bias(tmp_path):
    plan = planned(["ar", "eagle2", "lantern", "zipar"])
    log, replays = drawn(plan, tmp_path), ReplayLog(tmp_path, plan.to_dict())
    assert [row.token_bias for row in make_report(plan, log).rows] == [0.0, 0.0, None, None]
    record_replays(plan, log, replays, 2, ignore)
    biases = [one.token_bias for one in replays.replays() if one.method == "lantern"]
    assert len(biases) == 2
    rows = make_report(plan, log, replays.replays()).rows
    assert rows[2].token_bias == pytest.approx(np.mean(biases))
    assert 0.0 < min(biases) <= rows[2].token_bias_low <= rows[2].token_bias <= rows[2].token_bias_high <= max(biases)
    assert rows[2].token_bias_low < rows[2].token_bias_high
    assert (rows[1].token_bias_low, rows[1].token_bias_high) == (0.0, 0.0)
    (one,) = [row for row in make_report(plan, log, replays.replays()[:4]).rows if row.method == "lantern"]
    assert (one.token_bias, one.token_bias_low) == (biases[0], None)
    assert rows[3].token_bias == pytest.approx(np.mean([one.token_bias for one in replays.replays()][3::4]))
    assert rows[3].token_bias > 0.0


@pytest.mark.parametrize("name", ["gsd", "zipar", "zipar-adaptive", "pjd", "vvs"])
def test_a_relaxed_method_s_bias_is_measured_while_the_same_picture_is_drawn(name, tmp_path):
    plan = planned(["ar", name])
    log = drawn(plan, tmp_path)
    key = Replay(name, own(plan).conditions[0].caption(), 3, "tree", (), ()).key
    replay = record(PIPELINE, own(plan).methods[1], own(plan), key, log.drawing(key).tokens)
    assert replay.tokens == log.drawing(key).tokens
    assert replay.token_bias is not None
    assert 0.0 < replay.token_bias < 1.0


@pytest.mark.parametrize("name", ["fly", "hsd", "sjd-sv", "sjd++"])
def test_a_bias_that_the_next_token_does_not_show_is_not_measured(name, tmp_path):
    plan = planned(["ar", name])
    log = drawn(plan, tmp_path)
    key = Replay(name, own(plan).conditions[0].caption(), 3, "tree", (), ()).key
    assert not own(plan).methods[1].lossless
    assert record(PIPELINE, own(plan).methods[1], own(plan), key, log.drawing(key).tokens).token_bias is None


def test_cells_that_a_low_resolution_drafted_have_no_bias_to_measure(tmp_path):
    plan = planned(["ar", "mulo"])
    log = drawn(plan, tmp_path)
    key = Replay("mulo", own(plan).conditions[0].caption(), 3, "tree", (), ()).key
    assert record(PIPELINE, own(plan).methods[1], own(plan), key, log.drawing(key).tokens).token_bias is None


@pytest.mark.parametrize(("name", "settings"), [("zipar", ["window=none"]), ("gsd", ["rule=chain"])])
def test_what_is_lossless_in_truth_has_no_bias_when_it_is_watched(name, settings, tmp_path):
    """Raster order by row fronts, and a window by the exact rule, told that they are relaxed."""
    method = build_method(name, resolve(name, 1.0, settings=settings), PIPELINE.tables)
    plain = own(planned(["ar"]))
    plan = RunPlan.of(PIPELINE, dataclasses.replace(plain, methods=(*plain.methods, method)))
    assert method.lossless
    relaxed = dataclasses.replace(method, lossless=False)
    condition = own(plan).conditions[0]
    watched_drawing = draw_watched(PIPELINE, relaxed, condition, own(plan).sampling, noise_of(condition, 3))
    assert watched_drawing.token_bias == pytest.approx(0.0, abs=1e-9)


def test_greedy_rules_have_no_bias_to_measure(tmp_path):
    plan = planned(["ar", "lantern"], temperature=0.0)
    log, replays = drawn(plan, tmp_path), ReplayLog(tmp_path, plan.to_dict())
    record_replays(plan, log, replays, 1, ignore)
    assert [one.token_bias for one in replays.replays()] == [None, None]


def test_a_file_that_holds_no_replays_is_refused(tmp_path):
    path = tmp_path / "replays.jsonl"
    path.write_text(json.dumps({"format": 1, "hash": ""}) + "\n" + json.dumps({"kind": "other"}) + "\n")
    with pytest.raises(ValueError, match="is no record of a recording of replays"):
        ReplayLog(tmp_path, None)
