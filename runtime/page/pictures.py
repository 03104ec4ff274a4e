"""Pictures for a page, each decoded once and embedded in it."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.artifacts.model_index import read_index
from underpaint.runtime.engines.images import ImageDecoder, Picture

Decode = Callable[[IntArray], Picture]
"""Decodes tokens [cells] to a picture [height, width, 3]."""


@dataclass(frozen=True, slots=True)
class GridDecoder:
    """A `Decode` for pictures on one grid, with the decoder of a folder of models."""

    decoder: ImageDecoder
    grid: Grid

    @property
    def vocab_size(self) -> int:
        """The number of codes."""
        return self.decoder.vocab_size

    def __call__(self, tokens: IntArray) -> Picture:
        return self.decoder(tokens, self.grid)


def decoder_for(folder: Path, model: Mapping[str, Any]) -> GridDecoder:
    """The decoder for pictures of results from `model` (their fingerprint), with the models of `folder`.

    Raises ValueError if the folder has no decoder or another one than they were made with. Also raises what
    `read_index` and `ImageDecoder` raise.
    """
    index = read_index(folder)
    name = index.tokenizer.vq_decoder
    if name is None:
        raise ValueError(f"{folder} holds no picture decoder; export its tokenizer into it, or name another --models")
    expected_hash = model.get("sha256", {}).get(name)
    if index.hashes((name,))[name] != expected_hash:
        raise ValueError(
            f"{folder}: '{name}' is not the decoder that these results were made with "
            f"(SHA-256 {str(expected_hash)[:12]}); name the folder of their models with --models"
        )
    return GridDecoder(ImageDecoder(name, folder), Grid(*model["grid"]))


class PictureStore:
    """Pictures by their tokens, each decoded and stored once, as data: URIs of lossless WebP."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._place: dict[tuple[int, ...], int] = {}
        self.uris: list[str] = []

    def add(self, tokens: tuple[int, ...]) -> int:
        """Add a picture unless it is there; returns its index in `uris`."""
        if tokens not in self._place:
            self._place[tokens] = len(self.uris)
            self.uris.append(data_uri(self.picture(tokens)))
        return self._place[tokens]

    def picture(self, tokens: tuple[int, ...]) -> Picture:
        """Decode a picture."""
        return self._decode(np.array(tokens, dtype=np.int64))


class CodePatches(NamedTuple):
    """Pictures of single codes, side by side in one sheet.

    Attributes:
        places: Index of each code, from the left.
        side: Side of one code's picture in pixels.
        sheet: The pictures side by side.
    """

    places: dict[int, int]
    side: int
    sheet: Picture


def code_patches(codes: Iterable[int], grid: Grid, decode: Decode) -> CodePatches:
    """Each of `codes` as it looks in the middle of a block of the same code, 3 cells wide if the grid allows it."""
    ordered = sorted(codes)
    block = min(3, grid.height, grid.width)
    rows, columns = grid.height // block, grid.width // block
    patches: list[Picture] = []
    side = 1
    for start in range(0, len(ordered), rows * columns):
        block_codes = ordered[start : start + rows * columns]
        blocks = np.full(rows * columns, block_codes[0], dtype=np.int64)
        blocks[: len(block_codes)] = block_codes
        codes_at = np.full(grid, block_codes[0], dtype=np.int64)
        tiled = blocks.reshape(rows, columns).repeat(block, axis=0).repeat(block, axis=1)
        codes_at[: rows * block, : columns * block] = tiled
        picture = decode(codes_at.ravel())
        side = picture.shape[0] // grid.height
        for turn in range(len(block_codes)):
            row, column = (block * (turn // columns) + block // 2, block * (turn % columns) + block // 2)
            patches.append(picture[row * side : (row + 1) * side, column * side : (column + 1) * side])
    sheet = np.concatenate(patches, axis=1) if patches else np.zeros((1, 1, 3), dtype=np.uint8)
    return CodePatches({code: place for place, code in enumerate(ordered)}, side, sheet)


def data_uri(picture: Picture) -> str:
    """A picture as a data: URI."""
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "WEBP", lossless=True, quality=100, method=4)
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
