"""Models of a few hundred weights, and token sets to match."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from underpaint.models.decoder_config import DecoderConfig
from underpaint.models.text import CaptionedTarget
from underpaint.models.train.tokens import TokenSet
from underpaint.zoo.prompts import WORDS

TINY = DecoderConfig(dim=32, layers=2, heads=2, hidden=96, vocab_size=24, grid_side=4, prefix=8, condition="external")
CAPTION_DIM = 12


def tiny_target(seed: int = 0, config: DecoderConfig = TINY) -> CaptionedTarget:
    """A target whose head is not zero, so that logits say something."""
    torch.manual_seed(seed)
    model = CaptionedTarget(config, CAPTION_DIM)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval()


def save_target(path: Path, target: CaptionedTarget) -> Path:
    """Write a target as `underpaint train target` leaves one."""
    described = {"kind": "target", "resolution": 64, "words": WORDS, "caption_dim": target.caption_dim}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"config": described | {"decoder": asdict(target.decoder.config)}, "model": target.state_dict()}, path)
    return path


def tiny_tokens(scenes: int = 40, seed: int = 0) -> TokenSet:
    """Learnable codes: every row counts upwards from its first word."""
    random = np.random.default_rng(seed)
    words = random.integers(1, 20, size=(scenes, 8))
    codes = (words[:, :1] + np.arange(TINY.cells)) % TINY.vocab_size
    return TokenSet(codes.astype(np.int16), words.astype(np.int64))
