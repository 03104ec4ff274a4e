"""The folder that ships is a folder of models like any other: named by --models, it draws the same pictures."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from underpaint.cli.app import app

pytestmark = pytest.mark.slow
METHODS = "adt+lantern,mulo-islands"
PROMPTS = ("a woolly fox left of an outlined pumpkin, on green foliage",)
TIMED = ("seconds", "speedup", "share", "_ms", "frechet_seconds")


def compared(out: Path, temperature: str, *more: str) -> tuple[list[dict[str, Any]], dict[str, bytes], dict[str, Any]]:
    """Tokens of every drawing, the pictures, and the report."""
    arguments = ["compare", *PROMPTS, "--methods", METHODS, "--temperature", temperature, "--save-pictures"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out), *more])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (out / "drawings.jsonl").read_text().splitlines()]
    drawings = [
        {name: line[name] for name in ("method", "prompt", "seed", "tokens")} for line in lines if "tokens" in line
    ]
    pictures = {
        file.relative_to(out).as_posix(): file.read_bytes() for file in sorted((out / "pictures").rglob("*.png"))
    }
    return drawings, pictures, json.loads((out / "compare.json").read_text())


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_compare_of_the_folder_is_compare_picture_by_picture(
    tmp_path: Path, small_models: Path, monkeypatch: pytest.MonkeyPatch, temperature: str
) -> None:
    monkeypatch.setattr("underpaint.zoo.load.FOLDER", small_models)
    elsewhere = tmp_path / "models"
    shutil.copytree(small_models, elsewhere)
    shipped = compared(tmp_path / "shipped", temperature)
    named = compared(tmp_path / "named", temperature, "--models", str(elsewhere))
    assert len(shipped[0]) == len(shipped[1]) == 3 * len(PROMPTS)
    assert named[0] == shipped[0]
    assert named[1] == shipped[1]
    for before, after in zip(shipped[2]["rows"], named[2]["rows"], strict=True):
        counted = [name for name in before if not any(part in name for part in TIMED)]
        assert len(counted) > 8
        assert {name: after[name] for name in counted} == {name: before[name] for name in counted}
    assert named[2]["model"]["sha256"] == shipped[2]["model"]["sha256"]
