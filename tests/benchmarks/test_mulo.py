import pytest

import benchmarks.mulo as benchmark
from tests.benchmarks.ending import figures
from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 128))
    monkeypatch.setattr(benchmark, "MATCH_PROMPTS", 2)
    monkeypatch.setattr(benchmark, "HALVINGS", 4)


def test_the_ablation_ends_in_a_table_and_goes_on_where_it_was(tmp_path, capsys):
    asked = ["--prompts-count", "3", "--folder", str(tmp_path / "work")]
    found = figures(benchmark.main, asked, tmp_path, capsys)
    assert "sampler bicubic" in found["left_out"]
    rows = {row["method"]: row for row in found["rows"]}
    assert set(rows) | set(found["left_out"]) == {one.label for one in benchmark.VARIANTS}
    reference = rows["local + expansion"]["kept_share"]
    assert reference == pytest.approx(rows["plain local, matched"]["kept_share"], abs=0.4)
    assert rows["plain local, same tau"]["kept_share"] >= reference
    assert rows["row fronts in drafting, no repair"]["kept_share"] == 1.0
    assert {one["figure"] for one in found["orderings"]} == {"prompt_accuracy", "frechet_distance", "speedup"}
    for one in found["orderings"]:
        higher = one["figure"] != "frechet_distance"
        assert one["holds"] == (one["found"][0] > one["found"][1] if higher else one["found"][0] < one["found"][1])
    held = (tmp_path / "work" / "drawings.jsonl").read_bytes()
    again = figures(benchmark.main, asked, tmp_path, capsys)
    assert again["rows"] == found["rows"]
    assert (tmp_path / "work" / "drawings.jsonl").read_bytes() == held


def test_a_threshold_is_matched_by_what_it_keeps(monkeypatch):
    pipeline = SyntheticPipeline(128)
    one = benchmark.Variant("", "plain", "mulo", ("radius=0",))
    tau = benchmark.matched_tau(pipeline, one, 0.5, pipeline.sampling)
    above, below = (
        benchmark.kept_share(pipeline, benchmark.built(pipeline, one, f"tau={factor * tau:.5f}"), pipeline.sampling)
        for factor in (0.3, 3.0)
    )
    assert above > 0.5 > below
