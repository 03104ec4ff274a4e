"""Benchmarks of tree methods, on a pipeline of synthetic distributions."""

import numpy as np
import pytest

import benchmarks.pair_statistics as pair_statistics
import benchmarks.rank_acceptance as rank_acceptance
import benchmarks.settings as settings
import benchmarks.verification as verification
from benchmarks.pair_statistics import COLUMNS, Distributions, score
from tests.benchmarks.ending import figures
from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.algos.protocols import Grid
from underpaint.runtime.methods.registry import build_method, resolve


@pytest.fixture(autouse=True)
def _small_models(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 128, grid=Grid(2, 3)))


def test_first_tokens_of_lossless_methods_stand_beside_exact_distributions(tmp_path, capsys):
    asked = ["--methods", "ar, eagle2", "--draws", "40", "--prompts-count", "1"]
    found = figures(pair_statistics.main, asked, tmp_path, capsys)
    assert set(found) == {"resolution", "draws", "sampler", "model", "rows", "machine", "command"}
    assert [row["method"] for row in found["rows"]] == ["ar", "eagle2"]
    for row in found["rows"]:
        assert set(row["z"]) == {"a", "a, b", "b, c"}
        assert all(abs(z) < 5 for z in row["z"].values())
        assert row["impossible"] == 0


def test_a_wrong_distribution_scores_high_and_what_it_forbids_is_counted():
    rng = np.random.default_rng(0)
    triples = np.array([(a, b, c) for a in range(3) for b in range(3) for c in range(2)])
    masses = rng.dirichlet(np.ones(len(triples)))
    distributions = Distributions(triples, masses)
    right = triples[rng.choice(len(triples), 2000, p=masses)]
    wrong = triples[rng.choice(len(triples), 2000, p=np.full(len(triples), 1 / len(triples)))]
    for columns in COLUMNS:
        assert abs(score(right, distributions, columns, np.random.default_rng(1))[0]) < 4
    assert score(wrong, distributions, COLUMNS[1], np.random.default_rng(1))[0] > 10
    forbidden = np.concatenate([right[:-5], np.full((5, 3), 7)])
    assert score(forbidden, distributions, COLUMNS[0], np.random.default_rng(1))[1] == 5


def test_every_lossless_tree_method_is_asked_by_default():
    built = pair_statistics.lossless(SyntheticPipeline(64), None)
    names = [one.name for one in built]
    assert {"ar", "block", "eagle1", "adt"} <= set(names)
    assert not {"lantern", "mulo", "zipar"} & set(names)


def test_what_block_and_traversal_add_is_reported_by_policy(tmp_path, capsys):
    found = figures(verification.main, ["--prompts-count", "2"], tmp_path, capsys)
    assert set(found) == {"resolution", "prompts", "seeds", "sampler", "model", "rows", "machine", "command"}
    assert [row["rules"][1] for row in found["rows"]] == ["block"] * 3 + ["traversal"] * 3
    for row in found["rows"]:
        assert row["gain"] == pytest.approx(row["tokens_per_cycle"][1] / row["tokens_per_cycle"][0] - 1)
        assert row["gain_low"] <= row["gain"] + 1e-12
        assert row["gain_high"] >= row["gain"] - 1e-12
        assert row["cycles"] > 0
    assert found["rows"][-1]["gain"] == pytest.approx(0.0, abs=1e-12)  # on point proposals both keep the same


def test_how_often_a_draft_of_each_rank_is_kept(tmp_path, capsys):
    found = figures(
        rank_acceptance.main, ["--prompts-count", "4", "--prompts-skip", "0", "--ranks", "3"], tmp_path, capsys
    )
    assert [row["temperature"] for row in found["rows"]] == [0.0, 1.0]
    for row in found["rows"]:
        assert len(row["acceptance"]) == 3
        assert all(0.0 <= kept <= 1.0 for kept in row["acceptance"])
        assert row["acceptance"][0] > 0.0
        assert row["cycles"] > 0
    assert found["rows"][0]["draws_by"] == "static_top_k + greedy"


def test_variants_stand_beside_ar_and_a_stopped_run_goes_on(tmp_path, capsys):
    work = tmp_path / "work"
    asked = ["adt", "--variant", "beta=1.0", "--prompts-count", "3", "--folder", str(work), "--temperature", "0"]
    found = figures(settings.main, asked, tmp_path, capsys)
    assert [row["variant"] for row in found["rows"]] == ["ar", "default", "beta=1.0"]
    for row in found["rows"]:
        assert set(row) >= {"speedup", "tokens_per_cycle", "mean_depth", "prompt_accuracy", "overhead_share"}
        assert row["identical_to_ar"] == 1.0
        assert row["accuracy_over_ar"] == 0.0
        assert row["over_default_low"] <= row["over_default"] <= row["over_default_high"]
    assert found["rows"][1]["over_default"] == 1.0
    ar, _, other = found["rows"]
    assert other["over_default"] / ar["over_default"] == pytest.approx(other["speedup"])
    held = (work / "drawings.jsonl").read_bytes()
    again = figures(settings.main, asked, tmp_path, capsys)
    assert again["rows"] == found["rows"]
    assert (work / "drawings.jsonl").read_bytes() == held
    with pytest.raises(SystemExit):
        settings.main([*asked, "--prompts-skip", "3"])
    assert "differs in prompts" in capsys.readouterr().err


def test_every_open_setting_of_adt_tree_is_one_that_it_takes():
    codes = SyntheticPipeline(64).tables
    built = [build_method("adt", resolve("adt", 1.0, None, one.split()), codes) for one in settings.ADT_VARIANTS]
    assert len({str(one.config.to_dict()) for one in built}) == len(settings.ADT_VARIANTS)


def test_a_method_without_cycles_is_shown_too(monkeypatch, tmp_path, capsys):
    asked = ["zipar", "--variant", "window=2", "--prompts-count", "2", "--folder", str(tmp_path / "work")]
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 128))
    found = figures(settings.main, asked, tmp_path, capsys)
    assert found["rows"][1]["tokens_per_cycle"] is None
    assert found["rows"][1]["identical_to_ar"] is None
