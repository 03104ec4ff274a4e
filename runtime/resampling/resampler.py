"""Resampling of tokens between the grids of two resolutions.

Row-causal networks resample tokens directly (the latent sampler of arXiv 2601.05149). The pixel sampler of that paper
decodes the picture, resizes it and encodes it again.
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
    """An up- and down-sampler of tokens between two grids that share one codebook.

    Both work on whole low rows and are row-causal: results for `rows` never depend on rows from `rows.stop` on.
    """

    @property
    def map(self) -> ResolutionMap:
        """The two grids."""
        ...

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        """Propose the high tokens [cells of map.high_rows(rows)] int64, in raster order, under low `rows`.

        Args:
            low: [low cells] int64; values from row `rows.stop` on are ignored and may be NO_TOKEN.
            rows: The low rows.

        Raises:
            ValueError: Rows are outside the grid, a shape is wrong, or tokens before row `rows.stop` are missing.
        """
        ...

    def reduce(self, high: IntArray, rows: range) -> IntArray:
        """Compute the low tokens [cells of rows] int64, in raster order, of low `rows` from the picture of `high`.

        Args:
            high: [high cells] int64; values after map.high_rows(rows) are ignored.
            rows: The low rows.

        Raises:
            ValueError: As for `enlarge`.
        """
        ...


def check_low(map_: ResolutionMap, low: IntArray, rows: range, vocab_size: int) -> IntArray:
    """The low rows [rows.stop, width] that `enlarge` may read; raises ValueError if tokens are missing."""
    map_.high_rows(rows)
    return _drawn("low", low, map_.low.cells, rows.stop, map_.low.width, vocab_size)


def check_high(map_: ResolutionMap, high: IntArray, rows: range, vocab_size: int) -> IntArray:
    """The high rows [ratio * rows.stop, width] that `reduce` may read; raises ValueError if tokens are missing."""
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
    """A network from tokens [h, w] of one grid to logits [h', w', V] over the tokens of another."""

    def __init__(self, path: Path, settings: EngineContext | None = None) -> None:
        self._session: Any = open_session(path, settings)

    def __call__(self, tokens: IntArray) -> FloatArray:
        """Float32 logits for as many rows as `tokens` [h, w] determine."""
        logits: FloatArray = self._session.run(None, {"codes": tokens[None]})[0][0]
        return logits


@dataclass(frozen=True, slots=True)
class TokenResampler:
    """Implements `runtime.resampling.resampler.Resampler` without pictures: two networks give the most likely tokens.

    Rows that are not drawn yet are left out: a row-causal network does not read the rows below.
    """

    map: ResolutionMap
    vocab_size: int
    up: TokenNetwork
    down: TokenNetwork

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        return _likeliest(self.logits(low, rows))

    def logits(self, low: IntArray, rows: range) -> FloatArray:
        """Float32 logits [cells of map.high_rows(rows), V] of the tokens that `enlarge` proposes; raises as it does.

        The network treats cells as independent given the low tokens. Tokens sampled from these distributions, instead
        of the most likely ones, can be verified with rules that need the draft distribution.
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
"""Enlargement filters that need no training, with their Pillow names."""


Enlarger: TypeAlias = Callable[[Picture], Picture]
"""Enlarges a picture [H, W, 3] by an integer factor."""


@dataclass(frozen=True, slots=True)
class FilterEnlarger:
    """Enlarges with a filter of `FILTERS`."""

    ratio: int
    resampling: str = FILTERS["bicubic"]

    def __call__(self, picture: Picture) -> Picture:
        from PIL import Image

        height, width = picture.shape[:2]
        size = (width * self.ratio, height * self.ratio)
        return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling[self.resampling]))


class LearnedEnlarger:
    """Enlarges with a small super-resolution network on ONNX Runtime."""

    def __init__(self, path: Path, settings: EngineContext | None = None) -> None:
        self._session: Any = open_session(path, settings)

    def __call__(self, picture: Picture) -> Picture:
        return to_bytes(self._session.run(None, {"pixels": to_unit(picture)[None]})[0][0])


@dataclass(frozen=True, slots=True)
class PixelResampler:
    """Implements `runtime.resampling.resampler.Resampler` through pictures.

    The tokenizer reads the whole picture (its norms and attention are global), so undrawn rows repeat the last drawn
    row of tokens. This stays row-causal, and is closer to the tokens of the whole picture than leaving rows out.
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
        """See `Resampler`; the picture is reduced by averaging areas."""
        read = check_high(self.map, high, rows, self.decoder.vocab_size)
        if not rows:
            return np.empty(0, dtype=np.int64)
        from PIL import Image

        picture = Image.fromarray(self._draw(read, self.map.high)).reduce(self.map.ratio)
        return self._rows(np.asarray(picture), self.map.low, rows)

    def _draw(self, read: IntArray, grid: Grid) -> Picture:
        """Draw the whole picture, repeating the last of the rows `read` [rows, width] for those that follow."""
        whole = np.concatenate([read, np.broadcast_to(read[-1], (grid.height - len(read), grid.width))])
        return self.decoder(whole.ravel(), grid)

    def _rows(self, picture: Picture, grid: Grid, rows: range) -> IntArray:
        codes = self.encoder(picture).reshape(grid)
        return codes[rows.start : rows.stop].ravel()
