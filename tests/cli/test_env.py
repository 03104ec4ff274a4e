"""`underpaint env`: what a bug report says."""

import json
import re
from pathlib import Path

import pytest

import underpaint
from tests.cli.program import run_program
from underpaint.artifacts.model_index import read_index
from underpaint.zoo.load import FOLDER


def test_it_tells_versions_engines_extras_and_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_program("env --json -", tmp_path, monkeypatch)
    assert ran.code == 0, ran.err
    environment = json.loads(ran.out)
    assert environment["underpaint"] == underpaint.__version__
    assert {"processor", "cores", "python", "numpy"} <= environment["machine"].keys()
    assert environment["engines"]["onnxruntime"]
    assert environment["extras"]["cpu"] == "installed"
    index = read_index(FOLDER)
    assert index.hashes(index.models).items() <= environment["models"].items()
    monkeypatch.setenv("COLUMNS", "200")  # in fewer a hash is folded
    plain = run_program("env", tmp_path, monkeypatch)
    assert plain.code == 0
    assert re.search(rf"^ *underpaint +{re.escape(underpaint.__version__)}", plain.out, re.MULTILINE)
    assert environment["models"]["target64"] in plain.out
    assert list(tmp_path.iterdir()) == []


def test_missing_models_are_part_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("underpaint.zoo.load.FOLDER", tmp_path / "absent")
    ran = run_program("env --json -", tmp_path, monkeypatch)
    assert ran.code == 0, ran.err
    assert "no folder" in json.loads(ran.out)["models"]["error"]
