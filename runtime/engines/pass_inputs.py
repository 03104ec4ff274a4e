"""What a pass of an engine reads: its tokens and cells, who sees whom, padding, and the sampling.

Some models put an end-of-line token behind every line of codes but the last; algorithms see cells alone. Such a token
is no choice, so it is fed with the cell that it follows: such a cell takes two positions of a
pass, the second of which gives what comes after it, and both are committed together.
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
    """A pass over T nodes as the engine runs it, over P >= T positions.

    tokens, cells: [P]; visible: [P, P]. outputs: [T], the position whose output is each node's. node: [P], the node
    that a position belongs to; None where each node has one position.
    """

    tokens: IntArray
    cells: IntArray
    visible: BoolArray
    outputs: IntArray | slice = slice(None)
    node: IntArray | None = None

    def positions(self, nodes: IntArray | slice) -> IntArray | slice:
        """The positions of `nodes`, end-of-line tokens included."""
        if self.node is None:
            return nodes
        return np.isin(self.node, np.arange(self.node[-1] + 1)[nodes]).nonzero()[0]


class EolLayout:
    """How the cells of an image lie among its end-of-line tokens, if it has any."""

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self._token = config.eol_id
        cells = np.arange(config.cells)
        self.cell_of: IntArray | None = None if self._token is None else cells.repeat(1 + self._ends(cells))
        """[places]: the cell at each place of the image, which an end-of-line token shares with the cell before it."""

    def _ends(self, cells: IntArray) -> BoolArray:
        """Whether an end-of-line token follows each of `cells`."""
        ends: BoolArray = (cells % self._config.width == self._config.width - 1) & (cells < self._config.cells - 1)
        return ends

    def drawn(self, places: int) -> int:
        """How many cells the first `places` of the image hold."""
        return places if self.cell_of is None else places - places // (self._config.width + 1)

    def places(self, cells: IntArray) -> IntArray:
        """The places in the image of `cells`, those of end-of-line tokens included."""
        if self.cell_of is None:
            return cells
        width = self._config.width
        return np.where(cells < 0, (cells - self._config.first_eol_cell + 1) * (width + 1) - 1, cells + cells // width)

    def lay(self, tokens: IntArray, cells: IntArray, visible: BoolArray) -> PassLayout:
        """A pass over nodes `tokens` [T] at `cells` [T] that see each other by `visible` [T, T].

        Who sees a node sees its end-of-line token, which sees what its node sees.
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
    """A bias [count, count] under which each position sees itself and those before it; shared, so read-only."""
    bias = np.triu(np.full((count, count), MASKED_SCORE, dtype=np.float32), k=1)
    bias.flags.writeable = False
    return bias


@cache
def alone(count: int) -> NDArray[np.float32]:
    """A bias [count, count] under which each position sees none but itself; shared, so read-only."""
    bias = hide(np.eye(count, dtype=np.bool_))
    bias.flags.writeable = False
    return bias


def hide(visible: BoolArray) -> NDArray[np.float32]:
    """The bias that shows what is True in `visible`."""
    return np.where(visible, np.float32(0), MASKED_SCORE)


def tree_bias(visible: BoolArray) -> NDArray[np.float32]:
    """`hide` among the nodes of a tree [T, T]; read-only, and cached, as the same trees come again and again."""
    return _tree_bias(visible.shape, visible.tobytes())


@lru_cache(maxsize=256)
def _tree_bias(shape: tuple[int, ...], visible: bytes) -> NDArray[np.float32]:
    bias = hide(np.frombuffer(visible, dtype=np.bool_).reshape(shape))
    bias.flags.writeable = False
    return bias


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
    bias = buffers[BIAS]
    slots = bias.shape[-1] - size
    if size > count:
        padding = np.arange(count, size)
        buffers[TOKENS][:], buffers[CELLS][:], bias[:] = 0, 0, MASKED_SCORE
        bias[:, padding, slots + padding] = 0.0
    buffers[TOKENS][:, :count] = given.tokens
    buffers[CELLS][:, :count] = given.cells
    bias[:, :count, :slots] = given.past_bias
    bias[:, :count, slots : slots + count] = given.bias
    if FEATURES in buffers:
        if given.features is None:
            raise EngineError("decoder: this graph reads features, got none; run it through EngineDrafter")
        buffers[FEATURES][:, :count] = given.features


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
