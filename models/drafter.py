"""The drafter: EAGLE's one-layer predictor of the target's next feature (arXiv 2401.15077, section 4).

At each position it reads the target's feature of the token before and the embedding of the token itself, and
predicts the feature that the target will have there; the target's own head turns it into the next token's
logits. From the second level of a draft on, it reads its own predictions. Under guidance it runs as a pair,
each row with its own features. The first position pairs the last condition position's feature with the first
image token; rotary positions are the tokens' cells.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from underpaint.models.layers import RMSNorm, TransformerBlock
from underpaint.models.transformer import StepOutput, Transformer, TransformerConfig, block_of, initialise, rotary_table
from underpaint.models.typed import call


class Drafter(nn.Module):
    """One LlamaGen layer on [feature; embedding], with a norm of its own.

    The target's token embedding and head are read, never owned: pass them in, or bind a target with `bind`.
    """

    rotary: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=False)
        self.layers = nn.ModuleList([block_of(config)])
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.register_buffer("rotary", rotary_table(config), persistent=False)
        initialise(self)

    @property
    def block(self) -> TransformerBlock:
        """The one layer."""
        return cast(TransformerBlock, self.layers[0])

    def bind(self, target: Transformer) -> "BoundDrafter":
        """The drafter with a target's embedding and head."""
        return BoundDrafter(self, target)

    def step(
        self,
        features: Tensor,
        embeddings: Tensor,
        cells: Tensor,
        bias: Tensor,
        past_keys: Sequence[Tensor],
        past_values: Sequence[Tensor],
        past_bias: Tensor,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Predicted features [B, T, D], and the new keys and values (lists of one layer).

        Args:
            features: [B, T, D], the feature (the target's, or predicted) of the token before each.
            embeddings: [B, T, D] of the tokens.
            cells: int64 [T], cells of the tokens.
            bias, past_keys, past_values, past_bias: as in `Transformer.step`, with one layer.
        """
        hidden = self.fc(torch.cat([features, embeddings], dim=-1))
        turns = self.rotary[cells + 1]
        hidden, key, value = self.block.step(hidden, turns, bias, (past_keys[0], past_values[0]), past_bias)
        return self.norm(hidden), [key], [value]


class BoundDrafter(nn.Module):
    """A drafter and the frozen parts of its target, with the target's `step` form."""

    def __init__(self, drafter: Drafter, target: Transformer) -> None:
        super().__init__()
        if drafter.config.dim != target.config.dim:
            raise ValueError(f"the drafter is {drafter.config.dim} wide, its target {target.config.dim}")
        self.drafter = drafter
        self.tok_embeddings = target.tok_embeddings
        self.output = target.output

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Codes int64 [B, T] to [B, T, D], by the target's table."""
        return call(self.tok_embeddings, tokens)

    def step(
        self,
        features: Tensor,
        embeddings: Tensor,
        cells: Tensor,
        bias: Tensor,
        past_keys: Sequence[Tensor],
        past_values: Sequence[Tensor],
        past_bias: Tensor,
    ) -> StepOutput:
        """As `Drafter.step`, with the head's logits float32 [B, T, V]."""
        predicted, keys, values = self.drafter.step(
            features, embeddings, cells, bias, past_keys, past_values, past_bias
        )
        return StepOutput(self.output(predicted).float(), predicted, keys, values)

    def empty_cache(self, batch: int) -> list[Tensor]:
        """Keys (or values) of no positions, as a list of one layer."""
        config = self.drafter.config
        return [torch.zeros(batch, config.n_head, 0, config.head_dim, device=self.drafter.rotary.device)]
