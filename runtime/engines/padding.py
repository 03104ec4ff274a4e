"""A pass in buffers made for more positions than it has."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.artifacts.decoder_graph import BIAS, CELLS, FEATURES, MASKED_SCORE, TOKENS
from underpaint.runtime.engines.context import EngineError


class PassInputs(NamedTuple):
    """What a pass over T positions reads beside the cache, as in `runtime.engines.engine.Engine.run`.

    tokens, cells: [T] or [B, T]. bias: [T, T] or [B, T, T] among the new positions; past_bias: [S], [T, S] or
    [B, T, S]. features: [B, T, D] or None.
    """

    tokens: IntArray
    cells: IntArray
    bias: FloatArray
    past_bias: FloatArray
    features: FloatArray | None


def fill(buffers: Mapping[str, NDArray[Any]], given: PassInputs) -> None:
    """Write `given` to the input buffers of a graph, by name, each made for n >= T positions.

    The n - T positions behind are padding: it sees itself alone, nothing sees it, and what a graph computes there is
    for nobody. Raises EngineError where the graph reads features and none are given.
    """
    count, size = given.cells.shape[-1], buffers[CELLS].shape[-1]
    slots = buffers[BIAS].shape[-1] - size
    buffers[TOKENS][:] = 0
    buffers[TOKENS][:, :count] = given.tokens
    buffers[CELLS][:] = 0
    buffers[CELLS][:, :count] = given.cells
    bias = buffers[BIAS]
    bias[:] = MASKED_SCORE
    bias[:, :count, :slots] = given.past_bias
    bias[:, :count, slots : slots + count] = given.bias
    padding = np.arange(count, size)
    bias[:, padding, slots + padding] = 0.0
    if FEATURES in buffers:
        if given.features is None:
            raise EngineError("decoder: this graph reads features, got none; run it through EngineDrafter")
        buffers[FEATURES][:, :count] = given.features
