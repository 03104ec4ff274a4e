"""Models of a few hundred weights, and token sets to match."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.text import CaptionedTarget
from underpaint.training.grids import STRIDE
from underpaint.training.loop import CHECKPOINT
from underpaint.training.tokens import TokenSet
from underpaint.zoo.textured_prompts import TEXTURED_WORD_SLOTS, TEXTURED_WORDS

TINY = DecoderConfig(dim=32, layers=2, heads=2, hidden=96, vocab_size=24, grid_side=4, prefix=8, condition="external")
CAPTION_DIM = 12


def tiny_target(seed: int = 0, config: DecoderConfig = TINY) -> CaptionedTarget:
    """A target whose head is not zero, so that logits say something."""
    torch.manual_seed(seed)
    model = CaptionedTarget(config, CAPTION_DIM, TEXTURED_WORDS)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval()


def save_target(path: Path, target: CaptionedTarget, grids: Sequence[int] = ()) -> Path:
    """Write a target as `train_target` leaves one. grids: that it was trained for, its own where none is named."""
    config = target.decoder.config
    sides = list(grids or (config.grid_side,))
    described = {"kind": "target", "resolution": config.grid_side * STRIDE, "grids": sides}
    described |= {"words": target.words.embedding.num_embeddings, "caption_dim": target.caption_dim}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"config": described | {"decoder": asdict(config)}, "model": target.state_dict()}, path)
    return path


def save_exportable(runs: Path) -> Path:
    """Write a target of 64 px, asked in the words of textured scenes, where `underpaint export target` reads it."""
    config = replace(TINY, grid_side=8, prefix=TEXTURED_WORD_SLOTS)
    return save_target(runs / "guided" / CHECKPOINT, CaptionedTarget(config, CAPTION_DIM, TEXTURED_WORDS))


def tiny_tokens(scenes: int = 40, seed: int = 0) -> TokenSet:
    """Learnable codes: every row counts upwards from its first word."""
    random = np.random.default_rng(seed)
    words = random.integers(1, 20, size=(scenes, 8))
    codes = (words[:, :1] + np.arange(TINY.cells)) % TINY.vocab_size
    return TokenSet(codes.astype(np.int16), words.astype(np.int64))
