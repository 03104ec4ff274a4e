"""The prompt grammar: every caption is read back, and what cannot be read says why."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.zoo import prompts
from underpaint.zoo.prompts import Prompt, parse

ALL = tuple(prompts.all_prompts())


def test_there_are_enough_distinct_concepts() -> None:
    names = [concept.name for concept in prompts.CONCEPTS]
    assert 104 <= len(names) == len(set(names)) <= 112
    assert len({concept.code_point for concept in prompts.CONCEPTS}) == len(names)
    assert all(1 <= len(name.split()) <= 3 for name in names)


def test_every_caption_is_read_back() -> None:
    assert len(ALL) == len(set(ALL)) == len(prompts.PAIRS) * 2 * 5 * 3 * 8
    for prompt in ALL:
        assert parse(prompt.caption()) == prompt


def test_word_rows_are_distinct_and_in_range() -> None:
    rows = np.stack([prompts.word_ids(prompt) for prompt in ALL])
    assert rows.shape == (len(ALL), prompts.WORD_SLOTS)
    assert rows.dtype == np.int64
    assert rows.min() == prompts.PAD_WORD
    assert rows.max() == prompts.WORDS - 1
    assert len(np.unique(rows, axis=0)) == len(ALL)
    # Every id is used, so an embedding of WORDS rows has no dead row.
    assert len(np.unique(rows)) == prompts.WORDS


def test_pads_stand_on_the_left_only() -> None:
    for prompt in ALL[::97]:
        row = prompts.word_ids(prompt)
        words = 5 + len(prompt.concept.split())
        assert (row[: prompts.WORD_SLOTS - words] == prompts.PAD_WORD).all()
        assert (row[prompts.WORD_SLOTS - words :] != prompts.PAD_WORD).all()
    assert (prompts.no_prompt() == prompts.PAD_WORD).all()


def test_word_ids_stay_what_trained_models_learnt() -> None:
    row = prompts.word_ids(parse("a small flat four leaf clover, right, on a graded teal background"))
    assert row.tolist() == [2, 130, 129, 131, 3, 6, 11, 19]


def test_defaults_fill_what_is_left_out() -> None:
    assert parse("panda") == Prompt("panda", "3d", "large", "centre", "plain", "sky")
    assert parse("a 3d red apple, left, on a sky background") == Prompt("red apple", place="left")


@pytest.mark.parametrize(
    "text",
    [
        "Small FLAT panda at the top on speckled mint.",
        "mint, speckled, top; panda flat small",
        "on a speckled mint background: a small flat panda at top!",
    ],
)
def test_order_case_and_punctuation_do_not_matter(text: str) -> None:
    assert parse(text) == Prompt("panda", "flat", "small", "top", "speckled", "mint")


def test_the_longest_concept_wins() -> None:
    assert parse("hot dog").concept == "hot dog"
    assert parse("green apple in the center").place == "centre"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the prompt is empty"),
        (" , .", "the prompt is empty"),
        ("a large 3d", "names no concept"),
        ("a panda and a koala", "'panda' and 'koala'"),
        ("a panda and a panda", "'panda' and 'panda'"),
        ("a small large panda", "two values for size: 'small' and 'large'"),
        ("a pandda on skyy", "unknown word 'pandda'; did you mean 'panda'.*unknown word 'skyy'; did you mean 'sky'"),
        ("a panda, leftt", "did you mean 'left'"),
        ("a hot on sky", "unknown word 'hot'; did you mean 'hot dog'"),
        ("a qqqqqqqq", "known: panda"),
    ],
)
def test_a_wrong_caption_says_why(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    try:
        prompt = parse(text)
    except ValueError:
        return
    assert parse(prompt.caption()) == prompt


def test_a_prompt_checks_its_fields() -> None:
    with pytest.raises(ValueError, match="prompt colour: 'violett' is unknown; did you mean 'violet'"):
        Prompt("panda", colour="violett")


def test_class_ids_follow_the_slots() -> None:
    prompt = Prompt(prompts.CONCEPT_NAMES[7], "flat", "large", "bottom", "graded", "slate")
    assert list(prompt.class_ids().items()) == [
        ("style", 1),
        ("concept", 7),
        ("size", 1),
        ("place", 3),
        ("texture", 1),
        ("colour", 7),
    ]


def test_held_out_pairs_leave_every_word_learnable() -> None:
    held_out, seen = set(prompts.held_out_pairs()), set(prompts.seen_pairs())
    assert held_out | seen == set(prompts.PAIRS)
    assert not held_out & seen
    assert 0.08 < len(held_out) / len(prompts.PAIRS) < 0.12
    assert len({concept for concept, _ in held_out}) == len(held_out)


def test_samples_follow_the_generator_and_the_pairs() -> None:
    drawn = [prompts.sample(np.random.default_rng(5), prompts.held_out_pairs()) for _ in range(2)]
    assert drawn[0] == drawn[1]
    rng = np.random.default_rng(6)
    many = [prompts.sample(rng, prompts.held_out_pairs()) for _ in range(400)]
    assert {(prompt.concept, prompt.style) for prompt in many} == set(prompts.held_out_pairs())
