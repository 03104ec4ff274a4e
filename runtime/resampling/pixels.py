"""Resampling through the picture: decode, change the size, encode again (the pixel sampler of arXiv 2601.05149)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.images import ImageDecoder, ImageEncoder, to_bytes, to_unit
from underpaint.runtime.resampling.resampler import check_high, check_low

FILTERS: Final[Mapping[str, str]] = {"nearest": "NEAREST", "bicubic": "BICUBIC"}
"""Enlargements that need no training, by their names among Pillow's."""


class Enlarger(Protocol):
    """Enlarges a picture [H, W, 3] by a whole number."""

    def __call__(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The picture [ratio * H, ratio * W, 3]."""
        ...


@dataclass(frozen=True, slots=True)
class FilterEnlarger:
    """Enlarges by a filter of `FILTERS`."""

    ratio: int
    resampling: str = FILTERS["bicubic"]

    def __call__(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        from PIL import Image

        height, width = picture.shape[:2]
        size = (width * self.ratio, height * self.ratio)
        return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling[self.resampling]))


class LearnedEnlarger:
    """Enlarges by a small super-resolution network on ONNX Runtime."""

    def __init__(self, path: Path, settings: EngineContext | None = None) -> None:
        self._session: Any = open_session(path, settings)

    def __call__(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return to_bytes(self._session.run(None, {"pixels": to_unit(picture)[None]})[0][0])


@dataclass(frozen=True, slots=True)
class PixelResampler:
    """Implements `runtime.resampling.resampler.Resampler` by way of pictures.

    The tokenizer looks at the whole picture (its norms and its attention are global), so rows that are not drawn yet
    need something to stand for them: the last drawn row of tokens, repeated. That keeps it row-causal, and comes
    nearer to the tokens of the whole picture than leaving the rows out does (`benchmarks/samplers.py`).
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

    def _draw(self, read: IntArray, grid: Grid) -> NDArray[np.uint8]:
        """The whole picture, with the last of the rows `read` [rows, width] in place of those that follow."""
        whole = np.concatenate([read, np.broadcast_to(read[-1], (grid.height - len(read), grid.width))])
        return self.decoder(whole.ravel(), grid)

    def _rows(self, picture: NDArray[np.uint8], grid: Grid, rows: range) -> IntArray:
        codes = self.encoder(picture).reshape(grid)
        return codes[rows.start : rows.stop].ravel()
