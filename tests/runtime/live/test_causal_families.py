"""Families in the classes of text models: marks, prompts in words, second rows, and folders of other class names."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
import torch

from tests.runtime.live.tiny_models import CODES, EOL, LAST, MODELS, family_for, grid_of
from underpaint.runtime.live.causal_families import emu3_5, liquid, simplear
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.load import open_live
from underpaint.runtime.live.model import LiveModelError


class Words:
    """A tokenizer of words: their lengths, and marks by name; as many ids as the text's."""

    marks: ClassVar[dict[str, int]] = {"<boi>": 7, "<|soi|>": 121, "<|t2i|>": 90, "<|extra_203|>": 5}

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        for mark in self.marks:
            text = text.replace(mark, f" {mark} ")
        return [self.marks.get(word, len(word)) for word in text.split()]

    def get_vocab(self) -> dict[str, int]:
        return self.marks

    def __len__(self) -> int:
        return LAST[0]


def made(name: str, processor=None):
    tiny = MODELS[name]()
    fast = accelerate(tiny.model, family=family_for(name), grid=grid_of(name), processor=processor)
    return tiny, fast


@pytest.mark.parametrize(
    ("name", "prompt", "second"),
    [
        ("liquid", (1, 3, 7, 8, 2, 5, 5, 2, 4, 12, 7), (15, 7)),
        ("simplear", (90, 1, 6, 9, 5, 2, 1, 3, 7, 121), None),
        (
            "emu3.5",
            (5, 3, 3, 1, 7, 9, 3, 3, 5, 5, 1, 3, 7, 10, 13, 120, 3, 121),
            (5, 3, 3, 1, 7, 10, 5, 10, 13, 120, 3, 121),
        ),
    ],
)
def test_words_become_the_authors_prompt(name, prompt, second):
    _, fast = made(name, Words())
    condition = fast.condition("a red bicycle")
    assert condition.ids == prompt
    row = fast.live.uncond(condition.ids)
    assert row == second or (second is None and (row[0], row[-1]) == (90, 121) and len(row) == 23)
    assert fast.generate("a red bicycle", temperature=0).token_ids.size >= grid_of(name)[0] ** 2


def test_lines_end_as_each_model_ends_them():
    for name, ends in (("emu3.5", [EOL] * 5 + [97]), ("lumina-mgpt-2", [EOL] * 8 + [97])):
        tiny, fast = made(name)
        ids = fast.generate(tiny.prompt, seed=1).token_ids.tolist()
        assert [each for each in ids if each < LAST[0]] == ends
        assert ids[-1] == 97


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: liquid(MODELS["liquid"]().model), "expected 8,192 image codes behind the text's ids"),
        (lambda: simplear(MODELS["simplear"]().model), "expected 64,000 image codes"),
        (lambda: emu3_5(MODELS["emu3.5"]().model), "expected 131,072 image codes"),
        (lambda: accelerate(MODELS["liquid"]().model), "expected one of JanusForConditionalGeneration"),
        (
            lambda: accelerate(MODELS["lumina-mgpt-2"]().model, family=family_for("lumina-mgpt-2"), grid=(6, 6)),
            "expected sides that 4 divides, got 6 x 6",
        ),
        (
            lambda: accelerate(MODELS["lumina-mgpt-2"]().model, family=family_for("lumina-mgpt-2"), grid=(12, 8)),
            "expected <reserved08803> in the tokenizer",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused(call, expected):
    with pytest.raises(LiveModelError, match=expected):
        call()


@pytest.mark.parametrize(("family", "name", "own"), [("simplear", "simplear", "SimpARForCausalLM")])
def test_folders_that_name_their_authors_class_are_loaded(tmp_path, monkeypatch, family, name, own):
    from underpaint.runtime.live import families

    tiny = MODELS[name]()
    tiny.model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "architectures": [own]}))
    monkeypatch.setitem(families.FAMILIES, family, family_for(name))
    opened = open_live(tmp_path, family, "6x6")
    assert opened.live.codes == CODES
    assert not any(weight.requires_grad for weight in opened.live.body.parameters()), "a drafter's loss reaches them"
    assert torch.equal(opened.live.embed_codes(torch.arange(CODES)), tiny.model.get_input_embeddings().weight[LAST])
    with pytest.raises(LiveModelError, match="expected a model class of transformers"):
        open_live(tmp_path, None, "6x6")
