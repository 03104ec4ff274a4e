"""From a trace of plain decoding to what a comparison on other prompts measures."""

import dataclasses
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.simulate import app
from cli.trace import trace
from runtime.compare import Plan, choose_prompts, run
from runtime.compare_report import as_plain, find
from runtime.compare_store import Store
from runtime.methods import build_method, resolve
from tests.cli.studio import SyntheticStudio

METHODS = ("ar", "speculative", "eagle1", "eagle2", "adt", "lantern", "roofline", "zipar", "mulo")
STUDIO = SyntheticStudio()


def compared(folder: Path, temperature: float, prompts: int) -> Path:
    sampler = dataclasses.replace(STUDIO.sampler, temperature=temperature)
    built = tuple(build_method(name, resolve(name, temperature), STUDIO.codes) for name in METHODS)
    plan = Plan(built, choose_prompts(prompts), (0,), sampler)
    store = Store(folder, plan.as_plain())
    run(STUDIO, plan, store, lambda state: None)
    found = as_plain(find(STUDIO, plan, store), {**plan.as_plain(), "resolution": 64}, dict(STUDIO.described()), {})
    path = folder / "compare.json"
    path.write_text(json.dumps(found))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_tokens_per_cycle_are_predicted_for_every_method(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temperature: float
) -> None:
    monkeypatch.setattr("runtime.embedded.open_studio", lambda side: STUDIO)
    alone = typer.Typer()
    alone.command()(trace)
    options = ["--prompts-count", "48", "--temperature", str(temperature), "--out", str(tmp_path / "one.npz")]
    recorded = CliRunner().invoke(alone, options)
    assert recorded.exit_code == 0, recorded.output
    comparison = compared(tmp_path, temperature, 48)
    curve = {"verify_ms": [[1, 1.0], [64, 3.0]], "draft_ms": [[1, 0.1], [64, 0.3]], "overhead_ms": 0.1}
    (tmp_path / "curve.json").write_text(json.dumps(curve))
    files = ("--trace", tmp_path / "one.npz", "--costs", tmp_path / "curve.json", "--compare", comparison)
    arguments = ["predict", *map(str, files)]
    result = CliRunner().invoke(app, [*arguments, "--seeds", "2", "--json"])
    assert result.exit_code == 0, result.output
    rows = {row["method"]: row for row in json.loads(result.output)}
    assert set(rows) == set(METHODS) - {"ar", "mulo"}
    assert rows["zipar"]["tokens_error"] == 0.0
    # Images of 16 cells: 48 of them carry a few per cent of noise on both sides.
    for name, row in rows.items():
        assert abs(row["tokens_error"]) < 0.12, (name, row)
    shown = CliRunner().invoke(app, arguments)
    assert "Tokens per cycle within 5%" in shown.output
    assert "draft for them: mulo." in shown.output
    wrong = json.loads(comparison.read_text())
    wrong["settings"]["temperature"] = 0.5
    comparison.write_text(json.dumps(wrong))
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert "was sampled with" in refused.output
