"""Live models that run on this project's own decoder: LlamaGen (class or caption), Tar's de-tokenizer, own targets."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.artifacts.decoder_config import DecoderConfig, Precision
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.artifacts.model_families import SAMPLING_BY_KIND
from underpaint.models.decoder import Conditioner, Decoder
from underpaint.models.layers import DenseAttention
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions
from underpaint.models.vq import VQModel
from underpaint.runtime.conditions import FeatureEmbedding
from underpaint.runtime.live.model import LiveModel, LiveModelError
from underpaint.runtime.live.parts import fixed_grid, on_device, pixels_of

TOKENIZERS: Final = {
    "llamagen-c2i": "vq_ds16_c2i.pt",
    "llamagen-t2i": "vq_ds16_t2i.pt",
    "tar-dtok": "vq_ds16_t2i.pt",
}
"""The tokenizer file of each checkpoint kind, by the names of `underpaint export --kind`."""
_PRECISIONS: Final[dict[str, Precision]] = {
    "auto": "fp32",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
}


class PublishedModel(nn.Module):
    """A checkpoint on this project's own decoder, with its condition embedding and its picture tokenizer.

    Attributes:
        kind: Kind of the checkpoint, one of `TOKENIZERS`.
        decoder: The model.
        conditioner: Embeds features; None for a model that is conditioned on classes.
        vq: The picture tokenizer; None if its file is missing.
    """

    def __init__(
        self, kind: str, decoder: Decoder, conditioner: Conditioner | None = None, vq: VQModel | None = None
    ) -> None:
        super().__init__()
        self.kind, self.decoder, self.conditioner, self.vq = kind, decoder, conditioner, vq

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return self.decoder.head.weight.device


def load_published(
    kind: str, path: Path, dtype: str = "auto", grid: Grid | None = None, options: LoadOptions | None = None
) -> PublishedModel:
    """Load a checkpoint of LlamaGen or of Tar's de-tokenizer in its authors' format.

    The picture tokenizer is read from the file of `TOKENIZERS` in the checkpoint's folder, if there is one.

    Args:
        kind: One of `TOKENIZERS`.
        path: The checkpoint.
        dtype: "float32" (the same as "auto"), "bfloat16" or "float16".
        grid: Rows and columns of tokens, if the checkpoint does not define them; see `LoadOptions`.
        options: Other settings that the checkpoint does not define.

    Raises:
        LiveModelError: The file does not exist, or the grid is not square.
        CheckpointError: A ValueError; the file is not a checkpoint of this kind.
    """
    if not path.exists():
        raise LiveModelError(f"--live {path}: expected a checkpoint of {kind}, got no file; download it first")
    if grid is not None and grid.height != grid.width:
        raise LiveModelError(
            f"--grid: expected a square, as {kind} draws, got {grid.height}x{grid.width}; give as many rows as columns"
        )
    options = options or LoadOptions(grid_side=None if grid is None else grid.height)
    loaded = load(kind, path, _PRECISIONS[dtype], options)
    assert loaded.decoder is not None
    beside = (path if path.is_dir() else path.parent) / TOKENIZERS[kind]
    vq = load("vq", beside).vq if beside.is_file() else None
    if vq is not None and vq.config.codebook_size != loaded.codes:
        raise LiveModelError(
            f"{beside}: expected a tokenizer of {loaded.codes:,} codes, as {path.name} draws, got one of "
            f"{vq.config.codebook_size:,}; put the tokenizer of this checkpoint there, or none"
        )
    return PublishedModel(kind, loaded.decoder, loaded.conditioner, vq)


def published(
    kind: str,
    model: PublishedModel | Decoder,
    processor: Any = None,
    *,
    grid: Grid | None = None,
    longest_prompt: int = 1024,
) -> LiveModel:
    """Build a live model from `load_published`, or from a bare `Decoder` that is conditioned on ids.

    A prompt is one class or all words of a condition; or features of a caption or a picture, from an .npy file.
    """
    loaded = model if isinstance(model, PublishedModel) else PublishedModel(kind, model)
    if loaded.kind != kind:
        raise LiveModelError(f"family: expected {loaded.kind}, as the checkpoint was loaded, got {kind}; leave it out")
    decoder, conditioner, vq = loaded.decoder, loaded.conditioner, loaded.vq
    config: DecoderConfig = decoder.config
    if config.eol_token is not None or (config.condition == "external") != (conditioner is not None):
        raise LiveModelError(
            f"{kind}: expected a decoder that is conditioned on ids, or on features with what embeds them, got "
            f"condition {config.condition!r}; load the checkpoint with load_published, or load it in transformers"
        )
    absent = tuple(range(config.cond_ids - config.uncond_rows, config.cond_ids))
    first = -config.prefix if config.rope == "none" else -1

    @torch.inference_mode()
    def rows_of(features: NDArray[np.float32]) -> NDArray[np.float32]:
        assert conditioner is not None
        weight = conditioner.first.weight
        rows: Tensor = conditioner(torch.from_numpy(features).to(weight.device, weight.dtype))
        array: NDArray[np.float32] = rows.float().cpu().numpy()
        return array

    def decode(codes: IntArray) -> NDArray[np.uint8]:
        assert vq is not None
        with torch.inference_mode():
            return pixels_of(vq.decode_codes(on_device(loaded, codes)[None])[0].permute(1, 2, 0))

    def no_ids(ids: Tensor) -> Tensor:
        raise LiveModelError(f"prompt: expected features, which {kind} is conditioned on, got ids; give an .npy file")

    return LiveModel(
        family=kind,
        body=DecoderBody(decoder),
        config=config,
        grid=fixed_grid(grid, config.grid, kind),
        codes=config.vocab_size,
        vocabulary=config.cond_ids,
        embed_codes=decoder.codes,
        embed_ids=decoder.conditions or no_ids,
        head=decoder.head,
        sampling=SAMPLING_BY_KIND[kind],
        position_ids=lambda places, prompt: (places - prompt).clamp(min=first),
        uncond=None if conditioner is not None else lambda ids: absent,
        appended=config.image_start_ids,
        longest_prompt=config.prefix,
        features=None
        if conditioner is None
        else FeatureEmbedding(config.prefix, conditioner.first.in_features, rows_of),
        codebook=None if vq is None else vq.quantize.codebook.detach().float().cpu().numpy(),
        decode=None if vq is None else decode,
    )


FAMILIES: Final = {kind: partial(published, kind) for kind in TOKENIZERS}
"""Families that run on this project's own decoder, by kind of checkpoint."""


class DecoderBody(nn.Module):
    """The layers of this project's `Decoder`, with the call signature of `transformers` layers."""

    def __init__(self, decoder: Decoder) -> None:
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
        """Run one pass; `position_ids` are cells. See `models.decoder.Decoder.step_rows`."""
        decoder = self.decoder
        empty = decoder.empty_cache(inputs_embeds.shape[0])
        past = (empty, empty) if past_key_values is None else past_key_values.read()
        mask = attention_mask[:, 0].float().clamp(min=float(MASKED_SCORE))
        attention = DenseAttention(decoder.config, decoder.turns(position_ids), mask, *past)
        features = decoder.through_layers(decoder.add_positions(inputs_embeds, position_ids), attention)
        if past_key_values is not None:
            for layer, pair in enumerate(zip(attention.keys, attention.values, strict=True)):
                past_key_values.update(*pair, layer)
        return SimpleNamespace(last_hidden_state=features)
