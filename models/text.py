"""The condition of the embedded models: caption words to caption features."""

import torch
from torch import Tensor, nn

from underpaint.models.transformer import CaptionEmbedder, Transformer
from underpaint.models.typed import call
from underpaint.zoo.prompts import PAD_WORD


class WordEncoder(nn.Module):
    """One learnt vector a word; it stands where a published model has a text encoder.

    `words` counts the vocabulary, the pad word (id 0) included.
    """

    def __init__(self, words: int, caption_dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, caption_dim)
        nn.init.normal_(self.embedding.weight)

    def forward(self, word_ids: Tensor) -> Tensor:
        """int64 [B, cls_token_num] to caption features [B, cls_token_num, caption_dim]."""
        return call(self.embedding, word_ids)


def caption_features(words: WordEncoder, transformer: Transformer, word_ids: Tensor) -> Tensor:
    """Caption features [B, cls_token_num, caption_dim]; a row of pads alone becomes `uncond_embedding`."""
    embedder = transformer.cls_embedding
    if not isinstance(embedder, CaptionEmbedder):
        raise TypeError("captions need a model of type 't2i'; this one takes class labels")
    absent = (word_ids == PAD_WORD).all(dim=1)[:, None, None]
    return torch.where(absent, embedder.uncond_embedding, words(word_ids))
