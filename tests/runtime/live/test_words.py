"""Prompts in words: every family's template, by a processor of `transformers` that is built here."""

from __future__ import annotations

import pytest

from tests.runtime.live.tiny_models import MODELS, grid_of
from tests.runtime.live.tiny_processors import PROCESSORS, UNKNOWN
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModelError

WORDS = (100, 101, 102)
EXPECTED = {
    "janus": (0, *WORDS, 1),
    "emu3": (0, *WORDS, 118, *[UNKNOWN] * 3, 121),
    "chameleon": (0, *WORDS, 123, 121),
    # "Generate an image of 96x96 according to the following prompt:", a word or mark each, the prompt's own behind it
    "lumina-mgpt": (0, *[UNKNOWN] * 2, *[UNKNOWN] * 9, *WORDS, 123, 121, 96, 96),
    "glm-image": (*WORDS, 152, *[UNKNOWN] * 2, 153, 152, *[UNKNOWN] * 2, 153, 64),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_words_become_the_ids_that_the_authors_draw_from(name):
    fast = accelerate(MODELS[name]().model, family=name, grid=grid_of(name), processor=PROCESSORS[name]())
    assert fast.condition("a red bicycle").ids == EXPECTED[name]
    image = fast.generate("a red bicycle", temperature=0)
    assert image.drawing.tokens == fast.generate(EXPECTED[name], temperature=0).drawing.tokens
    assert fast.condition("a red bicycle", "blue").uncond_ids is not None


def test_another_models_processor_is_refused():
    fast = accelerate(MODELS["janus"]().model, processor=object())
    with pytest.raises(LiveModelError, match="expected the processor of a janus model, got object"):
        fast.generate("a red bicycle")


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_prompt_of_ids_without_the_mark_of_a_picture_is_refused(name):
    fast = accelerate(MODELS[name]().model, family=name, grid=grid_of(name))
    with pytest.raises(LiveModelError, match="which begin a picture"):
        fast.generate((0, *WORDS))
