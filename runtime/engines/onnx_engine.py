"""A decoder on ONNX Runtime: passes over new positions, with every buffer bound once."""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.protocols import FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts import decoder_graph as names
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.engines.cache import HostMemory, KeyValueCache
from underpaint.runtime.engines.context import EngineContext, EngineError, bind, open_session
from underpaint.runtime.engines.engine import (
    FusedTreeOutput,
    PassOutput,
    PassTimer,
    check_cells,
    check_graph,
    manifest_config,
)
from underpaint.runtime.engines.pass_inputs import SamplingInputs
from underpaint.zoo.load import locate

_TreeSizes: TypeAlias = tuple[int, int, int]
"""Levels, nodes expanded in each, children of each."""
_NO_TREE: Final[_TreeSizes] = (0, 1, 1)
_Key: TypeAlias = tuple[int, int, int, _TreeSizes, bool]
"""Of a binding: new positions, slots, levels of a chain, a tree's sizes, whether it reads distributions."""


class _Bound(NamedTuple):
    """A binding and the buffers behind it. past_bias, new_bias: the two parts of `bias` [B, T, S + T]."""

    binding: Any
    tokens: IntArray
    cells: IntArray
    past_bias: NDArray[np.float32]
    new_bias: NDArray[np.float32]
    features: NDArray[np.float32]
    levels: IntArray
    frontier: IntArray
    uniforms: FloatArray
    ranked: BoolArray
    drawn: BoolArray
    new_keys: NDArray[np.float32]
    new_values: NDArray[np.float32]
    output: PassOutput


class OnnxDecoder(NamedTuple):
    """A session and its config. Implements `LoadedDecoder`."""

    session: Any
    config: DecoderConfig
    name: str

    @property
    def row_counts(self) -> tuple[int, ...] | None:
        """See `LoadedDecoder`: any number."""
        return None

    def max_positions(self, rows: int) -> int | None:
        """See `LoadedDecoder`: any number."""
        return None

    def open(self, rows: int) -> "OnnxEngine":
        return OnnxEngine(self, rows)


def load_onnx(name: str, kind: str, folder: Path, context: EngineContext | None = None) -> OnnxDecoder:
    """Load the decoder `name` ("target", "drafter" or `DRAFT_TARGET` in `kind`) after checking it against its manifest.

    Raises ManifestError (missing, damaged, another kind) or EngineError (not loadable as asked).
    """
    located = locate(name, kind, folder)
    config = manifest_config(located.manifest.settings, name)
    if config.precision != "fp32":
        raise EngineError(
            f"{name}: expected a float32 export for ONNX Runtime on the CPU, got {config.precision}; export with "
            "--precision fp32, or build TensorRT engines of this one"
        )
    session = open_session(located.path, context)
    check_graph(config, session.get_inputs(), session.get_outputs(), name)
    return OnnxDecoder(session, config, name)


class OnnxEngine:
    """Implements `Engine`.

    Buffers are made once and bound by pointer, one binding for each number of new positions and of slots; a pass
    moves tokens and biases in and nothing of the cache anywhere.
    """

    def __init__(self, decoder: OnnxDecoder, rows: int) -> None:
        self.config = decoder.config
        self.rows = rows
        self.cost = PassTimer()
        self.memory = HostMemory(decoder.config, rows)
        self.cache = KeyValueCache(self.memory, rows)
        self._session = decoder.session
        inputs = {each.name for each in decoder.session.get_inputs()}
        self._inputs = known = frozenset(inputs)
        self._cond_rows = np.zeros((decoder.config.external_cond_rows, decoder.config.dim), dtype=np.float32)
        self._reads_features = names.FEATURES in known
        self.fuses_chains = names.CHAIN_LEVELS in known
        self._sampling = SamplingInputs(rows, known)
        self._bound: dict[_Key, _Bound] = {}
        self._buffers: dict[str, NDArray[Any]] = {}

    @property
    def makes_probs(self) -> bool:
        return self._sampling.complete

    @property
    def fuses_trees(self) -> bool:
        """See `Engine`: its graph makes the distributions that tokens are taken from."""
        return self.fuses_chains and self._sampling.complete

    def sample_by(self, params: SamplingParams) -> None:
        self._sampling.set(params, self.config.vocab_size)

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        self.cache.clear(hidden)
        if cond_rows is not None:
            self._cond_rows[:] = cond_rows

    def run(
        self,
        tokens: IntArray,
        cells: IntArray,
        bias: FloatArray,
        past_bias: FloatArray | None = None,
        features: FloatArray | None = None,
        chain_levels: int = 1,
        tree: FusedTreeSpec | None = None,
    ) -> PassOutput:
        sizes: _TreeSizes = _NO_TREE if tree is None else tree.uniforms.shape
        deep, count = sizes[0] or chain_levels, cells.shape[-1]
        check_cells(self.config, cells, deep)
        key = (count, self.memory.slots, chain_levels, sizes, self._sampling.complete)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(*key)
        bound.tokens[:] = tokens
        bound.cells[:] = cells
        bound.past_bias[:] = self.cache.past_bias if past_bias is None else past_bias
        bound.new_bias[:] = bias
        if self._reads_features:
            if features is None:
                raise EngineError("decoder: this graph reads features, got none; run it through EngineDrafter")
            bound.features[:] = features
        if tree is not None:
            bound.frontier[:], bound.uniforms[:] = tree.places, tree.uniforms
            bound.ranked[...], bound.drawn[...] = tree.ranked, tree.drawn
        start_time = perf_counter()
        self._session.run_with_iobinding(bound.binding)
        cost = self.cost
        cost.seconds += perf_counter() - start_time
        cost.passes += deep
        cost.positions += count + (deep - 1) * sizes[1]
        self.memory.new_keys, self.memory.new_values = bound.new_keys, bound.new_values
        return bound.output

    def close(self) -> None:
        self._bound.clear()
        self._buffers.clear()
        self._session = _Closed()

    def _buffer(self, name: str, shape: tuple[int, ...], most: int, kind: DTypeLike = np.float32) -> NDArray[Any]:
        """An array at the start of the buffer `name`, which is `most` elements long."""
        if name not in self._buffers:
            self._buffers[name] = np.zeros(most, dtype=kind)
        return self._buffers[name][: int(np.prod(shape))].reshape(shape)

    def _bind(self, count: int, slots: int, levels: int, sizes: _TreeSizes, probs: bool) -> _Bound:
        config, rows, most = self.config, self.rows, self.memory.capacity
        if not 1 <= count <= most:
            raise EngineError(f"decoder: expected 1 to {most} new positions, got {count}; score a smaller tree")
        if (levels != 1 and not (self.fuses_chains and 1 <= levels <= most)) or (sizes[0] and not self.fuses_trees):
            deep = sizes[0] or levels
            raise EngineError(f"decoder: expected 1 level from this graph, got {deep}; draft level by level")
        new, kept = (config.layers, rows, config.kv_heads, count, config.head_dim), self.memory.key_memory.dtype
        bias = self._buffer(names.BIAS, (rows, count, slots + count), 2 * rows * most * most)
        output = PassOutput(
            self._buffer(names.LOGITS, (rows, count, config.vocab_size), rows * most * config.vocab_size),
            self._buffer(names.PREDICTED_FEATURES, (rows, count, config.dim), rows * most * config.dim),
            self._buffer(names.PROBS, (count, config.vocab_size), most * config.vocab_size)
            if probs and levels == 1
            else None,
            self._buffer(names.CHAIN_TOKENS, (levels,), most, np.int64) if self.fuses_chains else None,
            _tree_buffers(*sizes, config.vocab_size) if sizes[0] else None,
        )
        bound = _Bound(
            self._session.io_binding(),
            self._buffer(names.TOKENS, (rows, count), rows * most, np.int64),
            self._buffer(names.CELLS, (rows, count), rows * most, np.int64),
            bias[:, :, :slots],
            bias[:, :, slots:],
            self._buffer(names.FEATURES, (rows, count, config.dim), rows * most * config.dim),
            np.array(levels, dtype=np.int64),
            np.zeros(sizes[:2], dtype=np.int64),
            np.zeros(sizes),
            np.zeros((), dtype=np.bool_),
            np.zeros((), dtype=np.bool_),
            self._buffer("new_keys", new, self.memory.key_memory.size, kept),
            self._buffer("new_values", new, self.memory.value_memory.size, kept),
            output,
        )
        self._attach(bound, bias)
        return bound

    def _attach(self, bound: _Bound, bias: NDArray[np.float32]) -> None:
        inputs: dict[str, NDArray[Any]] = {
            names.TOKENS: bound.tokens,
            names.CELLS: bound.cells,
            names.BIAS: bias,
            names.FEATURES: bound.features,
            names.EXTERNAL_COND_ROWS: self._cond_rows,
            names.CHAIN_LEVELS: bound.levels,
            names.TREE_FRONTIER: bound.frontier,
            names.TREE_UNIFORMS: bound.uniforms,
            names.TREE_RANKED: bound.ranked,
            names.TREE_DRAWN: bound.drawn,
            **self._sampling.arrays,
        }
        output = bound.output
        predicted = names.PREDICTED_FEATURES if self._reads_features else names.FEATURES
        outputs: dict[str, NDArray[Any] | None] = {
            names.LOGITS: output.logits,
            predicted: output.features,
            names.PROBS: output.probs,
            names.CHAIN_TOKENS: output.chain,
        }
        if output.tree is not None:
            # A loop that never turns gives arrays of no shape that could be known.
            fused: dict[str, NDArray[Any]] = dict(zip(names.TREE_OUTPUTS, output.tree, strict=True))
            outputs |= {name: array for name, array in fused.items() if array.size}
        for layer in range(self.config.layers):
            inputs[names.past_key(layer)] = self.memory.keys[layer]
            inputs[names.past_value(layer)] = self.memory.values[layer]
            outputs[names.new_key(layer)] = bound.new_keys[layer]
            outputs[names.new_value(layer)] = bound.new_values[layer]
        for name, array in inputs.items():
            if name in self._inputs:
                bind(bound.binding, "input", name, array)
        for name, buffer in outputs.items():
            if buffer is not None:
                bind(bound.binding, "output", name, buffer)


class _Closed:
    """Stands in the place of a closed engine's session: every use raises."""

    def io_binding(self) -> Any:
        """EngineError."""
        raise EngineError("decoder: this engine is closed; open another one")


def _tree_buffers(levels: int, nodes: int, children: int, vocab_size: int) -> FusedTreeOutput:
    """Buffers for a tree of these sizes."""
    more = levels - 1
    return FusedTreeOutput(
        np.zeros((1, children), dtype=np.int64),
        np.zeros((1, children)),
        np.zeros((more, nodes), dtype=np.int64),
        np.zeros((more, nodes, children), dtype=np.int64),
        np.zeros((more, nodes, children)),
        np.zeros((more, nodes, vocab_size), dtype=np.float32),
    )
