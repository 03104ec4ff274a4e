"""The benchmark of acceptance by rank, on a pipeline of synthetic distributions."""

import json

import pytest

import benchmarks.rank_acceptance as rank_acceptance
from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.algos.protocols import Grid


@pytest.fixture(autouse=True)
def _small_models(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 128, grid=Grid(2, 3)))


def test_how_often_a_draft_of_each_rank_is_kept(tmp_path, capsys):
    out = tmp_path / "deep" / "found.json"
    rank_acceptance.main(["--prompts-count", "4", "--prompts-skip", "0", "--ranks", "3", "--out", str(out)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads(out.read_text()) == report
    assert {"python", "numpy"} <= set(report["machine"])
    assert isinstance(report["command"], str)
    assert [row["temperature"] for row in report["rows"]] == [0.0, 1.0]
    for row in report["rows"]:
        assert len(row["acceptance"]) == 3
        assert all(0.0 <= rate <= 1.0 for rate in row["acceptance"])
        assert row["acceptance"][0] > 0.0
        assert row["cycles"] > 0
    assert report["rows"][0]["draws_by"] == "static_top_k + greedy"
