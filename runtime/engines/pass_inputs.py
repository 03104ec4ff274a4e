"""The inputs of an engine's pass: tokens and cells, attention masks, padding, and sampling parameters.

Some models have an end-of-line token after every line of codes but the last. Algorithms see only cells. The token is
certain, so a pass processes it together with the cell before it: such a cell takes two positions, the second one
predicts the next cell, and both are committed together.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import (
    BIAS,
    CELLS,
    FEATURES,
    GUIDANCE_MIX,
    INVERSE_TEMPERATURE,
    MASKED_SCORE,
    TOKENS,
    TOP_K,
    TOP_K_OFFSET,
    TOP_P,
)
from underpaint.runtime.engines.context import EngineError


class PassLayout(NamedTuple):
    """The layout of T nodes in P >= T positions of an engine's pass.

    Attributes:
        tokens: [P], the token at each position.
        cells: [P], the cell of each token.
        visible: [P, P] bool, whether the position of a row sees that of a column.
        outputs: [T], the position of each node's output.
        node: [P], the node that a position belongs to; None if each node has one position.
    """

    tokens: IntArray
    cells: IntArray
    visible: BoolArray
    outputs: IntArray | slice = slice(None)
    node: IntArray | None = None

    def positions(self, nodes: IntArray | slice) -> IntArray | slice:
        """Return the positions of `nodes`, including end-of-line tokens."""
        if self.node is None:
            return nodes
        return np.isin(self.node, np.arange(self.node[-1] + 1)[nodes]).nonzero()[0]


class EolLayout:
    """The places of an image's cells among its end-of-line tokens, if the model has any."""

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self._token = config.eol_id
        cells = np.arange(config.cells)
        self.cell_of: IntArray | None = None if self._token is None else cells.repeat(1 + self._ends(cells))
        """The cell at each place of the image, [places]; an end-of-line token has the number of the cell before it."""

    def _ends(self, cells: IntArray) -> BoolArray:
        """Return for each of `cells` whether an end-of-line token follows it."""
        ends: BoolArray = (cells % self._config.width == self._config.width - 1) & (cells < self._config.cells - 1)
        return ends

    def drawn(self, places: int) -> int:
        """Return the number of cells in the first `places` of the image."""
        return places if self.cell_of is None else places - places // (self._config.width + 1)

    def places(self, cells: IntArray) -> IntArray:
        """Return the places in the image of `cells`, which may include the cells of end-of-line tokens."""
        if self.cell_of is None:
            return cells
        width = self._config.width
        return np.where(cells < 0, (cells - self._config.first_eol_cell + 1) * (width + 1) - 1, cells + cells // width)

    def lay(self, tokens: IntArray, cells: IntArray, visible: BoolArray) -> PassLayout:
        """Lay out a pass over nodes `tokens` [T] at `cells` [T] with the visibility mask `visible` [T, T].

        A node that sees another one sees its end-of-line token too. An end-of-line token sees what its node sees.
        """
        if self._token is None or not (ends := self._ends(cells)).any():
            return PassLayout(tokens, cells, visible)
        node = np.arange(cells.size).repeat(1 + ends)
        outputs = np.arange(cells.size) + ends.cumsum()
        eol = outputs[ends]
        laid_tokens, laid_cells, seen = tokens[node], cells[node], visible[np.ix_(node, node)]
        laid_tokens[eol] = self._token
        laid_cells[eol] = self._config.first_eol_cell + cells[ends] // self._config.width
        seen[eol - 1, eol] = False
        return PassLayout(laid_tokens, laid_cells, seen, outputs, node)


@cache
def causal(count: int) -> NDArray[np.float32]:
    """Return a causal bias [count, count]: each position sees itself and those before; shared, so read-only."""
    bias = np.triu(np.full((count, count), MASKED_SCORE, dtype=np.float32), k=1)
    bias.flags.writeable = False
    return bias


@cache
def alone(count: int) -> NDArray[np.float32]:
    """Return a bias [count, count] under which each position sees only itself; shared, so read-only."""
    bias = hide(np.eye(count, dtype=np.bool_))
    bias.flags.writeable = False
    return bias


def hide(visible: BoolArray) -> NDArray[np.float32]:
    """Return the bias of a mask: 0 where `visible` is True, else `MASKED_SCORE`."""
    return np.where(visible, np.float32(0), MASKED_SCORE)


def tree_bias(visible: BoolArray) -> NDArray[np.float32]:
    """Return `hide` of a tree's visibility mask [T, T]; read-only, and cached because the same trees recur."""
    return _tree_bias(visible.shape, visible.tobytes())


@lru_cache(maxsize=256)
def _tree_bias(shape: tuple[int, ...], visible: bytes) -> NDArray[np.float32]:
    bias = hide(np.frombuffer(visible, dtype=np.bool_).reshape(shape))
    bias.flags.writeable = False
    return bias


class PassInputs(NamedTuple):
    """The inputs of a pass over T positions, except the cache; see `runtime.engines.engine.Engine.run`.

    Attributes:
        tokens: [T] or [B, T].
        cells: [T] or [B, T].
        bias: [T, T] or [B, T, T], among the new positions.
        past_bias: [S], [T, S] or [B, T, S], on the slots.
        features: [B, T, D], or None.
    """

    tokens: IntArray
    cells: IntArray
    bias: FloatArray
    past_bias: FloatArray
    features: FloatArray | None


def fill(buffers: Mapping[str, NDArray[Any]], inputs: PassInputs) -> None:
    """Write `inputs` to the input buffers of a graph, by name, each of n >= T positions.

    The last n - T positions are padding: each sees only itself, no other position sees it, and its outputs are unused.
    Raises EngineError if the graph reads features and none are given.
    """
    count, size = inputs.cells.shape[-1], buffers[CELLS].shape[-1]
    bias = buffers[BIAS]
    slots = bias.shape[-1] - size
    if size > count:
        padding = np.arange(count, size)
        buffers[TOKENS][:], buffers[CELLS][:], bias[:] = 0, 0, MASKED_SCORE
        bias[:, padding, slots + padding] = 0.0
    buffers[TOKENS][:, :count] = inputs.tokens
    buffers[CELLS][:, :count] = inputs.cells
    bias[:, :count, :slots] = inputs.past_bias
    bias[:, :count, slots : slots + count] = inputs.bias
    if FEATURES in buffers:
        if inputs.features is None:
            raise EngineError("decoder: this graph reads features, got none; run it through EngineDrafter")
        buffers[FEATURES][:, :count] = inputs.features


_KEEPS_ALL: Final = np.finfo(np.float32).min / 2
"""An offset that lowers the k-th logit so far that every token is kept."""


class SamplingInputs:
    """Arrays of sampling parameters, bound once, which may change between passes; see `artifacts.decoder_graph`."""

    def __init__(self, rows: int, accepted: frozenset[str]) -> None:
        """Create the arrays.

        Args:
            rows: The number of rows, B.
            accepted: The graph's inputs; a graph that computes no distributions has no sampling inputs.
        """
        arrays: Mapping[str, NDArray[Any]] = {
            GUIDANCE_MIX: np.full((1, rows), 1.0 / rows, dtype=np.float32),
            INVERSE_TEMPERATURE: np.ones((), dtype=np.float32),
            TOP_K: np.ones(1, dtype=np.int64),
            TOP_K_OFFSET: np.full((), _KEEPS_ALL, dtype=np.float32),
            TOP_P: np.ones((), dtype=np.float32),
        }
        self.arrays: Mapping[str, NDArray[Any]] = arrays if arrays.keys() <= accepted else {}
        self.complete = False
        """Whether the graph computes the distributions for the current sampling parameters."""

    def set(self, params: SamplingParams, vocab_size: int) -> None:
        """Set the parameters; at temperature 0, or if the graph cannot, the host computes the distributions."""
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
