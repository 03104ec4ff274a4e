"""One small comparison, recorded, for all tests of pages."""

from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.made_once import made_once
from underpaint.cli.app import app

METHODS = ("ar", "eagle2", "adt+lantern", "zipar", "mulo-islands")
COMMAND = ("compare", "--prompts-count", "1", "--methods", ",".join(METHODS))


def compare(place: Path, models: Path) -> None:
    """Drawn without a recording, then recorded."""
    command = [*COMMAND, "--models", str(models), "--out", str(place)]
    assert CliRunner().invoke(app, command).exit_code == 0
    drawings = (place / "drawings.jsonl").read_bytes()
    assert not (place / "replays.jsonl").exists()
    assert CliRunner().invoke(app, [*command, "--save-replay", "1"]).exit_code == 0
    assert (place / "drawings.jsonl").read_bytes() == drawings, "recording must leave drawings and their timings alone"
    done = CliRunner().invoke(app, ["report", str(place)])
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, small_models: Path) -> Path:
    return made_once(tmp_path_factory.getbasetemp(), "compared", partial(compare, models=small_models))
