"""The prompt grammars by family: what folders of models are asked in, and what is chosen where nothing was typed."""

from dataclasses import replace
from pathlib import Path
from shutil import copyfile

import numpy as np
import pytest
from typer.testing import CliRunner

from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_index import INDEX, read_index
from underpaint.cli.app import app
from underpaint.runtime.conditions import parse_condition
from underpaint.runtime.evaluation.comparison import choose_prompts
from underpaint.zoo.load import FOLDER, SCENES, check_tables, takes_grammar
from underpaint.zoo.textured_prompts import (
    EXAMPLE,
    MAIN_SLOTS,
    TEXTURED_SLOTS,
    THINGS,
    held_out_things,
    parse_textured,
    sample_textured,
    side_word_id,
    textured_word_ids,
)


def test_the_grammar_reads_what_it_says_and_what_it_samples() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        prompt = sample_textured(rng)
        assert parse_textured(prompt.caption()) == prompt
        assert set(prompt.attributes()) == set(TEXTURED_SLOTS)
        assert all(value in TEXTURED_SLOTS[slot] for slot, value in prompt.attributes().items())
    assert {*MAIN_SLOTS} <= set(TEXTURED_SLOTS)
    assert parse_textured(EXAMPLE).caption().startswith(EXAMPLE)


def test_a_textured_prompt_is_of_pictures_of_any_side() -> None:
    text = "a woolly fox left of an outlined pumpkin, with a honeybee, on green foliage, bright sky"
    condition = parse_condition(text, "prompt_grammar")
    for side in (64, 128, 256):
        assert textured_word_ids(parse_textured(text), side).tolist() == [*condition.ids, side_word_id(side)]
    assert condition.attributes["other"] == "pumpkin"
    with pytest.raises(ValueError, match=r"side: expected one of 64, 128, 256 px, got 96"):
        side_word_id(96)


def test_a_wrong_word_names_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match=r"unknown word 'woolie'; did you mean 'woolly'"):
        parse_condition("a woolie fox left of a pumpkin", "prompt_grammar")


def test_chosen_prompts_are_of_training_pairs_and_show_every_thing_once_a_round() -> None:
    chosen = choose_prompts(48)
    assert chosen == choose_prompts(48)
    assert chosen[8:] == choose_prompts(40, 8)
    for first in (0, len(THINGS)):
        assert {one.attributes["thing"] for one in chosen[first : first + len(THINGS)]} == set(THINGS)
    held_out_pairs = set(held_out_things())
    for one in chosen:
        slots = one.attributes
        assert not {(slots["thing"], slots["finish"]), (slots["other"], slots["other_finish"])} & held_out_pairs


@pytest.mark.parametrize(("family", "named"), [("emoji-scenes", "the family 'emoji-scenes'"), ("", "no named family")])
def test_a_folder_of_another_grammar_is_refused(tmp_path: Path, family: str, named: str) -> None:
    index = replace(read_index(FOLDER), family=family)
    with pytest.raises(
        ManifestError, match=f"expected models of the family 'textured-scenes', .* got models of {named};"
    ):
        takes_grammar(index)
    assert not takes_grammar(replace(index, condition="class"))
    for file in FOLDER.iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX).write_text((FOLDER / INDEX).read_text().replace('"textured-scenes"', f'"{family}"'))
    done = CliRunner().invoke(
        app, ["generate", "a fox, an owl", "--models", str(tmp_path), "--out", str(tmp_path / "x.png")]
    )
    assert done.exit_code == 2
    assert f"got models of {named}" in " ".join(done.stderr.split())
    assert not (tmp_path / "x.png").exists()


def test_a_folder_of_other_words_is_refused(tmp_path: Path) -> None:
    check_tables(FOLDER)
    check_tables(tmp_path)
    path = tmp_path / SCENES
    copyfile(FOLDER / SCENES, path)
    check_tables(tmp_path)
    path.write_text(path.read_text().replace("pumpkin", "agave"))
    with pytest.raises(ManifestError, match=r"expected the words of this version's textured-scenes, got others"):
        check_tables(tmp_path)
    path.write_text("{")
    with pytest.raises(ManifestError, match="damaged"):
        check_tables(tmp_path)
