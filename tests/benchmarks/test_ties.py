"""Pictures of lossless methods that part from plain decoding's: where, and whether the target's tokens tie there."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.ties import main, parting
from tests.run_logs import log_bytes, log_values
from underpaint.algos.protocols import Grid
from underpaint.cli.app import app
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticTarget


def test_a_parting_tells_by_how_much_the_plain_token_leads() -> None:
    given = RandomDistribution(vocab_size=6, seed=3)
    plain, other = np.array([2, 0, 5, 1, 4, 4, 0, 1, 3, 2, 2, 0]), np.array([2, 0, 5, 1, 4, 4, 0, 1, 3, 1, 0, 0])
    found = parting(SyntheticTarget(given, Grid(3, 4)), plain, other)
    row = given(tuple(plain[:9].tolist()))
    assert found.cell == 9
    assert found.gaps == pytest.approx([float(np.log(row[2]) - np.log(row[1]))] * 3, abs=1e-9)


def test_a_picture_that_parts_where_nothing_ties_is_counted(
    small_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comparison of which one token of one picture was changed; then it lacks what the question needs."""
    out, named = tmp_path / "x", ("--models", str(small_models))
    asked = ["compare", "--resolution", "64", "--prompts-count", "2", "--methods", "ar,eagle2", "--no-likelihood"]
    done = CliRunner().invoke(app, [*asked, *named, "--temperature", "0", "--out", str(out)])
    assert done.exit_code == 0, done.output
    main([str(out), *named])
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert (row["method"], row["pictures"], row["beyond_ties"]) == ("eagle2", 2, 0)
    lines = log_values(out / "drawings.jsonl")
    changed = next(line for line in lines if line.get("method") == "eagle2")
    changed["tokens"][40] = (changed["tokens"][40] + 1) % 4096
    (out / "drawings.jsonl").write_bytes(log_bytes(lines))
    main([str(out), *named])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    (row,), (parted,) = told["rows"], told["partings"]
    assert (row["parted"], row["beyond_ties"]) == (1, 1)
    assert (parted["cell"], parted["prompt"]) == (40, changed["prompt"])
    assert row["largest_gap"] == max(map(abs, parted["gaps"])) > told["allowed"]
    (out / "drawings.jsonl").unlink()
    assert "no drawings.jsonl; name the folder" in refused([str(out), *named], capsys)
    results = json.loads((out / "compare.json").read_text())
    for part, name, value, says in (
        ("settings", "temperature", 1.0, "at temperature 0, got one at 1;"),
        ("model", "engine", "tensorrt", "got one on tensorrt"),
    ):
        changed = {**results, part: {**results[part], name: value}}
        (out / "compare.json").write_text(json.dumps(changed))
        assert says in refused([str(out), *named], capsys)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err
