"""The GLM-Image family: the model draws a small preview first, then the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.live.model import LiveModel
from underpaint.runtime.live.parts import DeviceCopies, codebook_of, of_causal, prompt_ids


def glm_image(
    model: Any,
    processor: Any = None,
    *,
    grid: Grid | None = None,
    longest_prompt: int = 1024,
    preview: Grid | None = None,
) -> LiveModel:
    """GLM-Image draws a small grid first, then the large one; temperature 0.9, top-p 0.75, no guidance.

    grid is the large grid, 36 x 24 by default (1152 x 768 pixels); preview is the small grid, by default the
    processor's. The model sees both as one row of cells, the small grid first. MuLo-SD drafts the large grid from it.
    `transformers` has no picture decoder. `glm_image_prior` makes the `prior_token_ids` with which `GlmImagePipeline`
    of diffusers draws the picture.
    """
    large = grid or Grid(36, 24)
    small = preview or glm_image_preview(large)
    body, codes = model.model.language_model, model.config.image_start_token_id
    offsets = DeviceCopies(_glm_offsets(small, large))

    def position_ids(places: Tensor, prompt: Tensor) -> Tensor:
        at = (places - prompt).clamp(min=0)
        table = offsets(places.device)
        return torch.where(places < prompt, places.expand(3, -1, -1), prompt + table[:, at])

    def encode(processor: Any, text: str) -> Sequence[int]:
        if getattr(processor, "chat_template", None):
            chat = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            text = processor.apply_chat_template(chat, add_generation_prompt=False)
        return prompt_ids(processor(text=text, target_h=large.height * 32, target_w=large.width * 32))

    return of_causal(
        "glm-image",
        body,
        model.lm_head,
        np.arange(codes),
        Grid(1, small.cells + large.cells),
        sampling=SamplingParams(temperature=0.9, top_p=0.75),
        position_ids=position_ids,
        image_start=(codes,),
        encode=encode,
        codebook=codebook_of(getattr(model.model, "vqmodel", None), unit=True),
        longest_prompt=longest_prompt,
        parts=(small, large),
    )


def glm_image_preview(large: Grid) -> Grid:
    """Return the small grid that GLM-Image draws before a large one, computed as in its processor."""
    ratio = large.height / large.width
    return Grid(int(math.sqrt(ratio) * 16), int(math.sqrt(1 / ratio) * 16))


def glm_image_prior(tokens: IntArray, large: Grid) -> Tensor:
    """Return `prior_token_ids`, int64 [1, 4 * cells], of diffusers' `GlmImagePipeline`.

    A cell covers 32 x 32 pixels, and the pipeline reads an id for every 16 x 16, so each is repeated in 2 x 2 places.

    Args:
        tokens: The tokens of both grids, with the default preview.
        large: The large grid.
    """
    cells = np.asarray(tokens, dtype=np.int64)[glm_image_preview(large).cells :].reshape(large)
    return torch.from_numpy(cells.repeat(2, axis=0).repeat(2, axis=1).reshape(1, -1))


def _glm_offsets(small: Grid, large: Grid) -> Tensor:
    """Time, row and column offsets of each cell after the prompt, [3, cells]."""
    axes, first = [], 0
    for grid in (small, large):
        cells = torch.arange(grid.cells)
        row, column = cells // grid.width, cells % grid.width
        axes.append(torch.stack([torch.zeros_like(row), row, column]) + first)
        first += max(grid.height, grid.width)
    return torch.cat(axes, dim=1)
