"""This project's own decoder as a live model: LlamaGen by class, and the shipped targets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.runtime.live.model import LiveModel, LiveModelError
from underpaint.runtime.live.parts import (
    fixed_grid,
)


def llamagen(model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024) -> LiveModel:
    """This project's own `Decoder`: LlamaGen by class, or the shipped targets; guidance 4, top-k 2000.

    A prompt is one class, or all words of a condition. Load one by `models.published.load.load("llamagen-c2i", path)`.
    """
    config: DecoderConfig = model.config
    if config.condition != "table" or config.eol_token is not None:
        raise LiveModelError(
            f"llamagen: expected a decoder that is conditioned on ids, got condition {config.condition!r}; export "
            "this one, or load it in transformers"
        )
    first = config.prefix
    absent = tuple(range(config.cond_ids - config.uncond_rows, config.cond_ids))
    return LiveModel(
        family="llamagen",
        body=DecoderBody(model),
        config=config,
        grid=fixed_grid(grid, config.grid, "LlamaGen"),
        codes=config.vocab_size,
        vocabulary=config.cond_ids,
        embed_codes=model.codes,
        embed_ids=model.conditions,
        head=model.head,
        sampling=SamplingParams(guidance=4.0, top_k=2000),
        position_ids=lambda places, prompt: (places - prompt).clamp(min=-1),
        uncond=lambda ids: absent,
        appended=config.image_start_ids,
        longest_prompt=first,
    )


class DecoderBody(nn.Module):
    """The layers of this project's `Decoder`, called as those of `transformers` are."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Any = None,
        use_cache: bool = True,
    ) -> SimpleNamespace:
        """One pass; `position_ids` are cells. See `models.decoder.Decoder.step_rows`."""
        empty = self.decoder.empty_cache(inputs_embeds.shape[0])
        keys, values = (empty, empty) if past_key_values is None else past_key_values.read()
        mask = attention_mask[:, 0].float().clamp(min=float(MASKED_SCORE))
        out = self.decoder.step_rows(inputs_embeds, position_ids, mask, keys, values)
        if past_key_values is not None:
            for layer, pair in enumerate(zip(out.keys, out.values, strict=True)):
                past_key_values.update(*pair, layer)
        return SimpleNamespace(last_hidden_state=out.features)
