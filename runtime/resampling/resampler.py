"""Between the grids of two resolutions: tokens of a small picture to those of a large one, and back.

Tokens are resampled by row-causal networks (the latent sampler of arXiv 2601.05149), or through the picture: decode,
change the size, encode again (its pixel sampler).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.images import ImageDecoder, ImageEncoder, Picture, to_bytes, to_unit


class Resampler(Protocol):
    """An up- and a down-sampler of tokens between two grids that share one codebook.

    Both work on whole low rows and are row-causal: what they give for `rows` depends on no row from `rows.stop` on,
    drawn or not.
    """

    @property
    def map(self) -> ResolutionMap:
        """The two grids."""
        ...

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        """Propose the high tokens [cells of map.high_rows(rows)] int64, in raster order, under low `rows`.

        low: [low cells] int64; what it holds from row `rows.stop` on is not read (NO_TOKEN, say).
        Raises ValueError on rows outside the grid, a wrong shape, and rows before `rows.stop` that are not drawn.
        """
        ...

    def reduce(self, high: IntArray, rows: range) -> IntArray:
        """Read the low tokens [cells of rows] int64, in raster order, of low `rows` from the picture of `high`.

        high: [high cells] int64; what it holds after map.high_rows(rows) is not read. Raises as `enlarge` does.
        """
        ...


def check_low(map_: ResolutionMap, low: IntArray, rows: range, vocab_size: int) -> IntArray:
    """The low rows [rows.stop, width] that `enlarge` may read; ValueError where they are not all drawn."""
    map_.high_rows(rows)
    return _drawn("low", low, map_.low.cells, rows.stop, map_.low.width, vocab_size)


def check_high(map_: ResolutionMap, high: IntArray, rows: range, vocab_size: int) -> IntArray:
    """The high rows [ratio * rows.stop, width] that `reduce` may read; ValueError where they are not all drawn."""
    return _drawn("high", high, map_.high.cells, map_.high_rows(rows).stop, map_.high.width, vocab_size)


def _drawn(which: str, tokens: IntArray, cells: int, stop: int, width: int, vocab_size: int) -> IntArray:
    tokens = np.asarray(tokens)
    if tokens.shape != (cells,) or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"resample: expected {which} tokens [{cells}] of integers, got {tokens.shape} {tokens.dtype}")
    read: IntArray = tokens[: stop * width].astype(np.int64)
    if read.size and (read.min() < 0 or read.max() >= vocab_size):
        missing = int(np.count_nonzero(read == NO_TOKEN))
        raise ValueError(
            f"resample: expected {which} tokens from 0 to {vocab_size - 1} in the first {stop} rows, got some from "
            f"{read.min()} to {read.max()}, {missing} of them not drawn; draw those rows first"
        )
    return read.reshape(stop, width)


class TokenNetwork:
    """Tokens [h, w] of one grid to logits [h', w', V] over those of another."""

    def __init__(self, path: Path, settings: EngineContext | None = None) -> None:
        self._session: Any = open_session(path, settings)

    def __call__(self, tokens: IntArray) -> FloatArray:
        """Float32 logits, of as many rows as the `tokens` [h, w] decide."""
        logits: FloatArray = self._session.run(None, {"codes": tokens[None]})[0][0]
        return logits


@dataclass(frozen=True, slots=True)
class TokenResampler:
    """Implements `runtime.resampling.resampler.Resampler` without pictures: the likeliest tokens of two networks.

    Rows that are not drawn yet are left out: no row of a row-causal network misses those below it.
    """

    map: ResolutionMap
    vocab_size: int
    up: TokenNetwork
    down: TokenNetwork

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        return _likeliest(self.logits(low, rows))

    def logits(self, low: IntArray, rows: range) -> FloatArray:
        """Float32 logits [cells of map.high_rows(rows), V] of the tokens that `enlarge` proposes; raises as it does.

        Given the low tokens, the network takes cells as independent: tokens drawn from these distributions, instead of
        the likeliest ones, can be verified by rules that need the draft's distribution.
        """
        read = check_low(self.map, low, rows, self.vocab_size)
        return self._rows(self.up, read, self.map.high_rows(rows))

    def reduce(self, high: IntArray, rows: range) -> IntArray:
        read = check_high(self.map, high, rows, self.vocab_size)
        return _likeliest(self._rows(self.down, read, rows))

    def _rows(self, network: TokenNetwork, read: IntArray, rows: range) -> FloatArray:
        if not rows:
            return np.empty((0, self.vocab_size), dtype=np.float32)
        return network(read)[rows.start : rows.stop].reshape(-1, self.vocab_size)


def _likeliest(logits: FloatArray) -> IntArray:
    tokens: IntArray = logits.argmax(axis=-1).astype(np.int64)
    return tokens


FILTERS: Final[Mapping[str, str]] = {"nearest": "NEAREST", "bicubic": "BICUBIC"}
"""Enlargements that need no training, by their names among Pillow's."""


Enlarger: TypeAlias = Callable[[Picture], Picture]
"""Enlarges a picture [H, W, 3] by a whole number."""


@dataclass(frozen=True, slots=True)
class FilterEnlarger:
    """Enlarges by a filter of `FILTERS`."""

    ratio: int
    resampling: str = FILTERS["bicubic"]

    def __call__(self, picture: Picture) -> Picture:
        from PIL import Image

        height, width = picture.shape[:2]
        size = (width * self.ratio, height * self.ratio)
        return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling[self.resampling]))


class LearnedEnlarger:
    """Enlarges by a small super-resolution network on ONNX Runtime."""

    def __init__(self, path: Path, settings: EngineContext | None = None) -> None:
        self._session: Any = open_session(path, settings)

    def __call__(self, picture: Picture) -> Picture:
        return to_bytes(self._session.run(None, {"pixels": to_unit(picture)[None]})[0][0])


@dataclass(frozen=True, slots=True)
class PixelResampler:
    """Implements `runtime.resampling.resampler.Resampler` by way of pictures.

    The tokenizer looks at the whole picture (its norms and its attention are global), so rows that are not drawn yet
    need something to stand for them: the last drawn row of tokens, repeated. That keeps it row-causal, and comes
    nearer to the tokens of the whole picture than leaving the rows out does.
    """

    map: ResolutionMap
    decoder: ImageDecoder
    encoder: ImageEncoder
    enlarger: Enlarger

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        read = check_low(self.map, low, rows, self.decoder.vocab_size)
        if not rows:
            return np.empty(0, dtype=np.int64)
        return self._rows(self.enlarger(self._draw(read, self.map.low)), self.map.high, self.map.high_rows(rows))

    def reduce(self, high: IntArray, rows: range) -> IntArray:
        """See `Resampler`; areas are averaged."""
        read = check_high(self.map, high, rows, self.decoder.vocab_size)
        if not rows:
            return np.empty(0, dtype=np.int64)
        from PIL import Image

        picture = Image.fromarray(self._draw(read, self.map.high)).reduce(self.map.ratio)
        return self._rows(np.asarray(picture), self.map.low, rows)

    def _draw(self, read: IntArray, grid: Grid) -> Picture:
        """The whole picture, with the last of the rows `read` [rows, width] in place of those that follow."""
        whole = np.concatenate([read, np.broadcast_to(read[-1], (grid.height - len(read), grid.width))])
        return self.decoder(whole.ravel(), grid)

    def _rows(self, picture: Picture, grid: Grid, rows: range) -> IntArray:
        codes = self.encoder(picture).reshape(grid)
        return codes[rows.start : rows.stop].ravel()
