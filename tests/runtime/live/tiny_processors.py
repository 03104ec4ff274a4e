"""Processors of `transformers` for the tiny models: every word is one id, and marks are those that the models know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

UNKNOWN = 99
WORDS = {"a": 100, "red": 101, "bicycle": 102, "blue": 103}
_CHAT = "{% for one in messages %}{{ one.content[0].text }}{% endfor %}"


def tokenizer(
    marks: Mapping[str, int],
    begin: str | None = None,
    words: Mapping[str, int] = WORDS,
    unknown: int = UNKNOWN,
    **named: str,
) -> Any:
    """A tokenizer of words and marks; `named` says which mark is the processor's `boi_token` and so on."""
    word_tokenizer = Tokenizer(WordLevel({"<unk>": unknown, **words, **marks}, unk_token="<unk>"))
    word_tokenizer.pre_tokenizer = Whitespace()
    if begin is not None:
        word_tokenizer.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, marks[begin])])
    fast_tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer, unk_token="<unk>", bos_token=begin, extra_special_tokens=named
    )
    fast_tokenizer.add_special_tokens({"additional_special_tokens": [*marks]}, replace_extra_special_tokens=False)
    return fast_tokenizer


def janus() -> Any:
    marks = {"<begin>": 0, "<begin_of_image>": 1, "<end_of_image>": 6, "<image_placeholder>": 5}
    named = {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
    images = transformers.JanusImageProcessor()
    return transformers.JanusProcessor(images, tokenizer(marks, "<begin>", **named), chat_template=_CHAT)


def emu3() -> Any:
    marks = {
        "<|extra_203|>": 0,
        "<|image start|>": 118,
        "<|image end|>": 119,
        "<image>": 120,
        "<|image token|>": 121,
        "<|extra_201|>": 122,
    }
    named = {
        "image_token": "<image>",
        "boi_token": "<|image start|>",
        "eoi_token": "<|image end|>",
        "image_wrapper_token": "<|image token|>",
        "eof_token": "<|extra_201|>",
    }
    text = tokenizer(marks, **named)
    text.bos_token = "<|extra_203|>"
    return transformers.Emu3Processor(transformers.Emu3ImageProcessor(), text)


def chameleon() -> Any:
    marks = {"<s>": 0, "<image>": 120, "<racm3:break>": 121, "<eoss>": 122, "<reserved08706>": 123}
    named = {"image_token": "<image>", "boi_token": "<racm3:break>", "eoi_token": "<eoss>"}
    return transformers.ChameleonProcessor(transformers.ChameleonImageProcessor(), tokenizer(marks, "<s>", **named))


def glm_image() -> Any:
    marks = {"<begin>": 151, "<grid>": 152, "</grid>": 153, "<image>": 155, "<sop>": 64}
    named = {"image_token": "<image>", "grid_bos_token": "<grid>", "grid_eos_token": "</grid>"}
    text = tokenizer(marks, **named)
    text.bos_token = "<sop>"
    images = transformers.GlmImageImageProcessor()
    return transformers.GlmImageProcessor(images, text, chat_template=_CHAT)


PROCESSORS = {
    "janus": janus,
    "emu3": emu3,
    "chameleon": chameleon,
    "lumina-mgpt": chameleon,
    "glm-image": glm_image,
}
