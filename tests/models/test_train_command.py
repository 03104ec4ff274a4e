"""`underpaint train` turns bad input into exit code 2 and a sentence."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from underpaint.cli.train.commands import app

RUNNER = CliRunner()


@pytest.mark.parametrize(
    "arguments",
    [
        ["target", "--resolution", "99"],
        ["tokenizer", "--steps", "0"],
        ["tokenizer", "--minutes", "-1"],
        ["tokenizer", "--device", "tpu"],
        ["judge", "--threads", "0"],
        ["draw", "--scenes", "0"],
        ["draw", "--greedy-share", "2"],
        ["drafter", "--drawn-share", "0.5"],
        ["restorer"],
    ],
)
def test_bad_input_exits_with_2(arguments: list[str]) -> None:
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 2
    assert result.output.strip()


def test_an_absent_tokenizer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("underpaint.models.train.pictures.family_pictures", lambda family, report: None)
    result = RUNNER.invoke(app, ["target", "--tokenizer", str(tmp_path / "none.pt"), "--tokens", str(tmp_path)])
    assert result.exit_code == 2
    assert "underpaint train tokenizer" in result.output


def test_every_recipe_is_listed() -> None:
    result = RUNNER.invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in ("tokenizer", "target", "guided", "draw", "drafter", "judge"):
        assert name in result.output
