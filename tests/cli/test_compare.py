import json

import numpy as np
import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.results import schema, validate
from underpaint.runtime.drawing import Drawing, draw
from underpaint.runtime.evaluation.comparison import ComparisonPlan, choose_prompts, with_baseline
from underpaint.runtime.evaluation.drawer import run
from underpaint.runtime.evaluation.drawing_log import DrawingKey
from underpaint.runtime.evaluation.gallery import write_gallery
from underpaint.runtime.evaluation.paired import paired_difference, speedup
from underpaint.runtime.evaluation.plan import RunPlan
from underpaint.runtime.evaluation.report import make_report, to_results
from underpaint.runtime.evaluation.report_row import accepted_cells
from underpaint.runtime.methods.registry import METHODS, build_method, resolve

PIPELINE = SyntheticPipeline()
LOSSLESS = [
    method.name
    for method in METHODS
    if build_method(method.name, method.tuned.sampled, PIPELINE.tables).lossless and method.name != "ar"
]


def planned(names, temperature=1.0, prompts=3, seeds=1):
    built = tuple(build_method(name, resolve(name, temperature), PIPELINE.tables) for name in names)
    sampling = SamplingParams(temperature=temperature)
    return RunPlan.of(
        PIPELINE, ComparisonPlan(built, choose_prompts(prompts), tuple(range(seeds)), sampling), PIPELINE.judge
    )


def ignore(state):
    del state


def finished(tmp_path, plan):
    store = plan.open_log(tmp_path)
    run(plan, store, ignore)
    return store


def test_turns_rotate_and_cover_everything():
    plan = planned(["ar", "eagle2", "adt"], prompts=2, seeds=2)
    turns = plan.jobs()
    assert len(set(turns)) == len(turns) == plan.models[0].comparison.size == 12
    assert [turn.method for turn in turns[:6]] == ["ar", "eagle2", "adt", "eagle2", "adt", "ar"]


def test_a_plan_refuses_repeats_and_nothing():
    with pytest.raises(ValueError, match="method eagle2 is named twice"):
        planned(["eagle2", "eagle2"])
    with pytest.raises(ValueError, match="at least one seed"):
        planned(["ar"], seeds=0)
    assert with_baseline(["adt"]) == ("ar", "adt")
    assert with_baseline(["adt", "ar"]) == ("adt", "ar")


def test_a_stopped_comparison_goes_on_where_it_was(tmp_path):
    plan = planned(["ar", "eagle2"])

    def stop_after_two(state):
        if state.finished == 2:
            raise KeyboardInterrupt

    store = plan.open_log(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(plan, store, stop_after_two)
    content = store.path.read_bytes()
    store.path.write_bytes(content + b'{"method": "eag')  # what a killed process may leave
    resumed = plan.open_log(tmp_path)
    assert len(resumed) == 2
    run(plan, resumed, ignore)
    assert len(resumed) == plan.models[0].comparison.size
    assert resumed.path.read_bytes().startswith(content)
    assert [json.loads(line) for line in resumed.path.read_text().splitlines()]
    assert len(plan.open_log(tmp_path)) == plan.models[0].comparison.size


def test_a_finished_comparison_draws_nothing(tmp_path):
    plan = planned(["ar", "eagle2"])
    store = finished(tmp_path, plan)

    def refuse(state):
        raise AssertionError(state)

    run(plan, plan.open_log(tmp_path), refuse)
    assert store.path.stat().st_size > 0


def test_another_comparison_in_the_folder_is_refused(tmp_path):
    finished(tmp_path, planned(["ar", "eagle2"]))
    other = planned(["ar", "eagle2"], temperature=0.5)
    with pytest.raises(ValueError, match="belongs to another comparison \\(it differs in temperature\\)"):
        other.open_log(tmp_path)
    assert len(other.open_log(tmp_path, fresh=True)) == 0


def test_a_file_that_is_no_record_is_refused(tmp_path):
    (tmp_path / "drawings.jsonl").write_text("something else\n")
    with pytest.raises(ValueError, match="no record of a comparison"):
        planned(["ar"]).open_log(tmp_path)


def test_a_drawing_does_not_depend_on_what_was_drawn_before():
    plan = planned(["adt+lantern"], seeds=2).models[0].comparison
    built, prompt = plan.methods[0], plan.conditions[0]
    first = draw(PIPELINE, built, plan.sampling, prompt, 1)
    draw(PIPELINE, built, plan.sampling, plan.conditions[1], 0)
    assert draw(PIPELINE, built, plan.sampling, prompt, 1).tokens == first.tokens


def test_at_temperature_zero_every_lossless_method_draws_what_ar_draws(tmp_path):
    plan = planned(["ar", *LOSSLESS], temperature=0.0, prompts=4)
    rows = make_report(plan, finished(tmp_path, plan)).rows
    assert [row.identical_to_ar for row in rows] == [True] * len(rows)
    assert all(row.target_nfe < 16 for row in rows if row.drafter_nfe)
    assert all(row.target_nfe <= 16 for row in rows), "windows without a drafter gain next to nothing on random tokens"


def test_rows_add_up_and_hold_the_figures_of_the_issue(tmp_path):
    plan = planned(["ar", "eagle2", "lantern"], prompts=4, seeds=2)
    store = finished(tmp_path, plan)
    report = make_report(plan, store)
    plain = to_results(plan, report, "a test")
    assert validate(plain, schema()) == []
    assert set(plain) >= {"machine", "model", "settings", "rows"}
    expected_fields = {
        *("method", "lossless", "target_nfe", "drafter_nfe", "tokens_per_cycle", "mean_depth", "seconds_per_image"),
        *("speedup", "speedup_low", "speedup_high", "prompt_accuracy", "frechet_distance", "frechet_floor"),
        *("identical_to_ar", "overhead_share"),
    }
    assert all(set(row) >= expected_fields for row in plain["rows"])
    assert json.loads(json.dumps(plain)) == plain
    base, eagle2, lantern = report.rows
    assert (base.speedup, base.target_nfe, base.drafter_nfe, base.tokens_per_cycle) == (1.0, 16.0, 0.0, 1.0)
    assert (base.lossless, eagle2.lossless, lantern.lossless) == (True, True, False)
    for row in report.rows:
        assert row.overhead_share + row.target_share + row.drafter_share == pytest.approx(1.0)
        cycle_ms = row.target_ms_per_cycle + row.drafter_ms_per_cycle + row.host_ms_per_cycle
        assert cycle_ms * row.target_nfe == pytest.approx(1e3 * row.seconds_per_image)
        assert row.drafter_ms_per_cycle / cycle_ms == pytest.approx(row.drafter_share)
        assert row.accuracy_over_ar == pytest.approx(row.prompt_accuracy - base.prompt_accuracy)
        assert row.accuracy_over_ar_low <= row.accuracy_over_ar <= row.accuracy_over_ar_high
        assert row.tokens_per_cycle == pytest.approx(15 / (row.target_nfe - 1), rel=0.2)
        assert row.identical_to_ar is None
        assert row.images == row.frechet_pictures == 8
        accepted = report.acceptance[row.method]
        drawings = [one.drawing for one in store if one.drawing.method == row.method]
        assert accepted.sum() == pytest.approx(np.mean([sum(one.accepted) for one in drawings]))
    assert lantern.tokens_per_cycle > eagle2.tokens_per_cycle


def test_quality_beside_ar_is_paired_and_exact_where_tokens_are_equal(tmp_path):
    plan = planned(["ar", "eagle2", "lantern"], temperature=0.0, prompts=9)
    log = finished(tmp_path, plan)
    progress = []
    report = make_report(plan, log, likelihood=True, report=lambda done, most: progress.append((done, most)))
    base, eagle2, lantern = report.rows
    assert progress == [(1, 3), (2, 3), (3, 3)]
    assert (eagle2.auc, eagle2.auc_low, eagle2.auc_high) == (0.5, 0.5, 0.5)
    assert eagle2.attribute_log_probability == base.attribute_log_probability < 0
    assert eagle2.log_likelihood == base.log_likelihood < 0
    for row in report.rows:
        for name in ("attribute_log_probability", "log_likelihood"):
            apart, low, high = (getattr(row, f"{name}_over_ar{end}") for end in ("", "_low", "_high"))
            assert apart == pytest.approx(getattr(row, name) - getattr(base, name))
            assert low <= apart <= high
    assert 0 <= lantern.auc_low <= lantern.auc <= lantern.auc_high <= 1
    assert lantern.log_likelihood != base.log_likelihood
    assert validate(to_results(plan, report, "a test"), schema()) == []
    assert make_report(plan, log).rows[2].log_likelihood is None


def test_few_prompts_and_readings_without_scores_leave_figures_out(tmp_path, monkeypatch):
    plan = planned(["ar", "lantern"], prompts=4)
    log = finished(tmp_path, plan)
    assert make_report(plan, log).rows[1].auc is None
    read = PIPELINE.judge.read
    monkeypatch.setattr(PIPELINE.judge, "read", lambda picture: read(picture)._replace(scores={}), raising=False)
    row = make_report(plan, log).rows[1]
    assert row.attribute_log_probability is None
    assert row.prompt_accuracy is not None


def test_equal_pictures_of_a_prompt_count_once_in_the_distance(tmp_path):
    plan = planned(["ar", "eagle2"], temperature=0.0, prompts=3, seeds=2)
    rows = make_report(plan, finished(tmp_path, plan)).rows
    assert [(row.images, row.frechet_pictures) for row in rows] == [(6, 3), (6, 3)]


def test_speedup_is_a_ratio_of_sums_with_an_interval_around_it():
    rng = np.random.default_rng(5)
    base = 2.0 + 0.1 * rng.random(40)
    method = 1.0 + 0.1 * rng.random(40)
    gain = speedup(base, method)
    assert gain.value == pytest.approx(base.sum() / method.sum())
    assert gain.low < gain.value < gain.high
    assert gain.high - gain.low < 0.1
    assert speedup(base, method) == gain
    assert speedup([2.0], [1.0]) == (2.0, None, None)
    paired = np.linspace(1.0, 9.0, 30)
    assert speedup(paired * 2, paired).low == pytest.approx(2.0)


def test_a_difference_of_accuracies_is_paired_and_resamples_prompts():
    rng = np.random.default_rng(6)
    base = rng.random((1, 400)) < 0.8
    assert paired_difference(base, base) == (0.0, 0.0, 0.0)
    method = base.copy()
    method[0, :40] = ~method[0, :40]
    difference = paired_difference(base, method)
    apart = method.astype(float) - base
    assert difference.value == pytest.approx(apart.mean())
    half = 1.96 * apart.std() / 20  # far below the 0.055 of two independent samples
    assert (difference.low, difference.high) == pytest.approx(
        (difference.value - half, difference.value + half), abs=0.004
    )
    # The same pictures under another seed are no news.
    again = paired_difference(np.repeat(base, 3, axis=0), np.repeat(method, 3, axis=0))
    assert again == pytest.approx(difference)
    assert paired_difference(base[:, :1], method[:, :1])[1:] == (None, None)


def test_a_method_without_cycles_has_no_split_of_them(tmp_path):
    plan = planned(["ar", "zipar"])
    rows = make_report(plan, finished(tmp_path, plan)).rows
    assert rows[1].target_ms_per_cycle is rows[1].drafter_ms_per_cycle is rows[1].host_ms_per_cycle is None


def test_accepted_cells_follow_the_cycles():
    drawing = Drawing("eagle2", "a fox", 0, (), (2, 0, 1), (3, 3, 1), 4, 6, 1.0, 0.5, 0.2)
    cells = accepted_cells(drawing, Grid(1, 7))
    assert cells.tolist() == [[False, True, True, False, False, True, False]]
    with pytest.raises(ValueError, match="cover 7 cells"):
        accepted_cells(drawing, Grid(2, 4))


def test_pictures_are_written_whole(tmp_path):
    plan = planned(["ar", "eagle2"], prompts=2)
    report = make_report(plan, finished(tmp_path, plan))
    captions = [prompt.caption() for prompt in plan.models[0].comparison.conditions]
    gallery = tmp_path / "deep" / "gallery.png"
    write_gallery(gallery, report.rows, report.gallery, captions, "title")
    assert gallery.read_bytes().startswith(b"\x89PNG")
    assert list(gallery.parent.iterdir()) == [gallery]


def test_a_store_knows_its_cells(tmp_path):
    plan = planned(["ar"], prompts=1)
    store = finished(tmp_path, plan)
    cell = DrawingKey("ar", plan.models[0].comparison.conditions[0].caption(), 0)
    assert cell in store
    assert store.drawing(cell).target_nfe == 16
