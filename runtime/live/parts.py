"""Helpers shared by model families: heads and codebooks of language models, prompts, grids and pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.runtime.live.model import LiveModel, LiveModelError

_TURN_ENDS: Final = "<reserved08706>"
"""Token that ends a turn in Chameleon's vocabulary."""
_LUMINA_PIXELS: Final = 16
"""Pixels per side of a cell in Lumina-mGPT's pictures."""


class _CodeRows:
    """The rows of a language model's head for the codes: a view if they are contiguous, else a cached copy."""

    def __init__(self, lm_head: Any, ids: Tensor) -> None:
        first = int(ids[0])
        self._lm_head, self._ids, self._first = lm_head, ids, first
        self._are_one_block = bool((ids == torch.arange(first, first + len(ids))).all())
        self._copy: tuple[int, Tensor] | None = None

    def __call__(self) -> Tensor:
        """[V, D]; copied again after the head's weights changed, and on every call while they are trained."""
        weight: Tensor = self._lm_head.weight
        if self._are_one_block:
            return weight[self._first : self._first + len(self._ids)]
        if torch.is_grad_enabled() and weight.requires_grad:
            return weight[self._ids.to(weight.device)]
        if self._copy is None or self._copy[0] != weight._version:
            with torch.inference_mode(False), torch.no_grad():  # the copy may be used in training later
                self._copy = weight._version, weight[self._ids.to(weight.device)]
        return self._copy[1]


class DeviceCopies:
    """A tensor copied once to each device that needs it, since a captured pass must not copy from the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._copies = {tensor.device: tensor}

    def __call__(self, device: torch.device) -> Tensor:
        """Return the copy on a device."""
        if device not in self._copies:
            first = next(iter(self._copies.values()))
            with torch.inference_mode(False):  # the copy may be used in training later
                self._copies[device] = first.to(device)
        return self._copies[device]


def of_causal(family: str, body: Any, lm_head: Any, code_ids: IntArray, grid: Grid, **options: Any) -> LiveModel:
    """Build a model whose codes are part of its vocabulary, with slices of the language model's embedding and head."""
    table = body.get_input_embeddings()
    ids = torch.from_numpy(code_ids)
    rows, ids_on = _CodeRows(lm_head, ids), DeviceCopies(ids)

    def embed_codes(codes: Tensor) -> Tensor:
        embeds: Tensor = table(ids_on(codes.device)[codes])
        return embeds

    def head(hidden: Tensor) -> Tensor:
        weight = rows()
        return functional.linear(hidden.to(weight.device), weight.detach())

    return LiveModel(
        family=family,
        body=body,
        config=body.config,
        grid=grid,
        codes=len(code_ids),
        vocabulary=table.num_embeddings,
        embed_codes=embed_codes,
        embed_ids=table,
        head=head,
        code_ids=code_ids,
        **options,
    )


def code_ids_of(img2bpe: Mapping[int, int], family: str) -> IntArray:
    """Return the vocabulary id of each code, [V]; raises LiveModelError unless codes are 0 to V - 1."""
    if sorted(img2bpe) != list(range(len(img2bpe))) or not img2bpe:
        raise LiveModelError(
            f"{family}: expected the vocabulary_map to name image codes 0 to V - 1, got {len(img2bpe)} codes from "
            f"{min(img2bpe, default=None)} to {max(img2bpe, default=None)}; load the whole configuration of the model"
        )
    return np.array([img2bpe[code] for code in range(len(img2bpe))], dtype=np.int64)


def token_id(processor: Any, name: str, family: str, elsewhere: str) -> int:
    """Return the id of a token that a processor names; raises LiveModelError if the processor does not name it."""
    token = getattr(processor, name, None)
    if token is None:
        raise LiveModelError(
            f"{family}: expected {elsewhere}, which tells the id that begins a picture; it is missing, so pass the "
            "model's processor"
        )
    return int(processor.tokenizer.convert_tokens_to_ids(token))


def codebook_of(vqmodel: Any, *, unit: bool = False) -> FloatArray | None:
    """Return the codebook [V, E] of an image tokenizer in `transformers`; None if it has none.

    Args:
        vqmodel: The tokenizer.
        unit: Whether its codes are the rows divided by their norms, as in tokenizers with normalised codes.
    """
    quantizer = getattr(vqmodel, "quantize", None)
    embedding = getattr(quantizer, "embedding", None)
    if embedding is None:
        return None
    codes: Tensor = embedding.weight.detach().float().cpu()
    codebook: FloatArray = (functional.normalize(codes, dim=-1) if unit else codes).numpy()
    return codebook


def fixed_grid(grid: Grid | None, model_grid: Grid, family: str) -> Grid:
    """Return the only grid that a model draws; raises LiveModelError if another one is given."""
    if grid is not None and grid != model_grid:
        raise LiveModelError(
            f"{family}: grid: expected {model_grid.height} x {model_grid.width}, the only one it draws, got "
            f"{grid.height} x {grid.width}; leave it out"
        )
    return model_grid


def prompt_ids(encoded: Any) -> list[int]:
    """Return the ids of one text, from the output of a tokenizer or processor."""
    ids = encoded["input_ids"]
    ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return list(ids[0]) if ids and isinstance(ids[0], list | tuple) else ids


def turn_ids(processor: Any, text: str) -> list[int]:
    """Return the ids of a user's turn in Chameleon's tokenizer, including the token that ends a turn.

    Args:
        processor: A processor, or only its tokenizer.
        text: The user's text.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    return [*prompt_ids(tokenizer(text)), int(tokenizer.convert_tokens_to_ids(_TURN_ENDS))]


def lumina_prompt(text: str, grid: Grid) -> str:
    """Return a prompt in Lumina-mGPT's training format: the size in pixels, width first, then the text."""
    width, height = (_LUMINA_PIXELS * side for side in (grid.width, grid.height))
    return f"Generate an image of {width}x{height} according to the following prompt:\n{text}"


def on_device(model: Any, codes: IntArray) -> Tensor:
    """Codes as a tensor on the model's device."""
    return torch.as_tensor(codes, device=model.device)


@torch.inference_mode()
def pixels_of(image: Tensor) -> NDArray[np.uint8]:
    """Pixels uint8 [H, W, 3] of an image [H, W, 3] with values in -1 to 1."""
    scaled = (image.detach().float().cpu() * 127.5 + 127.5).round().clamp(0, 255)
    pixels: NDArray[np.uint8] = scaled.to(torch.uint8).numpy()
    return pixels
