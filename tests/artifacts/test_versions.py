"""Formats of files: a newer one asks for a newer version, an older one for what makes the file again."""

import json
from pathlib import Path

import pytest

from underpaint.artifacts import manifest, model_index
from underpaint.artifacts.cost_curve import FORMAT as CURVE_FORMAT
from underpaint.artifacts.cost_curve import read_cost_curve
from underpaint.artifacts.install import install_hint
from underpaint.artifacts.results import read_results
from underpaint.artifacts.strict_json import check_format


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (4, "expected format 3, got 4: a newer version wrote it; install a newer underpaint"),
        (2, "expected format 3, got 2: an older version wrote it; make it again"),
        (0, "expected format 3, got 0; make it again"),
        (None, "expected format 3, got none; make it again"),
        ("3", "expected format 3, got '3'; make it again"),
        (3.0, "expected format 3, got 3.0; make it again"),
        (True, "expected format 3, got True; make it again"),
    ],
)
def test_what_to_do_depends_on_which_version_wrote_it(found: object, told: str) -> None:
    with pytest.raises(ValueError, match="expected format") as refused:
        check_format(found, 3, "make it again")
    assert str(refused.value) == told
    check_format(3, 3, "make it again")


def test_a_future_file_is_not_called_an_old_one(tmp_path: Path) -> None:
    newer = "a newer version wrote it; install a newer underpaint"
    (tmp_path / "target.json").write_text(json.dumps({"format": manifest.FORMAT + 1}))
    (tmp_path / model_index.INDEX).write_text(json.dumps({"format": model_index.INDEX_FORMAT + 1}))
    curve = {"format": CURVE_FORMAT + 1, "something": "else"}
    (tmp_path / "curve.json").write_text(json.dumps(curve))
    for read, name in (
        (manifest.read, "target.json"),
        (lambda path: model_index.read_index(path.parent), model_index.INDEX),
        (read_cost_curve, "curve.json"),
    ):
        with pytest.raises(ValueError, match=newer) as refused:
            read(tmp_path / name)
        assert str(tmp_path / name) in str(refused.value)
        assert "again" not in str(refused.value)
    (tmp_path / "results.json").write_text(json.dumps({"results_version": 2}))
    with pytest.raises(ValueError, match="install a newer underpaint"):
        read_results(tmp_path / "results.json")


def test_hints_of_installation_are_those_of_this_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_hint("cpu", "train", root=tmp_path) == "pip install 'underpaint[cpu,train]'"
    (tmp_path / "pyproject.toml").touch()
    assert install_hint("cpu", root=tmp_path) == f"pip install -e '{tmp_path}[cpu]'"
    monkeypatch.chdir(tmp_path)
    assert install_hint("cpu", root=tmp_path) == "pip install -e '.[cpu]'"
