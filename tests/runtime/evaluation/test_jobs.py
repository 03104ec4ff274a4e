"""Jobs of a run by workers: split, stored in logs that survive any end, drawn again if lost."""

import dataclasses
import multiprocessing

import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.run_log import OtherRun
from underpaint.artifacts.workers import Processes, ThisProcess, WorkerError
from underpaint.runtime.evaluation.comparison import ComparisonPlan, build_methods, choose_prompts, named_variants
from underpaint.runtime.evaluation.drawer import JobDrawer, check_files, draw_missing
from underpaint.runtime.evaluation.drawing_log import DrawingLog
from underpaint.runtime.evaluation.plan import JobShare, ModelPlan, ModelSpec, RunPlan
from underpaint.runtime.evaluation.report import evaluation_report
from underpaint.runtime.evaluation.report_row import TIMED


@pytest.fixture(autouse=True)
def opened_models(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline())


def planned(prompts=3, seeds=2, settings=(), temperature=1.0, names=("ar", "eagle2"), likelihood=True, batch=1):
    models = SyntheticPipeline()
    sampling = SamplingParams(temperature=temperature)
    methods = build_methods(models, named_variants(names, {"eagle2": settings}), temperature)
    comparison = ComparisonPlan(methods, choose_prompts(prompts), tuple(range(seeds)), sampling)
    method_settings = {"eagle2": tuple(settings)}
    arguments = (ModelSpec("synthetic"), models, comparison, method_settings, {})
    return RunPlan((ModelPlan.for_workers(*arguments, likelihood=likelihood, batch=batch),))


def drawer(plan):
    return JobDrawer(plan.tasks(), own_threads=False)


def ignore(state):
    del state


def statistics(plan, folder):
    report = evaluation_report(plan, plan.open_log(folder), "a test")
    return [
        {name: value for name, value in dataclasses.asdict(row).items() if name not in TIMED} for row in report.rows[0]
    ]


def drawn(plan, folder, share=JobShare()):  # noqa: B008
    draw_missing(share.of(plan.jobs()), plan.open_log(folder, shared=True), ThisProcess(drawer(plan)), ignore)


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_shares_are_the_whole_and_each_job_once(count):
    jobs = planned().jobs()
    parts = [JobShare(index, count).of(jobs) for index in range(1, count + 1)]
    assert sorted(job for part in parts for job in part) == sorted(jobs)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/2", "1/b", "-1/2"])
def test_other_shares_are_refused(text):
    with pytest.raises(ValueError, match="expected i/n"):
        JobShare.parse(text)


def test_one_model_named_twice_is_refused():
    (model,) = planned().models
    with pytest.raises(ValueError, match="each once"):
        RunPlan((model, model))


def test_parts_drawn_apart_have_the_figures_of_the_whole(tmp_path):
    plan = planned()
    drawn(plan, tmp_path / "whole")
    for index in (3, 1, 2):
        drawn(plan, tmp_path / "parts", JobShare(index, 3))
    assert len(DrawingLog.files(tmp_path / "parts")) == 3
    assert statistics(plan, tmp_path / "parts") == statistics(plan, tmp_path / "whole")


def test_what_a_report_tells_of_pictures_and_tokens_comes_from_the_log(tmp_path, monkeypatch):
    """No picture is decoded and no token judged again; without likelihoods, none is told."""
    plan = planned(prompts=8, seeds=1, names=("ar", "lantern"))
    drawn(plan, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(SyntheticPipeline, "picture", None)
        patched.setattr("underpaint.runtime.evaluation.picture_quality.image_log_likelihood", None)
        rows = statistics(plan, tmp_path)
    base, lantern = rows
    assert (base["log_likelihood_over_ar"], base["auc"]) == (0.0, 0.5)
    assert lantern["log_likelihood"] not in (None, base["log_likelihood"])
    assert lantern["log_likelihood_over_ar"] == pytest.approx(lantern["log_likelihood"] - base["log_likelihood"])
    assert lantern["auc"] is not None
    without = statistics(planned(prompts=8, seeds=1, names=("ar", "lantern"), likelihood=False), tmp_path)
    assert [row["log_likelihood"] for row in without] == [None, None]
    assert [row["auc"] for row in without] == [row["auc"] for row in rows]


def test_a_log_cut_anywhere_loses_its_last_jobs_alone(tmp_path):
    plan = planned(prompts=2, seeds=1)
    drawn(plan, tmp_path)
    (path,) = DrawingLog.files(tmp_path)
    whole = path.read_bytes()
    order = list(plan.open_log(tmp_path).records)
    assert len(order) == 4
    seen = {}
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        keys = list(plan.open_log(tmp_path).records)
        assert keys == order[: len(keys)]
        seen.setdefault(len(keys), length)
    assert set(seen) == {0, 1, 2, 3}
    path.write_bytes(whole[: seen[2]])
    drawn(plan, tmp_path)
    assert len(plan.open_log(tmp_path)) == 4
    drawn(plan, tmp_path / "other")
    assert statistics(plan, tmp_path) == statistics(plan, tmp_path / "other")


def test_a_job_drawn_twice_counts_once_and_other_tokens_are_told(tmp_path):
    plan = planned(prompts=1, seeds=1)
    drawn(plan, tmp_path)
    (first,) = DrawingLog.files(tmp_path)
    before = statistics(plan, tmp_path)
    again = [drawer(plan)(job) for job in plan.jobs()]
    other = again[1].drawing
    turned = dataclasses.replace(other, tokens=(*other.tokens[:-1], (other.tokens[-1] + 1) % 40))
    again[1] = dataclasses.replace(again[1], drawing=turned)
    log = plan.open_log(tmp_path / "later", shared=True)
    for job in again:
        log.keep(job)
    log.path.rename(tmp_path / f"{first.stem}-later.jsonl")  # the first by name counts
    report = evaluation_report(plan, plan.open_log(tmp_path), "a test")
    assert (len(plan.open_log(tmp_path)), report.repeated, report.differing) == (2, 2, 1)
    assert statistics(plan, tmp_path) == before


def test_a_folder_of_another_run_is_refused(tmp_path):
    plan, other = planned(), planned(temperature=0.5)
    late = other.open_log(tmp_path, shared=True)
    drawn(plan, tmp_path)
    file_names = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(OtherRun, match=r"belongs to another comparison \(it differs in temperature"):
        other.open_log(tmp_path)
    with pytest.raises(OtherRun, match="belongs to another comparison"):
        late.begin()
    assert sorted(path.name for path in tmp_path.iterdir()) == file_names
    (path,) = DrawingLog.files(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"seed": 0', b'"seed": 1', 1))
    with pytest.raises(ValueError, match="line 2: its checksum is of another text"):
        plan.open_log(tmp_path)


def test_pictures_of_another_batch_are_of_another_run(tmp_path):
    single, batched = planned(prompts=1, seeds=1), planned(prompts=1, seeds=1, batch=4)
    assert "batch" not in single.models[0].fingerprint
    drawn(single, tmp_path)
    with pytest.raises(OtherRun, match="it differs in model"):
        batched.open_log(tmp_path)
    batched.open_log(tmp_path / "four", shared=True).begin()
    for other in (single, planned(prompts=1, seeds=1, batch=2)):
        with pytest.raises(OtherRun, match="it differs in model"):
            other.open_log(tmp_path / "four")


def test_what_is_there_is_not_drawn_again(tmp_path):
    plan = planned()
    drawn(plan, tmp_path)

    class Refusing:
        def run(self, jobs):
            raise AssertionError(jobs)

    draw_missing(plan.jobs(), plan.open_log(tmp_path), Refusing(), ignore)


def test_a_record_holds_what_a_reader_needs(tmp_path):
    plan = planned(prompts=1, seeds=1)
    job = drawer(plan)(plan.jobs()[0])
    assert job.picture.startswith(b"\x89PNG")
    log = plan.open_log(tmp_path)
    log.keep(job)
    reopened_log = plan.open_log(tmp_path)
    (back,) = reopened_log
    assert back.drawing == job.drawing
    assert (back.processor, back.log_likelihood) == (job.processor, job.log_likelihood)
    assert back.reading.features.tolist() == job.reading.features.tolist()
    assert reopened_log.picture(job.key).shape == (64, 64, 3)


def test_other_files_on_a_worker_are_refused():
    class Elsewhere(SyntheticPipeline):
        def fingerprint(self):
            return {"sha256": {"target": "new", "drafter": "same"}}

    check_files({"target": "new"}, Elsewhere())
    with pytest.raises(ValueError, match="target on this machine is not what"):
        check_files({"target": "old", "drafter": "same"}, Elsewhere())


def test_a_job_that_kills_its_workers_stops_the_run(tmp_path):
    plugin = tmp_path / "dies.py"
    plugin.write_text("import os\nos.kill(os.getpid(), 9)\n")
    plan = planned(prompts=1, seeds=1)
    pool = Processes(JobDrawer(plan.tasks(), (str(plugin),)), 1)
    with pytest.raises(WorkerError, match=r"3 workers died at .* by ar, seed 0"):
        list(pool.run(plan.jobs()))
    assert multiprocessing.active_children() == []


def test_an_error_in_a_worker_comes_with_its_job(tmp_path):
    plugin = tmp_path / "fails.py"
    plugin.write_text("raise RuntimeError('out of colours')\n")
    plan = planned(prompts=1, seeds=1)
    with pytest.raises(WorkerError, match=r"(?s)by ar, seed 0 failed:.*out of colours"):
        list(Processes(JobDrawer(plan.tasks(), (str(plugin),)), 1).run(plan.jobs()))
