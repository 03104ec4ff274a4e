"""`underpaint metrics`: pictures for the scorers of benchmarks, and refusals before any work."""

import json

import pytest
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from tests.run_logs import edit_log
from underpaint.artifacts.run_log import settings_hash
from underpaint.cli.app import app

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


@pytest.mark.parametrize("benchmark", ["geneval", "dpg"])
def test_benchmarks_get_their_folders(drawn, tmp_path, benchmark):
    path = tmp_path / "evaluation_metadata.jsonl"
    out = tmp_path / "out"
    arguments = ("metrics", "write", benchmark, drawn, "--prompts", path, "--out", out)
    if benchmark == "geneval":
        result = called(*arguments)
        assert result.exit_code == 0, result.output
        assert "evaluate_images.py" in result.stdout
        metadata = json.loads((out / "synthetic-0-ar" / "00001" / "metadata.jsonl").read_text())
        assert metadata["prompt"] == "a stone whale, an owl"
        assert len(list((out / "synthetic-0-eagle2" / "00000" / "samples").iterdir())) == 3
    else:
        result = called(*arguments)
        assert result.exit_code == 0, result.output
        assert "--resolution 64 --pic-num 3" in result.stdout
        assert sorted(one.name for one in (out / "synthetic-0-ar").iterdir()) == ["line 1.png", "line 2.png"]


def test_other_prompts_than_were_drawn_are_refused(drawn, tmp_path):
    (tmp_path / "other.txt").write_text("\n\n\na cat\n")
    arguments = ("metrics", "write", "dpg", drawn, "--prompts", tmp_path / "other.txt", "--out", tmp_path / "out")
    result = called(*arguments)
    assert result.exit_code == 2
    assert "the evaluation used another file of prompts, evaluation_metadata.jsonl" in result.stderr
    (drawn / "evaluate.json").unlink()
    result = called(*arguments)
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
