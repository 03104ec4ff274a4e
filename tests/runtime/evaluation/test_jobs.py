"""Jobs of an evaluation: named by their content, split, stored in shards that survive any end, drawn again if lost."""

import dataclasses
import json
import tarfile

import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.evaluation.comparison import ComparisonPlan, build_methods, choose_prompts
from underpaint.runtime.evaluation.jobs.drawer import DrawnJob, JobDrawer, check_files
from underpaint.runtime.evaluation.jobs.plan import EvaluationPlan, JobShare, ModelPlan, ModelSpec
from underpaint.runtime.evaluation.jobs.run import count_missing, draw_missing, evaluation_report
from underpaint.runtime.evaluation.jobs.shards import EvaluationFolder, ShardWriter
from underpaint.runtime.evaluation.jobs.workers import InlineWorker, ProcessWorkers, WorkerError
from underpaint.runtime.evaluation.report import TIMED
from underpaint.runtime.pipeline import Pipeline


@pytest.fixture(autouse=True)
def opened_models(monkeypatch):
    monkeypatch.setattr(Pipeline, "open", staticmethod(lambda folder, **options: SyntheticPipeline()))


def planned(prompts=3, seeds=2, settings=(), temperature=1.0, names=("ar", "eagle2"), **pipeline):
    models = SyntheticPipeline(**pipeline)
    sampling = SamplingParams(temperature=temperature)
    methods = build_methods(models, names, temperature, {"eagle2": settings})
    comparison = ComparisonPlan(methods, choose_prompts(prompts), tuple(range(seeds)), sampling)
    return EvaluationPlan(
        (ModelPlan.make(ModelSpec("synthetic"), models, comparison, {"eagle2": tuple(settings)}, {}),)
    )


def inline(plan):
    return InlineWorker(JobDrawer(plan.tasks(), own_threads=False))


def keys_in(shard):
    with tarfile.open(shard) as tar:
        return [name.removesuffix(".json") for name in tar.getnames() if name.endswith(".json")]


def ignore(state):
    del state


def statistics(plan, folder):
    report = evaluation_report(plan, EvaluationFolder(folder, plan.to_dict()), "a test")
    return [
        {name: value for name, value in dataclasses.asdict(row).items() if name not in TIMED} for row in report.rows[0]
    ]


def drawn(plan, folder, share=JobShare()):  # noqa: B008
    draw_missing(plan, EvaluationFolder(folder, plan.to_dict()), inline(plan), ignore, share)


def test_a_key_is_the_same_for_the_same_content_and_another_for_any_other():
    keys = [job.key for job in planned().jobs()]
    assert len(set(keys)) == len(keys) == 12
    assert keys == [job.key for job in planned().jobs()]
    assert set(keys[:6]) <= {job.key for job in planned(prompts=4, seeds=3).jobs()}
    for other in (planned(temperature=0.5), planned(name="another")):
        assert not set(keys) & {job.key for job in other.jobs()}
    changed = {job.key for job in planned(settings=["depth=2"]).jobs()}
    assert len(set(keys) & changed) == 6  # plain AR's


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_shares_are_the_whole_and_each_job_once(count):
    jobs = planned().jobs()
    parts = [JobShare(index, count).of(jobs) for index in range(1, count + 1)]
    assert sorted(job.key for part in parts for job in part) == sorted(job.key for job in jobs)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/2", "1/b", "-1/2"])
def test_other_shares_are_refused(text):
    with pytest.raises(ValueError, match="expected i/n"):
        JobShare.parse(text)


def test_one_model_named_twice_is_refused():
    (model,) = planned().models
    with pytest.raises(ValueError, match="each once"):
        EvaluationPlan((model, model))


def test_parts_drawn_apart_have_the_figures_of_the_whole(tmp_path):
    plan = planned()
    drawn(plan, tmp_path / "whole")
    for index in (3, 1, 2):
        drawn(plan, tmp_path / "parts", JobShare(index, 3))
    assert len(EvaluationFolder(tmp_path / "parts", plan.to_dict()).shards) == 3
    assert statistics(plan, tmp_path / "parts") == statistics(plan, tmp_path / "whole")


def test_what_a_report_tells_of_pictures_and_tokens_comes_from_the_shards(tmp_path, monkeypatch):
    """No picture is decoded and no token judged again; where a job says no likelihood, none is told."""
    plan = planned(prompts=8, seeds=1, names=("ar", "lantern"))
    drawn(plan, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(SyntheticPipeline, "picture", None)
        patched.setattr("underpaint.runtime.evaluation.picture_quality.image_log_likelihood", None)
        found = statistics(plan, tmp_path)
    base, lantern = found
    assert (base["log_likelihood_over_ar"], base["auc"]) == (0.0, 0.5)
    assert lantern["log_likelihood"] not in (None, base["log_likelihood"])
    assert lantern["log_likelihood_over_ar"] == pytest.approx(lantern["log_likelihood"] - base["log_likelihood"])
    assert lantern["auc"] is not None
    read, lacking = EvaluationFolder.read, plan.jobs()[-1].key

    def older(folder):
        stored = read(folder)
        kept = {key: one for key, one in stored.log_likelihoods.items() if key != lacking}
        return stored._replace(log_likelihoods=kept)

    monkeypatch.setattr(EvaluationFolder, "read", older)
    without = statistics(plan, tmp_path)
    assert [row["log_likelihood"] for row in without] == [None, None]
    assert [row["auc"] for row in without] == [row["auc"] for row in found]


def test_a_shard_cut_anywhere_loses_its_last_jobs_alone(tmp_path):
    plan = planned(prompts=2, seeds=1)
    drawn(plan, tmp_path)
    folder = EvaluationFolder(tmp_path, plan.to_dict())
    (shard,) = folder.shards
    whole, order = shard.read_bytes(), keys_in(shard)
    assert len(order) == 4
    seen = {}
    for length in range(0, len(whole), 97):
        shard.write_bytes(whole[:length])
        found = folder.stored_keys()
        assert found == set(order[: len(found)])
        seen.setdefault(len(found), length)
    assert set(seen) == {0, 1, 2, 3, 4}
    shard.write_bytes(whole[: seen[2]])
    assert count_missing(plan, folder) == 2
    drawn(plan, tmp_path)
    assert count_missing(plan, folder) == 0
    drawn(plan, tmp_path / "other")
    assert statistics(plan, tmp_path) == statistics(plan, tmp_path / "other")


def test_a_job_drawn_twice_counts_once_and_other_tokens_are_told(tmp_path):
    plan = planned(prompts=1, seeds=1)
    drawn(plan, tmp_path)
    folder = EvaluationFolder(tmp_path, plan.to_dict())
    before = statistics(plan, tmp_path)
    again = [inline(plan).drawer.draw(job) for job in plan.jobs()]
    other = again[1].drawing
    again[1] = again[1]._replace(drawing=dataclasses.replace(other, tokens=other.tokens[::-1]))
    with ShardWriter(tmp_path) as writer:
        for job in again:
            writer.add(job)
    (later,) = set(folder.shards) - {folder.shards[0]}
    later.rename(later.with_name(f"zz-{later.name}"))  # the first by name counts
    found = folder.read()
    assert (len(found.drawings), found.repeated, found.differing) == (2, 2, 1)
    assert statistics(plan, tmp_path) == before


def test_a_folder_of_another_evaluation_is_refused(tmp_path):
    plan, other = planned(), planned(temperature=0.5)
    late = EvaluationFolder(tmp_path, other.to_dict())
    drawn(plan, tmp_path)
    with pytest.raises(ValueError, match=r"belongs to another evaluation \(it differs in temperature"):
        EvaluationFolder(tmp_path, other.to_dict())
    with pytest.raises(ValueError, match="belongs to another evaluation"):
        late.claim()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["evaluation.json", "shards"]
    (tmp_path / "evaluation.json").write_text("{}")
    with pytest.raises(ValueError, match="is no evaluation"):
        EvaluationFolder(tmp_path, plan.to_dict())
    (tmp_path / "evaluation.json").unlink()
    with pytest.raises(ValueError, match="holds shards and no"):
        EvaluationFolder(tmp_path, plan.to_dict())


def test_what_is_there_is_not_drawn_again(tmp_path):
    plan = planned()
    drawn(plan, tmp_path)

    class Refusing:
        def run(self, jobs):
            raise AssertionError(jobs)

    draw_missing(plan, EvaluationFolder(tmp_path, plan.to_dict()), Refusing(), ignore)


def test_a_record_holds_what_a_reader_needs(tmp_path):
    plan = planned(prompts=1, seeds=1)
    job = inline(plan).drawer.draw(plan.jobs()[0])
    assert isinstance(job, DrawnJob)
    assert job.picture.startswith(b"\x89PNG")
    plain = json.loads(json.dumps(job.to_dict()))
    assert plain["reading"]["features"] == job.reading.features.tolist()
    assert tuple(plain["drawing"]["tokens"]) == job.drawing.tokens


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
    pool = ProcessWorkers(plan.tasks(), 1, (str(plugin),))
    with pytest.raises(WorkerError, match="3 workers died while they drew"):
        list(pool.run(plan.jobs()))
    assert pool.pids() == []


def test_an_error_in_a_worker_comes_with_its_job(tmp_path):
    plugin = tmp_path / "fails.py"
    plugin.write_text("raise RuntimeError('out of colours')\n")
    plan = planned(prompts=1, seeds=1)
    with pytest.raises(WorkerError, match=r"(?s)by ar, seed 0, failed:.*out of colours"):
        list(ProcessWorkers(plan.tasks(), 1, (str(plugin),)).run(plan.jobs()))
