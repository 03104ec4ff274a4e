"""A decoder on ONNX Runtime, which binds each buffer once and runs passes over new positions.

On the CPU, graphs read and write NumPy arrays in place. On a GPU, the cache, logits and features are in GPU memory, and
each host buffer of a pass has a mirror there (`device_memory.DeviceBuffers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.protocols import FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts import decoder_graph as names
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.engines.cache import HostMemory, KeyValueCache
from underpaint.runtime.engines.context import CPU, EngineContext, EngineError, bind, open_capturing
from underpaint.runtime.engines.engine import (
    FusedTreeOutput,
    PassOutput,
    PassTimer,
    call_kind,
    check_cells,
    check_graph,
    manifest_config,
)
from underpaint.runtime.engines.pass_inputs import PassInputs, SamplingInputs, fill
from underpaint.runtime.engines.providers import PASS_ROWS, GpuBackend, ProviderOptions, fixes_shapes, gpu_backend
from underpaint.zoo.load import locate

if TYPE_CHECKING:
    from underpaint.runtime.engines.device_memory import DeviceBuffers

_TreeSizes: TypeAlias = tuple[int, int, int]
"""The levels of a tree, the expanded nodes per level, and the children per node."""
_NO_TREE: Final[_TreeSizes] = (0, 1, 1)
_Key: TypeAlias = tuple[int, int, int, _TreeSizes, bool]
"""The key of a binding: new positions, slots, levels of a chain, sizes of a tree, whether it returns distributions."""


class _Bound(NamedTuple):
    """A bound pass and its buffers. new_keys, new_values: the new keys and values, in the cache's kind of memory."""

    run: Callable[[], None]
    inputs: Mapping[str, NDArray[Any]]
    frontier: IntArray
    uniforms: FloatArray
    ranked: BoolArray
    drawn: BoolArray
    new_keys: Any
    new_values: Any
    output: PassOutput


class OnnxDecoder(NamedTuple):
    """A `LoadedDecoder` that consists of an ONNX Runtime session and its config.

    Attributes:
        session: The session.
        config: The config in the decoder's manifest.
        name: The name of the model in its folder.
        gpu: The provider and the GPU that the session runs on; None for the CPU.
        options: The provider options used.
    """

    session: Any
    config: DecoderConfig
    name: str
    gpu: GpuBackend | None = None
    options: ProviderOptions = ()

    @property
    def row_counts(self) -> tuple[int, ...] | None:
        """See `LoadedDecoder`; any number, unless the session has fixed shapes for TensorRT."""
        return PASS_ROWS if fixes_shapes(self.options) else None

    def max_positions(self, rows: int) -> int | None:
        """See `LoadedDecoder`; any number."""
        return None

    def buffers(self, rows: int) -> HostBuffers | DeviceBuffers:
        """Create the buffers that the session's passes read and write."""
        if self.gpu is None:
            return HostBuffers(self.session, self.config, rows)
        from underpaint.runtime.engines.device_memory import DeviceBuffers

        run_option = self.gpu.provider.graph_id if self.gpu.captures(self.options) else None
        return DeviceBuffers(self.session, self.config, rows, f"cuda:{self.gpu.device}", run_option)

    def open(self, rows: int) -> OnnxEngine:
        return OnnxEngine(self, rows)


def load_onnx(name: str, kind: str, folder: Path, context: EngineContext | None = None) -> OnnxDecoder:
    """Check the decoder `name` against its manifest and load it; `kind` is "target", "drafter" or `DRAFT_TARGET`.

    Raises ManifestError if it is missing, damaged or of another kind, and EngineError if it cannot be loaded.
    """
    located = locate(name, kind, folder)
    config = manifest_config(located.manifest.settings, name)
    gpu = None if context is None or context.backend == CPU else gpu_backend(context.backend)
    if config.precision != "fp32" and gpu is None:
        raise EngineError(
            f"{name}: expected a float32 export for ONNX Runtime on the CPU, got {config.precision}; export with "
            "--precision fp32, run it on a GPU (--backend cuda), or build TensorRT engines of this one"
        )
    # Padded plain passes have fixed shapes. Float32 graphs also draft and sample, with branches and loops.
    plain = None if config.precision == "fp32" else config
    session, options = open_capturing(located.path, context, plain=plain)
    check_graph(config, session.get_inputs(), session.get_outputs(), name)
    return OnnxDecoder(session, config, name, gpu, options)


class HostBuffers:
    """A KV cache and buffers in host memory, which graphs read and write in place."""

    captures: Final = False

    def __init__(self, session: Any, config: DecoderConfig, rows: int) -> None:
        self.memory = HostMemory(config, rows)
        self._session = session
        self._arrays: dict[str, NDArray[Any]] = {}

    def host(self, name: str, shape: tuple[int, ...], most: int, kind: DTypeLike = np.float32) -> NDArray[Any]:
        """Return an array at the start of the buffer `name`, which has `most` elements."""
        if name not in self._arrays:
            self._arrays[name] = np.zeros(most, dtype=kind)
        return self._arrays[name][: int(np.prod(shape))].reshape(shape)

    def stored(self, name: str, shape: tuple[int, ...], most: int) -> NDArray[Any]:
        """Return an array as `host` does, for keys or values that go into the cache."""
        return self.host(name, shape, most, self.memory.key_memory.dtype)

    def settle(self, array: NDArray[Any]) -> None:
        """Declare that an array of `host` was written and will not change for many passes."""

    def bind(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]], capture: bool
    ) -> Callable[[], None]:
        """Return a pass from `inputs` to `outputs` that keeps both alive."""
        binding, session, bound = self._session.io_binding(), self._session, (dict(inputs), dict(outputs))
        for name, array in inputs.items():
            bind(binding, "input", name, array)
        for name, array in outputs.items():
            bind(binding, "output", name, array)

        def run() -> None:
            assert bound
            session.run_with_iobinding(binding)

        return run

    def close(self) -> None:
        """Free the memory."""
        self._arrays.clear()


class OnnxEngine:
    """An `Engine` on an ONNX Runtime session.

    Buffers are allocated once and bound by pointer, with one binding for each number of new positions and of slots.
    A pass copies tokens and biases, but no part of the cache. If the session captures its passes, they are padded to
    the sizes in `POSITION_BUCKETS`, with one captured graph per size.
    """

    def __init__(self, decoder: OnnxDecoder, rows: int) -> None:
        self.config = decoder.config
        self.rows = rows
        self.cost = PassTimer()
        self._buffers = decoder.buffers(rows)
        self.memory: Any = self._buffers.memory
        self.cache = KeyValueCache(self.memory, rows)
        self._inputs = inputs = frozenset(each.name for each in decoder.session.get_inputs())
        size = (decoder.config.external_cond_rows, decoder.config.dim)
        self._cond_rows = self._buffers.host(names.EXTERNAL_COND_ROWS, size, max(1, size[0]) * size[1])
        self.fuses_chains = names.CHAIN_LEVELS in inputs
        self._sampling = SamplingInputs(rows, inputs)
        self._bound: dict[_Key, _Bound] = {}
        self._closed = False

    @property
    def captured(self) -> bool:
        """Whether passes replay CUDA graphs."""
        return self._buffers.captures

    @property
    def fuses_trees(self) -> bool:
        """See `Engine`; true if the graph also computes the distributions that draft tokens are taken from."""
        return self.fuses_chains and self._sampling.complete

    def sample_by(self, params: SamplingParams) -> None:
        self._sampling.set(params, self.config.vocab_size)

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        self.cache.clear(hidden)
        if cond_rows is not None:
            self._cond_rows[:] = cond_rows
            self._buffers.settle(self._cond_rows)

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
        count, kind = cells.shape[-1], call_kind(self.cache, cells.shape[-1], chain_levels, tree)
        deep = kind.levels
        check_cells(self.config, cells, deep)
        size = self._padded(count)
        key = (size, self.memory.slots, chain_levels, sizes, self._sampling.complete)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._bind(*key)
        seen = self.cache.past_bias if past_bias is None else past_bias
        fill(bound.inputs, PassInputs(tokens, cells, bias, seen, features))
        if tree is not None:
            bound.frontier[:], bound.uniforms[:] = tree.places, tree.uniforms
            bound.ranked[...], bound.drawn[...] = tree.ranked, tree.drawn
        start_time = perf_counter()
        bound.run()
        self.cost.add(kind, count + (deep - 1) * sizes[1], perf_counter() - start_time)
        self.memory.new_keys, self.memory.new_values = bound.new_keys, bound.new_values
        if size == count:
            return bound.output
        self.memory.new_keys = bound.new_keys[:, :, :, :count]
        self.memory.new_values = bound.new_values[:, :, :, :count]
        return PassOutput(bound.output.logits[:, :count], bound.output.features[:, :count])

    def close(self) -> None:
        self._closed = True
        self._bound.clear()
        self._buffers.close()

    def _padded(self, count: int) -> int:
        """The positions of the pass that `count` positions are run in."""
        if not self.captured:
            return count
        return next((size for size in names.POSITION_BUCKETS if count <= size <= self.memory.capacity), count)

    def _bind(self, count: int, slots: int, levels: int, sizes: _TreeSizes, probs: bool) -> _Bound:
        config, rows, most, host = self.config, self.rows, self.memory.capacity, self._buffers.host
        if self._closed:
            raise EngineError("decoder: this engine is closed; open another one")
        if not 1 <= count <= most:
            raise EngineError(f"decoder: expected 1 to {most} new positions, got {count}; score a smaller tree")
        if (levels != 1 and not (self.fuses_chains and 1 <= levels <= most)) or (sizes[0] and not self.fuses_trees):
            deep = sizes[0] or levels
            raise EngineError(f"decoder: expected 1 level from this graph, got {deep}; draft level by level")
        positions, wide = rows * most, config.dim
        inputs: dict[str, NDArray[Any]] = {
            names.TOKENS: host(names.TOKENS, (rows, count), positions, np.int64),
            names.CELLS: host(names.CELLS, (rows, count), positions, np.int64),
            names.BIAS: host(names.BIAS, (rows, count, slots + count), 2 * positions * most),
        }
        if names.FEATURES in self._inputs:
            inputs[names.FEATURES] = host(names.FEATURES, (rows, count, wide), positions * wide)
        output = PassOutput(
            host(names.LOGITS, (rows, count, config.vocab_size), positions * config.vocab_size),
            host(names.PREDICTED_FEATURES, (rows, count, wide), positions * wide),
            host(names.PROBS, (count, config.vocab_size), most * config.vocab_size) if probs and levels == 1 else None,
            host(names.CHAIN_TOKENS, (levels,), most, np.int64) if self.fuses_chains else None,
            _tree_buffers(*sizes, config.vocab_size) if sizes[0] else None,
        )
        new, cached = (config.layers, rows, config.kv_heads, count, config.head_dim), self._buffers.stored
        all_new = config.layers * positions * config.kv_heads * config.head_dim
        keys, values = cached("new_keys", new, all_new), cached("new_values", new, all_new)
        frontier, uniforms = np.zeros(sizes[:2], dtype=np.int64), np.zeros(sizes)
        ranked, drawn = np.zeros((), dtype=np.bool_), np.zeros((), dtype=np.bool_)
        read: dict[str, Any] = {
            **inputs,
            names.EXTERNAL_COND_ROWS: self._cond_rows,
            names.CHAIN_LEVELS: np.array(levels, dtype=np.int64),
            names.TREE_FRONTIER: frontier,
            names.TREE_UNIFORMS: uniforms,
            names.TREE_RANKED: ranked,
            names.TREE_DRAWN: drawn,
            **self._sampling.arrays,
        }
        written = self._written(output)
        for layer in range(config.layers):
            read[names.past_key(layer)] = self.memory.keys[layer]
            read[names.past_value(layer)] = self.memory.values[layer]
            written[names.new_key(layer)], written[names.new_value(layer)] = keys[layer], values[layer]
        run = self._buffers.bind(
            {name: array for name, array in read.items() if name in self._inputs},
            written,
            capture=count in names.POSITION_BUCKETS,
        )
        return _Bound(run, inputs, frontier, uniforms, ranked, drawn, keys, values, output)

    def _written(self, output: PassOutput) -> dict[str, Any]:
        """Return the buffers of `output` by the graph's output names."""
        predicted = names.PREDICTED_FEATURES if names.FEATURES in self._inputs else names.FEATURES
        buffers: dict[str, Any] = {names.LOGITS: output.logits, predicted: output.features}
        if output.probs is not None:
            buffers[names.PROBS] = output.probs
        if output.chain is not None:
            buffers[names.CHAIN_TOKENS] = output.chain
        if output.tree is not None:
            # A loop with no iterations returns arrays of unknown shape.
            fused: dict[str, NDArray[Any]] = dict(zip(names.TREE_OUTPUTS, output.tree, strict=True))
            buffers |= {name: array for name, array in fused.items() if array.size}
        return buffers


def _tree_buffers(levels: int, nodes: int, children: int, vocab_size: int) -> FusedTreeOutput:
    """Create buffers for a tree of these sizes."""
    more = levels - 1
    return FusedTreeOutput(
        np.zeros((1, children), dtype=np.int64),
        np.zeros((1, children)),
        np.zeros((more, nodes), dtype=np.int64),
        np.zeros((more, nodes, children), dtype=np.int64),
        np.zeros((more, nodes, children)),
        np.zeros((more, nodes, vocab_size), dtype=np.float32),
    )
