"""The benchmark whose curve policies and simulations read."""

import json
from pathlib import Path

import pytest

from algos.draft.costs import CostCurve
from benchmarks.cost_curve import main
from tests.conformance.conftest import CONFIG, Models


def test_the_curve_is_written_in_the_form_that_policies_read(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "curve.json"
    options = ["--target", "target", "--drafter", "drafter", "--folder", str(models.folder), "--rounds", "2"]
    assert main([*options, "--threads", "1", "--out", str(out)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    found = json.loads(out.read_text())
    assert json.loads(last) == found
    assert found["model"] == {"target": "target", "drafter": "drafter", "rows": 1}
    assert [count for count, _ in found["verify_ms"]] == [1, 2, 3, 4, 5, 6, CONFIG.block_size // 2]
    curve = CostCurve(tuple((int(count), ms) for count, ms in found["verify_ms"]), found["draft_ms"][0][1])
    assert curve.draft_ms > 0
    spread = found["verify_spread_ms"]
    for at, (_, median) in enumerate(found["verify_ms"]):
        assert spread["least"][at][1] <= spread["p10"][at][1] <= median <= spread["p90"][at][1]
        assert 0 < spread["graph"][at][1] <= spread["p90"][at][1]


def test_an_unknown_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--folder", str(tmp_path)]) == 2
    assert "there is no model 'target64'" in capsys.readouterr().err
