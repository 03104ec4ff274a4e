"""Conditions: prompts of the grammar, ids, files of features."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from underpaint.runtime.conditions import of_words, parse_condition
from underpaint.runtime.engines.context import EngineError
from underpaint.zoo.textured_prompts import parse_textured, scene_word_ids


def test_conditions_are_ids_or_features(tmp_path: Path) -> None:
    path = tmp_path / "cat.npy"
    np.save(path, np.zeros((3, 12), np.float16))
    assert parse_condition("207", "ids").ids == (207,)
    assert parse_condition("1,2,3", "ids").ids == (1, 2, 3)
    condition = parse_condition(str(path), "ids")
    assert (condition.ids, condition.features, condition.caption()) == ((), path, str(path))


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
        parse_condition(str(tmp_path / "cat.npy"), "ids")


@pytest.mark.parametrize("condition", ["", "cat", "1,,2", "1.5", "\u0661", "1_0", "99999999999999999999"])
def test_what_is_no_condition_is_refused(condition: str) -> None:
    with pytest.raises(EngineError, match="expected a class such as 207, ids with commas"):
        parse_condition(condition, "ids")


def test_a_prompt_of_the_grammar_is_its_words_ids() -> None:
    prompt = parse_textured("a stone panda above an owl")
    condition = parse_condition("a stone panda above an owl", "prompt_grammar")
    assert condition == of_words(prompt)
    assert condition.ids == tuple(scene_word_ids(prompt))
    assert condition.caption() == prompt.caption()
    assert condition.noise_key == zlib.crc32(prompt.caption().encode())
    assert condition.attributes["thing"] == "panda"


def test_an_unknown_word_or_kind_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="panda"):
        parse_condition("a stone pandda, an owl", "prompt_grammar")
    with pytest.raises(EngineError, match=r"there is no kind 'clas'.*class"):
        parse_condition("1", "clas")
