"""A pass in buffers made for more positions than it has."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.runtime.engines.cache import HIDDEN
from underpaint.runtime.engines.context import EngineError


class Given(NamedTuple):
    """What a pass over T positions reads beside the cache, as in `runtime.engines.onnx_engine.OnnxEngine.run`.

    tokens [T] or [B, T]; cells [T]; bias [T, T] among the new positions and past_bias [S] or [T, S]; features
    [B, T, D] or None; conditions [rows, D] and unseen [B], read where the graph takes them.
    """

    tokens: IntArray
    cells: IntArray
    bias: FloatArray
    past_bias: FloatArray
    features: FloatArray | None
    conditions: FloatArray
    unseen: IntArray


def fill(buffers: Mapping[str, NDArray[Any]], given: Given) -> None:
    """Write `given` to the input buffers of a graph, by name, each made for n >= T positions.

    The n - T positions behind are padding: it sees itself alone, nothing sees it, and what a graph computes there is
    for nobody. Raises EngineError where the graph reads features and none are given.
    """
    count, size = len(given.cells), len(buffers["cells"])
    slots = buffers["bias"].shape[1] - size
    buffers["tokens"][:] = 0
    buffers["tokens"][:, :count] = given.tokens
    buffers["cells"][:] = 0
    buffers["cells"][:count] = given.cells
    bias = buffers["bias"]
    bias[:] = HIDDEN
    bias[:count, :slots] = given.past_bias
    bias[:count, slots : slots + count] = given.bias
    padding = np.arange(count, size)
    bias[padding, slots + padding] = 0.0
    if "features" in buffers:
        if given.features is None:
            raise EngineError("decoder: this graph reads features, got none; run it through EngineDrafter")
        buffers["features"][:, :count] = given.features
    if "conditions" in buffers:
        buffers["conditions"][:] = given.conditions
    if "unseen" in buffers:
        buffers["unseen"][:] = given.unseen
