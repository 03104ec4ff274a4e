"""The grammar of textured scenes: captions read back, the other side of a relation is the same scene."""

import numpy as np
import pytest

from underpaint.training.data.textured_scenes import textured_scene
from underpaint.zoo.textured_prompts import (
    COMPANIONS,
    TEXTURED_SLOTS,
    TEXTURED_WORD_SLOTS,
    TEXTURED_WORDS,
    THINGS,
    TexturedPrompt,
    held_out_things,
    parse_textured,
    seen_things,
    textured_word_ids,
)


def test_captions_read_back() -> None:
    for index in range(500):
        prompt = textured_scene(2, index, "every").prompt
        assert parse_textured(prompt.caption()) == prompt
        assert parse_textured(prompt.caption().upper().replace(",", " ; ")) == prompt


def test_captions_are_english() -> None:
    caption = TexturedPrompt("fox", "owl", "outlined", "stone", companion="honeybee").caption()
    assert caption.startswith("an outlined fox left of a stone owl, with a honeybee, on ")


def test_a_relation_told_from_the_other_side() -> None:
    for relation, canonical in (("right of", "left of"), ("below", "above"), ("in front of", "behind")):
        actual = parse_textured(f"a stone fox {relation} a woolly owl on green brick")
        expected = TexturedPrompt("owl", "fox", "woolly", "stone", canonical, ground="brick", colour="green")
        assert actual == expected


def test_what_is_left_out_takes_its_default() -> None:
    assert parse_textured("fox, teddy bear") == TexturedPrompt("fox", "teddy bear")
    assert parse_textured("fox and stone owl").other_finish == "stone"
    assert parse_textured("fox and owl lit from the right").light == "right"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names two things"),
        ("a stone fox", "names two things"),
        ("fox owl panda", "too many things"),
        ("fox owl brick cloth", "too many values for ground: 'brick' and 'cloth'"),
        ("stone outlined fox owl", "two finishes for one thing"),
        ("fox owl stone", "no thing after it"),
        ("a woolly f\u00f3x left of an outlined pumpkin", "unknown word 'f\u00f3x'; did you mean 'fox'"),
        ("a woolly fo\u0301x left of an outlined pumpkin", "unknown word 'fo\u0301x'; did you mean 'fox'"),
        ("fox owle", "unknown word 'owle'; did you mean 'owl'"),
    ],
)
def test_bad_captions_say_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_textured(text)


def test_word_ids_tell_every_prompt_and_side_apart() -> None:
    prompt = TexturedPrompt("fox", "owl")
    row = textured_word_ids(prompt, 64)
    assert row.shape == (TEXTURED_WORD_SLOTS,)
    assert (row > 0).all()
    assert row.max() < TEXTURED_WORDS
    other = textured_word_ids(prompt, 128)
    np.testing.assert_array_equal(row != other, [False] * (TEXTURED_WORD_SLOTS - 1) + [True])
    swapped = textured_word_ids(TexturedPrompt("owl", "fox"), 64)
    assert not set(row[[1, 4]]) & set(swapped[[1, 4]]), "a thing's word also says which of the two it is"
    assert len({tuple(textured_word_ids(textured_scene(0, i, "every").prompt, 64)) for i in range(200)}) > 190
    with pytest.raises(ValueError, match="expected one of 64, 128, 256 px"):
        textured_word_ids(prompt, 96)


def test_tables_agree() -> None:
    assert not set(THINGS) & set(COMPANIONS)
    assert set(seen_things()).isdisjoint(held_out_things())
    assert {thing for thing, _ in seen_things()} == set(THINGS)
    flat = [value for slot, values in TEXTURED_SLOTS.items() if not slot.startswith("other") for value in values]
    assert len(flat) == len(set(flat)), "a word in two slots cannot be read"
    with pytest.raises(ValueError, match="prompt ground: 'mud' is unknown"):
        TexturedPrompt("fox", "owl", ground="mud")
