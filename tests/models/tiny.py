"""Models of a few hundred weights, and token sets to match."""

import numpy as np
import torch

from underpaint.models.train.target import Target
from underpaint.models.train.tokens import TokenSet
from underpaint.models.transformer import TransformerConfig

TINY = TransformerConfig(
    dim=32,
    n_layer=2,
    n_head=2,
    vocab_size=24,
    block_size=16,
    model_type="t2i",
    cls_token_num=8,
    caption_dim=12,
    multiple_of=16,
)


def tiny_target(seed: int = 0) -> Target:
    """A target whose head is not zero, so that logits say something."""
    torch.manual_seed(seed)
    model = Target(TINY)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval()


def tiny_tokens(scenes: int = 40, seed: int = 0) -> TokenSet:
    """Learnable codes: every row counts upwards from its first word."""
    random = np.random.default_rng(seed)
    words = random.integers(1, 20, size=(scenes, 8))
    codes = (words[:, :1] + np.arange(TINY.block_size)) % TINY.vocab_size
    return TokenSet(codes.astype(np.int16), words.astype(np.int64))
