"""The inputs by which a graph makes distributions of logits itself."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_graph import GUIDANCE_MIX, INVERSE_TEMPERATURE, TOP_K, TOP_K_OFFSET, TOP_P

_KEEPS_ALL: Final = np.finfo(np.float32).min / 2
"""Lowers the k-th logit so far that every token is kept."""


class SamplingInputs:
    """Arrays that are bound once and may change between two passes; see `artifacts.decoder_graph`."""

    def __init__(self, rows: int, accepted: frozenset[str]) -> None:
        """rows: B. accepted: the inputs that the graph has; a graph that makes no distributions has none of these."""
        known: Mapping[str, NDArray[Any]] = {
            GUIDANCE_MIX: np.full((1, rows), 1.0 / rows, dtype=np.float32),
            INVERSE_TEMPERATURE: np.ones((), dtype=np.float32),
            TOP_K: np.ones(1, dtype=np.int64),
            TOP_K_OFFSET: np.full((), _KEEPS_ALL, dtype=np.float32),
            TOP_P: np.ones((), dtype=np.float32),
        }
        self.arrays: Mapping[str, NDArray[Any]] = known if known.keys() <= accepted else {}
        self.complete = False
        """Whether the graph makes the distributions of the sampling told last."""

    def set(self, params: SamplingParams, vocab_size: int) -> None:
        """Tell the graph. Without randomness, or by a graph that makes none, distributions are made on the host."""
        self.complete = bool(self.arrays) and params.temperature > 0.0
        if not self.arrays:
            return
        if (mix := self.arrays[GUIDANCE_MIX]).size == 2:
            mix[:] = (params.guidance, 1.0 - params.guidance)
        if self.complete:
            cut = 0 < params.top_k < vocab_size
            self.arrays[TOP_K][:] = params.top_k if cut else 1
            self.arrays[TOP_K_OFFSET][...] = 0.0 if cut else _KEEPS_ALL
            self.arrays[INVERSE_TEMPERATURE][...] = 1.0 / params.temperature
            self.arrays[TOP_P][...] = params.float32_top_p
