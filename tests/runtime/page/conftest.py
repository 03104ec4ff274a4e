"""One small comparison by the shipped models, recorded, for all tests of pages."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.made_once import made_once
from underpaint.cli.app import app

METHODS = ("ar", "eagle2", "adt+lantern", "zipar", "mulo-islands")
COMMAND = ("compare", "--prompts-count", "1", "--methods", ",".join(METHODS))


def compare(place: Path) -> None:
    """Drawn without a recording, then recorded."""
    assert CliRunner().invoke(app, [*COMMAND, "--out", str(place)]).exit_code == 0
    drawn = (place / "drawings.jsonl").read_bytes()
    assert not (place / "replays.jsonl").exists()
    assert CliRunner().invoke(app, [*COMMAND, "--out", str(place), "--save-replay", "1"]).exit_code == 0
    assert (place / "drawings.jsonl").read_bytes() == drawn, "recording must leave drawings and their timings alone"
    done = CliRunner().invoke(app, ["report", str(place)])
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, cost_curves: None) -> Path:
    return made_once(tmp_path_factory.getbasetemp(), "compared", compare)
