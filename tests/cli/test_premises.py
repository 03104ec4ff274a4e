"""`underpaint premises`: the table, JSON and picture, of a synthetic pipeline and of the shipped models."""

import json

import pytest
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.artifacts.results import read_results
from underpaint.cli.app import app


def called(*arguments):
    return CliRunner().invoke(app, ["premises", *map(str, arguments)])


@pytest.fixture
def synthetic(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 64))


def test_figures_are_written_as_results_and_as_a_picture(tmp_path, synthetic):
    found = called("--prompts-count", 3, "--nearest", 5, "--json", tmp_path / "p.json", "--picture", tmp_path / "p.png")
    assert found.exit_code == 0, found.output
    assert "likeliest token, mean probability" in found.output
    results = read_results(tmp_path / "p.json")
    assert results["kind"] == "premises"
    assert len(results["settings"]["prompts"]) == 3
    names = [row["figure"] for row in results["rows"]]
    assert "mass of the 5 nearest codes" in names
    assert "nearest codes over random ones" in names
    assert not any("root" in name for name in names)  # it has no drafter
    assert len(results["by_cell"]["entropy"]) == 16
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_standard_output_holds_the_json_alone(synthetic):
    found = called("--prompts-count", 2, "--json", "-")
    assert json.loads(found.stdout)["kind"] == "premises"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "0"], "--temperature: expected more than 0"),
        (["--picture", "a.jpg"], "expected a name that ends in .png"),
        (["--depths", "16"], "--depths: expected at most 15"),
        (["--nearest", "30"], "leave too few to compare with; expected at most 19"),
        (["--prompts-count", "300", "--seeds", "2"], "at most 500 images, got 600"),
        (["--top-k", "41"], "--top-k: expected at most 40"),
    ],
)
def test_bad_input_is_refused_before_any_work(tmp_path, monkeypatch, synthetic, arguments, message):
    monkeypatch.chdir(tmp_path)
    found = called(*arguments)
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_models_have_their_drafter_in_the_table(tmp_path):
    found = called("--resolution", 64, "--prompts-count", 1, "--top-k", 0, "--no-costs", "--depths", 2, "--json", "-")
    assert found.exit_code == 0, found.output
    rows = {row["figure"]: row for row in json.loads(found.stdout)["rows"]}
    assert 0.3 < rows["overlap of drafter and target, 1 past the root"]["value"] < 1
    assert "overlap of drafter and target, 3 past the root" not in rows
    assert "0.04" in rows["overlap of drafter and target, 1 past the root"]["published"]
