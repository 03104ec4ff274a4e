"""Helpers shared by the recipes: scenes encoded on several grids, batches, and views of a network on each grid."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from underpaint.models.decoder import Decoder
from underpaint.models.text import CaptionedTarget
from underpaint.training.tokens import TokenSet
from underpaint.zoo.textured_prompts import PAD_WORD

STRIDE: Final = 8
"""Pixels per code along a side."""


class GridData(NamedTuple):
    """Scenes encoded on one grid, for training and for validation.

    Attributes:
        data: Scenes for training.
        validation: Scenes for validation.
        things: [scenes, cells] bool, which cells of `data` show a thing; None if cells have equal weights.
    """

    data: TokenSet
    validation: TokenSet
    things: NDArray[np.bool_] | None = None


def decoder_on_grid(decoder: Decoder, grid_side: int) -> Decoder:
    """Return a view of the decoder on another grid: all weights are shared, only positions differ."""
    with torch.device("meta"):
        shared = Decoder(replace(decoder.config, grid_side=grid_side))
    for name, part in decoder.named_children():
        setattr(shared, name, part)
    shared.training = decoder.training
    return shared


def on_grid(target: CaptionedTarget, grid_side: int) -> CaptionedTarget:
    """Return a view of the target on another grid; see `decoder_on_grid`."""
    config = replace(target.decoder.config, grid_side=grid_side)
    with torch.device("meta"):
        shared = CaptionedTarget(config, target.caption_dim, target.words.embedding.num_embeddings)
    shared.training = target.training
    shared.words, shared.conditioner = target.words, target.conditioner
    shared.decoder = decoder_on_grid(target.decoder, grid_side)
    return shared


def require_cells(what: str, grids: Mapping[int, GridData]) -> None:
    """Raise ValueError if the scenes of a grid do not fill it."""
    for side, grid_data in grids.items():
        for codes, _ in grid_data[:2]:
            if codes.shape[1] != side**2:
                raise ValueError(
                    f"{what}: expected {side**2} codes a scene on a grid of {side}, got {codes.shape[1]}; encode the "
                    "scenes again, at the grid's side"
                )


def require_grids(path: Path, saved: Mapping[str, Any], sides: Sequence[int]) -> None:
    """Raise ValueError if `sides` is empty, or if the target saved at `path` was not trained on all of these grids."""
    trained_sides = saved["config"].get("grids", [])
    if not sides or not set(sides) <= set(trained_sides):
        raise ValueError(
            f"{path}: expected a target of the grids {list(sides) or '(none is given)'}, got one of "
            f"{trained_sides or 'one grid'}; train it with `underpaint train world`"
        )


def batch_of(data: TokenSet, size: int, dropout: float, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A random batch: codes int64 [size, cells] and word ids int64 [size, prefix]; some rows have no condition."""
    return batch_at(data, random.integers(len(data.codes), size=size), dropout, random)


def batch_at(
    data: TokenSet, rows: NDArray[np.int64], dropout: float, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return the batch of the scenes `rows`, int64 [size]; see `batch_of`."""
    words = np.where((random.random(len(rows)) < dropout)[:, None], PAD_WORD, data.words[rows])
    return torch.from_numpy(data.codes[rows].astype(np.int64)), torch.from_numpy(words)


def at_once(data: TokenSet, most: int) -> int:
    """How many scenes to validate on at once: `most` of up to 256 cells, fewer larger ones with as many cells."""
    cells: int = data.codes.shape[1]
    return max(1, most * 256 // max(256, cells))
