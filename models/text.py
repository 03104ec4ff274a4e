"""A target that is conditioned on the words of a caption: what the shipped models are trained as."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Conditioner, Decoder, initialise
from underpaint.models.typed import call
from underpaint.zoo.textured_prompts import PAD_WORD


class WordEncoder(nn.Module):
    """One learnt vector a word; it stands where a published model has a text encoder.

    `words` counts the vocabulary, the pad word (id 0) included.
    """

    def __init__(self, words: int, caption_dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, caption_dim)
        nn.init.normal_(self.embedding.weight)

    def forward(self, word_ids: Tensor) -> Tensor:
        """int64 [B, prefix] to caption features [B, prefix, caption_dim]."""
        return call(self.embedding, word_ids)


class CaptionedTarget(nn.Module):
    """Words, their projection and a decoder of LlamaGen's kind, trained together.

    config: of the decoder, whose condition comes from outside; its `prefix` words are a caption.
    """

    def __init__(self, config: DecoderConfig, caption_dim: int, words: int) -> None:
        super().__init__()
        self.words = WordEncoder(words, caption_dim)
        self.conditioner = Conditioner(caption_dim, config.dim, config.prefix, activation=True)
        self.decoder = Decoder(config)
        initialise(self.conditioner)
        initialise(self.decoder)
        nn.init.zeros_(self.decoder.head.weight)
        nn.init.normal_(self.conditioner.absent, std=caption_dim**-0.5)
        self.conditioner.absent.requires_grad_(False)

    @property
    def caption_dim(self) -> int:
        """Width of caption features."""
        return self.words.embedding.embedding_dim

    def features(self, word_ids: Tensor) -> Tensor:
        """Caption features [B, prefix, caption_dim]; a row of pads alone becomes those of no condition."""
        absent = (word_ids == PAD_WORD).all(dim=1)[:, None, None]
        return torch.where(absent, self.conditioner.absent, self.words(word_ids))

    def condition(self, word_ids: Tensor) -> Tensor:
        """Embedded rows [B, prefix, D] of word ids int64 [B, prefix]."""
        return self.conditioner.embed(self.features(word_ids))

    def forward(self, codes: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features, [B, cells, ...], of codes int64 [B, cells] under word ids int64 [B, prefix]."""
        logits, features = self.decoder(codes[:, :-1], self.condition(word_ids))
        return logits, features


@torch.no_grad()
def with_condition_table(target: CaptionedTarget, image_start_ids: tuple[int, ...] = ()) -> Decoder:
    """The target's decoder with a table of its own for the condition: a row of each word, then those of no caption.

    image_start_ids: words that end every caption of this decoder, such as the one that tells the pictures' side.
    """
    config = replace(target.decoder.config, image_start_ids=image_start_ids)
    rows = torch.cat(
        [target.conditioner.embed(target.words.embedding.weight), target.conditioner.embed(target.conditioner.absent)]
    )
    found = Decoder(replace(config, condition="table", cond_ids=len(rows), uncond_rows=config.prefix))
    found.load_state_dict({**target.decoder.state_dict(), "conditions.weight": rows})
    return found.eval()


def drafter_config(target: DecoderConfig) -> DecoderConfig:
    """EAGLE's drafter of a target (arXiv 2401.15077, section 4): one of its layers on [feature; embedding]."""
    return replace(target, layers=1, condition="none", cond_ids=0, drafter=True, fc_bias=False)


def new_drafter(target: Decoder) -> Decoder:
    """A drafter with random weights of its own, and its target's codes and head, which are not learnt again.

    At each position it reads the target's feature of the token before and the embedding of the token itself, and
    predicts the feature that the target will have there; the target's own head turns it into the next token's logits.
    From the second level of a draft on, it reads its own predictions. The first position pairs the last condition
    position's feature with the first code.
    """
    drafter = Decoder(drafter_config(target.config))
    initialise(drafter)
    share_ends(drafter, target)
    return drafter


def share_ends(drafter: Decoder, target: Decoder) -> None:
    """Let a drafter read its target's codes and head. Raises ValueError on another width."""
    if drafter.config.dim != target.config.dim:
        raise ValueError(f"the drafter is {drafter.config.dim} wide, its target {target.config.dim}")
    drafter.codes, drafter.head = target.codes, target.head
    for part in (drafter.codes, drafter.head):
        part.requires_grad_(False)
