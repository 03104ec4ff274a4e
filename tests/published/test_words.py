"""Prompts in words for exported models: captions by T5, and ids by the model's own tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.published.checkpoints import HEADS, SIDE, save_llamagen
from tests.published.text_models import OPTIONS, chameleon
from tests.runtime.live.tiny_processors import tokenizer as word_tokenizer
from underpaint.cli.app import app
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.published.caption_text import clean_caption
from underpaint.models.published.captions import CaptionEncoder
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.conditions import Condition, ConditionEncoder
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.pipeline import Pipeline

CLEANED = {
    "A Blue Porsche 356!": "a blue porsche 356!",
    "see https://example.com/a-b?x=1 and www.foo.org/bar now": "see ?x=1 and now",
    "<b>bold</b> text &amp; more": "bold text more",
    "this-is-my-cute-cat_of_mine": "this is my cute cat of mine",
    "photo.jpg of free shipping, page 12": "of",
    "a 1920x1080 wall\u2026 \u2013 \u201cquoted\u201d": 'a wall\u2026 - "quoted"',
}
"""By the authors' code, but for what mends broken encodings."""


@pytest.mark.parametrize("text", CLEANED)
def test_captions_are_cleaned_as_their_authors_do(text: str) -> None:
    assert clean_caption(text) == CLEANED[text]


@pytest.fixture
def t5(tmp_path: Path) -> Path:
    from transformers import T5Config, T5EncoderModel

    folder = tmp_path / "t5"
    word_tokenizer({}).save_pretrained(folder)
    torch.manual_seed(0)
    config = T5Config(vocab_size=128, d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    T5EncoderModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def tokenizer_folder(tmp_path: Path, tokenizer: Path) -> Path:
    """A copy of the tokenizer's folder, for a target beside it."""
    return Path(shutil.copytree(tokenizer, tmp_path / "out"))


def test_a_file_of_captions_loads_the_text_encoder_once(
    tmp_path: Path, t5: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_llamagen(tmp_path / "t2i.pt", captions=True)
    export_checkpoint(
        Request("llamagen-t2i", tmp_path / "t2i.pt", options=LoadOptions(heads=HEADS, grid_side=SIDE)), tokenizer_folder
    )
    loaded: list[Path] = []
    load = CaptionEncoder.__init__
    monkeypatch.setattr(CaptionEncoder, "__init__", lambda self, folder: loaded.append(folder) or load(self, folder))
    (tmp_path / "prompts.txt").write_text("a red bicycle\na blue bicycle\n")
    command = ["compare", "--prompts", str(tmp_path / "prompts.txt"), "--models", str(tokenizer_folder)]
    command += ["--methods", "jacobi-lookup", "--temperature", "0", "--tokenizer", str(t5)]
    for out in ("first", "second"):
        done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / out)])
        assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "first" / "compare.json").read_text())
    assert report["settings"]["prompts"] == ["a red bicycle", "a blue bicycle"]
    assert loaded == [t5]
    pipeline = Pipeline.open(tokenizer_folder)
    with pytest.raises(EngineError, match="name the model's tokenizer or text encoder: --tokenizer FOLDER"):
        pipeline.condition("a red bicycle")
    pipeline.read_words_by(t5)
    condition = pipeline.condition("A red <b>bicycle</b>")
    assert condition.features is not None
    expected = CaptionEncoder(t5).features("a red bicycle")
    np.testing.assert_array_equal(np.load(condition.features), expected)


@pytest.mark.parametrize("layout", ["anole", "lumina"])
def test_words_are_the_ids_that_chameleons_draw_from(tmp_path: Path, layout: str) -> None:
    chameleon(False, 4).save_pretrained(tmp_path / "model")
    marks = {"<s>": 1, "<racm3:break>": 51, "<reserved08706>": 55}
    words = {"a": 40, "red": 41, "bicycle": 42}
    tokenizer = word_tokenizer(marks, "<s>", words=words, unknown=43)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    options = OPTIONS if layout == "anole" else LoadOptions(grid_side=4, prefix=24, layout="lumina")
    export_checkpoint(Request("chameleon", tmp_path / "model", options=options, neighbours=5), tmp_path / "out")
    pipeline = Pipeline.open(tmp_path / "out")
    pipeline.read_words_by(tmp_path / "tokenizer")
    ids = pipeline.condition("a red bicycle").ids
    if layout == "anole":
        assert ids == (1, 40, 41, 42, 55, 51)
    else:
        # "Generate an image of 64x64 according to the following prompt:", then the prompt; marks are put behind it
        assert ids == (1, 43, 43, 43, 43, 43, 43, 43, 43, 43, 43, 43, 40, 41, 42, 55)
    pipeline.target(Condition("words", ids), pipeline.sampling)
    if layout == "anole":
        encoder = pipeline.high.encoder
        assert isinstance(encoder, ConditionEncoder)
        with pytest.raises(EngineError, match=r"expected ids that end with \[51\], which begin a picture, got \[55\]"):
            encoder.encode(Condition("no mark", (1, 40, 55)))
        assert encoder.example().tokens.shape[1] >= 2


def test_models_that_take_no_words_are_told(tmp_path: Path, tokenizer_folder: Path) -> None:
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    request = Request("llamagen-c2i", tmp_path / "c2i.pt", options=LoadOptions(heads=HEADS, grid_side=SIDE))
    export_checkpoint(request, tokenizer_folder)
    pipeline = Pipeline.open(tokenizer_folder)
    with pytest.raises(EngineError, match=r"expected a model that takes words .*got llamagen-c2i"):
        pipeline.read_words_by(tmp_path)
