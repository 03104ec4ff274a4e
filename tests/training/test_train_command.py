"""`underpaint train` turns bad input into exit code 2 and a sentence."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from underpaint.cli.train.commands import app

RUNNER = CliRunner()


@pytest.mark.parametrize(
    "arguments",
    [
        ["tokenizer", "--steps", "0"],
        ["tokenizer", "--minutes", "-1"],
        ["tokenizer", "--device", "tpu"],
        ["judge", "--threads", "0"],
        ["tokenizer", "--scenes", "emoji"],
        ["target"],
        ["restorer"],
    ],
)
def test_bad_input_exits_with_2(arguments: list[str]) -> None:
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 2
    assert result.output.strip()


def test_an_absent_tokenizer_is_named(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["superres", "--tokenizer", str(tmp_path / "none.pt"), "--tokens", str(tmp_path)])
    assert result.exit_code == 2
    assert "underpaint train tokenizer" in result.output


def test_every_recipe_is_listed() -> None:
    result = RUNNER.invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in ("tokenizer", "judge", "sampler", "superres", "world"):
        assert name in result.output
