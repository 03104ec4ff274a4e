"""`underpaint premises`: the table, JSON and picture, of a synthetic pipeline and of the shipped models."""

import json
import math

import pytest
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.artifacts.cost_curve import CostCurveFile, InCycleCosts, PlainCosts
from underpaint.artifacts.results import read_results
from underpaint.cli.app import app


def called(*arguments):
    return CliRunner().invoke(app, ["premises", *map(str, arguments)])


@pytest.fixture
def synthetic(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 64))


def test_figures_are_written_as_results(tmp_path, synthetic):
    result = called("--prompts-count", 3, "--nearest", 5, "--json", tmp_path / "p.json")
    assert result.exit_code == 0, result.output
    assert "likeliest token, mean probability" in result.output
    results = read_results(tmp_path / "p.json")
    assert results["kind"] == "premises"
    assert len(results["settings"]["prompts"]) == 3
    names = [row["figure"] for row in results["rows"]]
    assert "mass of the 5 nearest codes" in names
    assert "nearest codes over random ones" in names
    assert not any("root" in name for name in names)  # it has no drafter
    assert "entropy, nats" in names
    assert len(results["by_cell"]["entropy"]) == 16


def test_passes_are_told_by_their_cost_in_cycles_with_the_knee_of_it(monkeypatch, synthetic):
    """Twice a plain pass up to eight nodes, and 0.25 of one more for each beyond; passes alone are of other times."""
    sizes = (1, 2, 4, 8, 12, 16, 32)
    within = InCycleCosts(
        PlainCosts(1.0, 0.2),
        target_ms=tuple((size, 2.0 + 0.25 * max(0, size - 8)) for size in sizes),
        draft_ms=((1, 0.5),),
        chain_ms=(),
        host_ms={},
    )
    curve = CostCurveFile("costs", "", {}, ((1, 7.0), (32, 7.0)), ((1, 0.5),), 0.0, (), within)
    monkeypatch.setattr("underpaint.cli.evaluation.premises.curve_for", lambda *_: curve)
    results = json.loads(called("--prompts-count", 2, "--json", "-").stdout)
    rows = {row["figure"]: row["value"] for row in results["rows"]}
    assert rows["a target pass over 8 nodes in a cycle, plain passes"] == pytest.approx(2.0)
    assert rows["a target pass over 16 nodes in a cycle, plain passes"] == pytest.approx(4.0)
    assert rows["knee of those passes, nodes"] == results["knee"]["nodes"] == pytest.approx(8.0, abs=0.1)
    assert results["knee"]["node_ms"] == pytest.approx(0.25, rel=0.02)
    assert "Inside decoding cycles on this machine a target pass costs 2.00 ms up to about 8 nodes" in " ".join(
        called("--prompts-count", 2).output.split()
    )


def test_standard_output_holds_the_json_alone(synthetic):
    result = called("--prompts-count", 2, "--json", "-")
    assert json.loads(result.stdout)["kind"] == "premises"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "0"], "--temperature: expected more than 0"),
        (["--depths", "16"], "--depths: expected at most 15"),
        (["--nearest", "30"], "leave too few to compare with; expected at most 19"),
        (["--prompts-count", "300", "--seeds", "2"], "at most 500 images, got 600"),
        (["--top-k", "41"], "at most 40 can be kept"),
    ],
)
def test_bad_input_is_refused_before_any_work(tmp_path, monkeypatch, synthetic, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = called(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_models_have_their_drafter_in_the_table(tmp_path):
    result = called("--resolution", 64, "--prompts-count", 1, "--top-k", 0, "--no-costs", "--depths", 2, "--json", "-")
    assert result.exit_code == 0, result.output
    rows = {row["figure"]: row for row in json.loads(result.stdout)["rows"]}
    assert 0.3 < rows["overlap of drafter and target, 1 past the root"]["value"] < 1
    assert "overlap of drafter and target, 3 past the root" not in rows
    assert 0 < rows["drafter's entropy, 1 past the root, nats"]["value"] < math.log(4096)
    regions = {name.partition(" (")[0] for name in rows if name.startswith("entropy in ")}
    assert "entropy in busy cells" in regions
    assert regions <= {f"entropy in {name} cells" for name in ("calm", "busy", "object")}
    assert "0.04" in rows["overlap of drafter and target, 1 past the root"]["published"]
