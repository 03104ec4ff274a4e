"""`underpaint metrics`: pictures of an evaluation through tiny and random networks, and refusals before any work."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from tests.models.clip_folder import FEATURES, write_clip
from tests.run_logs import edit_log
from underpaint.artifacts.results import read_results
from underpaint.artifacts.run_log import settings_hash
from underpaint.cli.app import app
from underpaint.cli.evaluation import scoring
from underpaint.models.metrics.inception import FidInception, Inception

SHARE = 16
PROMPTS = (
    '{"tag": "colors", "include": [{"class": "fox", "count": 1}], "prompt": "a woolly fox, an owl"}\n'
    '{"tag": "single_object", "include": [{"class": "whale", "count": 1}], "prompt": "a stone whale, an owl"}\n'
)


def called(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline())
    (tmp_path / "evaluation_metadata.jsonl").write_text(PROMPTS)
    result = called(
        *("evaluate", "--prompts", tmp_path / "evaluation_metadata.jsonl", "--methods", "eagle2", "--seeds", 3),
        *("--jobs", 0, "--out", tmp_path / "drawn"),
    )
    assert result.exit_code == 0, result.output
    return tmp_path / "drawn"


@pytest.fixture
def weights(tmp_path, monkeypatch):
    folder = tmp_path / "clip"
    folder.mkdir()
    write_clip(folder)
    torch.manual_seed(6)
    network = FidInception(SHARE)
    for one in network.modules():
        if isinstance(one, nn.Conv2d):
            nn.init.kaiming_normal_(one.weight)
    names = {name.removeprefix("_stem.").removeprefix("_blocks."): one for name, one in network.state_dict().items()}
    torch.save(names, tmp_path / "inception.pth")
    monkeypatch.setattr(scoring, "Inception", lambda path: Inception(path, SHARE))
    head = nn.Sequential(nn.Linear(FEATURES, 1))
    torch.save({f"layers.{name}": one for name, one in head.state_dict().items()}, tmp_path / "head.pth")
    real = tmp_path / "real"
    real.mkdir()
    for place in range(12):
        noise = np.random.default_rng(place).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).save(real / f"{place}.png")
    return {
        "--inception": tmp_path / "inception.pth",
        "--reference": real,
        "--clip": folder,
        "--aesthetic": tmp_path / "head.pth",
    }


def options(weights):
    return [part for pair in weights.items() for part in pair]


def test_every_method_is_scored(drawn, weights):
    asked = "fid,kid,precision-recall,clip,aesthetic"
    result = called("metrics", "score", drawn, "--metrics", asked, *options(weights))
    assert result.exit_code == 0, result.output
    found = read_results(drawn / "metrics.json")
    assert [(row["method"], row["images"]) for row in found["rows"]] == [("ar", 6), ("eagle2", 6)]
    names = {"fid", "kid", "kid_deviation", "precision", "recall", "clip", "aesthetic"}
    assert all(set(row) == {"model", "method", "images", *names} for row in found["rows"])
    assert all(row["fid"] > 0 and -1 <= row["clip"] <= 1 for row in found["rows"])
    assert set(found["weights"]) == {"inception", "reference", "clip", "aesthetic"}
    again = called("metrics", "score", drawn, "--metrics", asked, *options(weights), "--out", drawn / "again.json")
    assert again.exit_code == 0
    assert json.loads((drawn / "again.json").read_text())["rows"] == found["rows"]


def test_a_set_is_not_apart_from_itself(drawn, weights, tmp_path):
    from underpaint.runtime.evaluation.drawing_log import DrawingLog, stored_pictures

    own = tmp_path / "own"
    own.mkdir()
    pictures = [one for one in stored_pictures(DrawingLog(drawn, None)) if one.method == "ar"]
    for place, one in enumerate(pictures):
        (own / f"{place}.png").write_bytes(one.png())
    result = called("metrics", "score", drawn, *options({**weights, "--reference": own}))
    assert result.exit_code == 0, result.output
    rows = {row["method"]: row for row in read_results(drawn / "metrics.json")["rows"]}
    assert rows["ar"]["fid"] == pytest.approx(0.0, abs=1e-6)
    assert rows["eagle2"]["fid"] > 1e-6


@pytest.mark.parametrize(
    ("asked", "left_out", "message"),
    [
        ("fid", "--inception", "weights-inception-2015-12-05-6726825d.pth (Apache-2.0), published at"),
        ("kid", "--reference", "ADM's reference batches"),
        ("clip", "--clip", "huggingface.co/openai/clip-vit-large-patch14"),
        ("hps", "--hps", "HPS_v2.1_compressed.pt"),
        ("aesthetic", "--aesthetic", "improved-aesthetic-predictor"),
        ("fidd", "", "did you mean 'fid'"),
    ],
)
def test_a_missing_file_is_refused_before_any_work(tmp_path, weights, asked, left_out, message):
    kept = {name: path for name, path in weights.items() if name != left_out}
    result = called("metrics", "score", tmp_path / "none", "--metrics", asked, *options(kept))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "none").exists()


def test_a_folder_that_is_none_is_refused(tmp_path, weights):
    result = called("metrics", "score", tmp_path, *options(weights))
    assert result.exit_code == 2
    assert "is no folder of `underpaint evaluate`" in result.stderr


def test_statistics_are_no_pictures(tmp_path, weights):
    np.savez(tmp_path / "adm.npz", mu=np.zeros(128), sigma=np.eye(128))
    kept = {**weights, "--reference": tmp_path / "adm.npz"}
    result = called("metrics", "score", tmp_path, "--metrics", "kid", *options(kept))
    assert result.exit_code == 2
    assert "take a folder of real pictures" in result.stderr


def test_adms_statistics_are_a_reference_for_fid(drawn, weights, tmp_path):
    np.savez(tmp_path / "adm.npz", mu=np.zeros(128), sigma=np.eye(128))
    result = called("metrics", "score", drawn, *options({**weights, "--reference": tmp_path / "adm.npz"}))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("benchmark", ["geneval", "dpg"])
def test_benchmarks_get_their_folders(drawn, tmp_path, benchmark):
    path = tmp_path / "evaluation_metadata.jsonl"
    out = tmp_path / "out"
    asked = ("metrics", "write", benchmark, drawn, "--prompts", path, "--out", out)
    if benchmark == "geneval":
        result = called(*asked)
        assert result.exit_code == 0, result.output
        assert "evaluate_images.py" in result.stdout
        told = json.loads((out / "synthetic-0-ar" / "00001" / "metadata.jsonl").read_text())
        assert told["prompt"] == "a stone whale, an owl"
        assert len(list((out / "synthetic-0-eagle2" / "00000" / "samples").iterdir())) == 3
    else:
        result = called(*asked)
        assert result.exit_code == 0, result.output
        assert "--resolution 64 --pic-num 3" in result.stdout
        assert sorted(one.name for one in (out / "synthetic-0-ar").iterdir()) == ["line 1.png", "line 2.png"]


def test_other_prompts_than_were_drawn_are_refused(drawn, tmp_path):
    (tmp_path / "other.txt").write_text("\n\n\na cat\n")
    asked = ("metrics", "write", "dpg", drawn, "--prompts", tmp_path / "other.txt", "--out", tmp_path / "out")
    result = called(*asked)
    assert result.exit_code == 2
    assert "the evaluation drew another file of prompts, evaluation_metadata.jsonl" in result.stderr
    (drawn / "evaluate.json").unlink()
    result = called(*asked)
    assert result.exit_code == 2
    assert "drew none of its prompts" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan.update(models=[]), "expected a list of models"),
        (lambda plan: plan.update(models={}), "expected a list of models"),
        (lambda plan: plan.update(models=[5]), "expected a list of models"),
        (lambda plan: plan["models"][0].update(model={}), "expected the name of a target"),
        (lambda plan: plan["models"][0]["model"].update(target="../x"), "expected the name of a file in its own"),
        (lambda plan: plan["models"][0].update(prompts=5), "prompts: expected a list"),
        (lambda plan: plan["models"][0].pop("prompts"), "models[0]: missing setting"),
        (lambda plan: plan["models"][0].update(prompt_keys=["line 1"]), "expected a key for each of 2 prompts, got 1"),
    ],
    ids=range(8),
)
def test_an_evaluation_that_was_edited_is_refused(drawn, tmp_path, change, message):
    path = tmp_path / "evaluation_metadata.jsonl"
    (log,) = drawn.glob("drawings-*.jsonl")

    def edit(values):
        change(values[0]["settings"])
        values[0]["hash"] = settings_hash(values[0]["settings"])

    edit_log(log, edit)
    result = called("metrics", "write", "geneval", drawn, "--prompts", path, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model", [1, -1, "0", None, True])
def test_pictures_of_a_model_that_is_not_there_are_refused(drawn, tmp_path, model):
    (log,) = drawn.glob("drawings-*.jsonl")
    edit_log(log, lambda values: values[1].update(model=model))
    path = tmp_path / "evaluation_metadata.jsonl"
    result = called("metrics", "write", "geneval", drawn, "--prompts", path, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert f"{log} is no record" in result.stderr


def test_a_scorers_results_are_read_back(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"tag": "colors", "correct": true}\n{"tag": "colors", "correct": false}\n')
    result = called("metrics", "read", "geneval", tmp_path / "results.jsonl", "--json", "-")
    assert json.loads(result.stdout) == {
        **{"benchmark": "geneval", "overall": 0.5},
        **{"parts": {"colors": 0.5}, "pictures": 2},
    }
    assert called("metrics", "read", "genval", tmp_path / "results.jsonl").exit_code == 2
