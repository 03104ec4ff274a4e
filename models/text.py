"""A target conditioned on the words of a caption, as the shipped models are trained."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Conditioner, Decoder, initialise
from underpaint.models.typed import call
from underpaint.zoo.textured_prompts import PAD_WORD


class WordEncoder(nn.Module):
    """One learnt vector per word, instead of a text encoder; `words` is the vocabulary size, with pad word (id 0)."""

    def __init__(self, words: int, caption_dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, caption_dim)
        nn.init.normal_(self.embedding.weight)

    def forward(self, word_ids: Tensor) -> Tensor:
        """Convert word ids int64 [B, prefix] to caption features [B, prefix, caption_dim]."""
        return call(self.embedding, word_ids)


class CaptionedTarget(nn.Module):
    """Word vectors, their projection and a LlamaGen decoder, trained together.

    config: the config of the decoder, whose condition is external; a caption has `prefix` words.
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
        """The width of caption features."""
        return self.words.embedding.embedding_dim

    def features(self, word_ids: Tensor) -> Tensor:
        """Return caption features [B, prefix, caption_dim]; a row of only pad words gets the empty condition's."""
        absent = (word_ids == PAD_WORD).all(dim=1)[:, None, None]
        return torch.where(absent, self.conditioner.absent, self.words(word_ids))

    def condition(self, word_ids: Tensor) -> Tensor:
        """Return embedded rows [B, prefix, D] for word ids int64 [B, prefix]."""
        return self.conditioner.embed(self.features(word_ids))

    def forward(self, codes: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features [B, cells, ...] for codes int64 [B, cells] and word ids int64 [B, prefix]."""
        logits, features = self.decoder(codes[:, :-1], self.condition(word_ids))
        return logits, features


@torch.no_grad()
def with_condition_table(target: CaptionedTarget, image_start_ids: tuple[int, ...] = ()) -> Decoder:
    """Return the target's decoder with its own condition table: a row for each word, then those of the empty caption.

    Args:
        target: The target.
        image_start_ids: Words that end every caption of this decoder, such as the word for the images' side.
    """
    config = replace(target.decoder.config, image_start_ids=image_start_ids)
    rows = torch.cat(
        [target.conditioner.embed(target.words.embedding.weight), target.conditioner.embed(target.conditioner.absent)]
    )
    decoder = Decoder(replace(config, condition="table", cond_ids=len(rows), uncond_rows=config.prefix))
    decoder.load_state_dict({**target.decoder.state_dict(), "conditions.weight": rows})
    return decoder.eval()


def drafter_config(target: DecoderConfig) -> DecoderConfig:
    """Return the config of an EAGLE drafter (arXiv 2401.15077, section 4): one target layer on [feature; embedding]."""
    return replace(target, layers=1, condition="none", cond_ids=0, drafter=True, fc_bias=False)


def new_drafter(target: Decoder) -> Decoder:
    """Create a drafter with random weights, but with the frozen code embedding and head of its target.

    At each position, the drafter reads the target's feature of the previous token and the embedding of the token. It
    predicts the target's feature at this position, and the target's head converts it to logits of the next token. From
    the second level of a draft on, the drafter reads its own predictions. The first position combines the feature of
    the last condition position with the first code.
    """
    drafter = Decoder(drafter_config(target.config))
    initialise(drafter)
    share_ends(drafter, target)
    return drafter


def share_ends(drafter: Decoder, target: Decoder) -> None:
    """Share the target's frozen code embedding and head with a drafter; raise ValueError if their widths differ."""
    if drafter.config.dim != target.config.dim:
        raise ValueError(f"the drafter is {drafter.config.dim} wide, its target {target.config.dim}")
    drafter.codes, drafter.head = target.codes, target.head
    for part in (drafter.codes, drafter.head):
        part.requires_grad_(False)
