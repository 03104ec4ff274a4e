"""Resampling of tokens by row-causal networks on ONNX Runtime (the latent sampler of arXiv 2601.05149)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.resampling.resampler import check_high, check_low


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
