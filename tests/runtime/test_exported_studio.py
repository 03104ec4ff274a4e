"""What an exported model is asked for."""

from pathlib import Path

import numpy as np
import pytest

from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.exported_target import Condition


def test_conditions_are_ids_or_features(tmp_path: Path) -> None:
    path = tmp_path / "cat.npy"
    np.save(path, np.zeros((3, 12), np.float16))
    assert Condition.parse("207").ids == (207,)
    assert Condition.parse("1,2,3").ids == (1, 2, 3)
    found = Condition.parse(str(path))
    assert (found.ids, found.features, found.caption()) == ((), path, str(path))


def no_file(path: Path) -> None:
    """Writes nothing."""


def an_empty_file(path: Path) -> None:
    path.touch()


def text(path: Path) -> None:
    path.write_text("a red cat")


def words(path: Path) -> None:
    np.save(path, np.array(["cat"]))


def one_row(path: Path) -> None:
    np.save(path, np.zeros(12))


def no_numbers(path: Path) -> None:
    np.save(path, np.full((3, 12), np.nan))


@pytest.mark.parametrize("write", [no_file, an_empty_file, text, words, one_row, no_numbers])
def test_a_file_without_features_is_named(tmp_path: Path, write) -> None:
    write(tmp_path / "cat.npy")
    with pytest.raises(EngineError, match=r"cat\.npy"):
        Condition.parse(str(tmp_path / "cat.npy"))


@pytest.mark.parametrize("condition", ["", "cat", "1,,2", "1.5"])
def test_what_is_no_condition_is_refused(condition: str) -> None:
    with pytest.raises(EngineError, match="expected a class, ids with commas"):
        Condition.parse(condition)
