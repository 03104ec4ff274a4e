"""A decoder on TensorRT: caches in CUDA memory that is never moved, one captured CUDA graph a number of positions.

New keys and values stay on the device; logits and features come back in one copy each a pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts import decoder_graph as names
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.manifest import ManifestError
from underpaint.runtime.engines import tensorrt_runtime
from underpaint.runtime.engines.cache import KeyValueCache
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.device_memory import TYPES, DeviceMemory, layered
from underpaint.runtime.engines.engine import PassOutput, PassTimer, check_cells, manifest_config
from underpaint.runtime.engines.pass_inputs import PassInputs, fill
from underpaint.runtime.engines.tensorrt_files import backend_module, read_record, row_counts
from underpaint.runtime.engines.tensorrt_runtime import TensorRTRuntime, open_runtime
from underpaint.zoo.load import manifest

_WARM_UPS: Final = 2
_new_stream: Final[Callable[[], torch.cuda.Stream]] = torch.cuda.Stream


class _Bucket(NamedTuple):
    """One optimisation profile: its context, buffers, and the captured graph (None: not capturable).

    host: inputs, and `read` outputs, in pinned memory, which copies without stopping for anything. new_keys,
    new_values: [L, B, H, T, hd] on the device.
    """

    context: Any
    device: dict[str, torch.Tensor]
    host: dict[str, torch.Tensor]
    read: dict[str, torch.Tensor]
    new_keys: torch.Tensor
    new_values: torch.Tensor
    captured: torch.cuda.CUDAGraph | None


@dataclass(frozen=True, slots=True)
class TensorRTDecoder:
    """Implements `LoadedDecoder`. Its files are read as the first engine of their number of rows is opened.

    live: what the open engines share, by rows. It goes with the last of them, and the GPU's memory with it.
    """

    name: str
    config: DecoderConfig
    folder: Path
    kind: str
    backend: str
    module: ModuleType
    live: WeakValueDictionary[int, TensorRTRuntime] = field(default_factory=WeakValueDictionary)

    @property
    def row_counts(self) -> tuple[int, ...] | None:
        """See `LoadedDecoder`: those that engines were built for."""
        return row_counts(self.folder, self.name, self.backend)

    def max_positions(self, rows: int) -> int | None:
        """See `LoadedDecoder`: those of the largest profile."""
        return max(read_record(self.folder, self.name, self.backend, rows).counts)

    def open(self, rows: int) -> "TensorRTEngine":
        """See `LoadedDecoder`; see `open_runtime` for what it refuses."""
        runtime = self.live.get(rows)
        if runtime is None:
            runtime = open_runtime(self.name, self.kind, self.folder, self.backend, rows, self.module)
            self.live[rows] = runtime
        return TensorRTEngine(self.config, runtime)


def load_tensorrt(name: str, kind: str, folder: Path, backend: str) -> TensorRTDecoder:
    """The decoder `name` by the engines that were built of it.

    Raises ManifestError without a manifest of this kind; EngineError without the package, a GPU, or any such engine.
    """
    module = backend_module(backend)
    tensorrt_runtime.gpu_name()
    known = manifest(name, folder)
    if known.kind != kind:
        raise ManifestError(f"'{name}' is a {known.kind}, expected a {kind}; choose another model")
    decoder = TensorRTDecoder(name, manifest_config(known.settings, name), folder, kind, backend, module)
    if not decoder.row_counts:
        raise EngineError(
            f"{folder} holds no {backend} engine of '{name}'; build it with `underpaint engine {folder} --backend "
            f"{backend}`"
        )
    return decoder


class TensorRTEngine:
    """Implements `Engine` on plain passes: a captured graph holds one level of drafting, and no distributions."""

    makes_probs: Final = False
    fuses_chains: Final = False
    fuses_trees: Final = False
    """See `Engine`."""

    def __init__(self, config: DecoderConfig, runtime: TensorRTRuntime) -> None:
        self.config = config
        self.rows = runtime.record.rows
        self.cost = PassTimer()
        self.memory = DeviceMemory(config, self.rows)
        self.cache = KeyValueCache(self.memory, self.rows)
        self._cond_rows = np.zeros((config.external_cond_rows, config.dim), dtype=np.float32)
        self._runtime: TensorRTRuntime | None = runtime
        self._stream = _new_stream()
        engine = runtime.engine
        every = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        inputs = frozenset(name for name in every if engine.get_tensor_mode(name).name == "INPUT")
        self._inputs = inputs
        self._predicted = names.PREDICTED_FEATURES if names.FEATURES in inputs else names.FEATURES
        self._profiles = {count: index for index, count in enumerate(runtime.record.counts)}
        self._buckets: dict[int, _Bucket] = {}

    @property
    def captured(self) -> bool:
        """Whether every pass so far replayed a CUDA graph."""
        return all(bucket.captured is not None for bucket in self._buckets.values())

    def sample_by(self, params: SamplingParams) -> None:
        """See `Engine`: these graphs give logits alone, of which the host makes distributions."""

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        self.cache.clear(hidden)
        if cond_rows is not None:
            self._cond_rows[:] = cond_rows
        for bucket in self._buckets.values():
            self._hold(bucket.host)

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
        """See `Engine`. Passes larger than the largest profile raise EngineError."""
        if chain_levels != 1 or tree is not None:
            raise EngineError("decoder: TensorRT's graphs are plain passes; draft level by level")
        check_cells(self.config, cells)
        count = cells.shape[-1]
        runtime = self._opened()
        fitting = [size for size in self._profiles if size >= count]
        if not fitting:
            raise EngineError(
                f"decoder: expected at most {max(self._profiles)} new positions a pass, got {count}; draft fewer nodes "
                f"a cycle, or build with larger --buckets (as 1,8,16,32,64,{count})"
            )
        bucket = self._bucket(runtime, min(fitting))
        seen = self.cache.past_bias if past_bias is None else past_bias
        buffers = {name: each.numpy() for name, each in bucket.host.items()}
        fill(buffers, PassInputs(tokens, cells, bias, seen, features))
        start = perf_counter()
        output = self._pass(bucket, count)
        self.cost.seconds += perf_counter() - start
        self.cost.passes += 1
        self.cost.positions += count
        return output

    def close(self) -> None:
        self._buckets.clear()
        self._runtime = None

    def _opened(self) -> TensorRTRuntime:
        if self._runtime is None:
            raise EngineError("decoder: this engine is closed; open another one")
        return self._runtime

    def _pass(self, bucket: _Bucket, count: int) -> PassOutput:
        self._stream.wait_stream(torch.cuda.current_stream())  # commits of the last pass come first
        with torch.cuda.stream(self._stream):
            for name, given in bucket.host.items():
                bucket.device[name].copy_(given, non_blocking=True)
            if bucket.captured is not None:
                bucket.captured.replay()
            else:
                self._enqueue(bucket.context)
            for name, taken in bucket.read.items():
                taken.copy_(bucket.device[name], non_blocking=True)
        self._stream.synchronize()
        self.memory.new_keys = bucket.new_keys[:, :, :, :count]
        self.memory.new_values = bucket.new_values[:, :, :, :count]
        logits, features = (bucket.read[name].numpy()[:, :count] for name in (names.LOGITS, self._predicted))
        return PassOutput(logits, features)

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._stream.cuda_stream):
            raise EngineError("decoder: TensorRT could not run a pass; its log says why")

    def _bucket(self, runtime: TensorRTRuntime, count: int) -> _Bucket:
        if count not in self._buckets:
            self._buckets[count] = self._make(runtime, count)
            runtime.keep_compiled()
        return self._buckets[count]

    def _hold(self, host: dict[str, torch.Tensor]) -> None:
        """Write what stays the same for a whole picture."""
        if names.EXTERNAL_COND_ROWS in host:
            host[names.EXTERNAL_COND_ROWS].numpy()[:] = self._cond_rows

    def _make(self, runtime: TensorRTRuntime, count: int) -> _Bucket:
        """Buffers, a context on its profile, and a capture after warm-up passes."""
        config, rows = self.config, self.rows
        sizes = {
            names.TOKENS: (rows, count),
            names.CELLS: (rows, count),
            names.BIAS: (rows, count, self.memory.slots + count),
            names.FEATURES: (rows, count, config.dim),
            names.EXTERNAL_COND_ROWS: self._cond_rows.shape,
        }
        kinds = dict.fromkeys((names.TOKENS, names.CELLS), torch.int64)
        host, device = {}, {}
        for name, size in sizes.items():
            if name in self._inputs:
                kind = kinds.get(name, torch.float32)
                host[name] = torch.zeros(size, dtype=kind, pin_memory=True)
                device[name] = torch.zeros(size, dtype=kind, device="cuda")
        self._hold(host)
        read = {}
        for name, wide in ((names.LOGITS, config.vocab_size), (self._predicted, config.dim)):
            device[name] = torch.zeros((rows, count, wide), device="cuda")
            read[name] = torch.zeros((rows, count, wide), pin_memory=True)
        new = (rows, config.kv_heads, count, config.head_dim)
        keys, values = (layered(config.layers, new, TYPES[config.precision], "cuda") for _ in range(2))
        context = self._context(runtime.new_context(), count, host, device, keys, values)
        return _Bucket(context, device, host, read, keys, values, self._capture(context))

    def _context(
        self,
        context: Any,
        count: int,
        host: dict[str, torch.Tensor],
        device: dict[str, torch.Tensor],
        new_keys: torch.Tensor,
        new_values: torch.Tensor,
    ) -> Any:
        if not context.set_optimization_profile_async(self._profiles[count], self._stream.cuda_stream):
            raise EngineError(f"decoder: the engine refuses its profile of {count} positions; build it again")
        bound = {name: device[name] for name in host}
        for layer in range(self.config.layers):
            bound[names.past_key(layer)] = self.memory.keys[layer]
            bound[names.past_value(layer)] = self.memory.values[layer]
        for name, tensor in bound.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise EngineError(f"decoder: the engine refuses {name} {tuple(tensor.shape)}; build it again")
        bound |= {name: device[name] for name in (names.LOGITS, self._predicted)}
        for layer in range(self.config.layers):
            bound[names.new_key(layer)], bound[names.new_value(layer)] = new_keys[layer], new_values[layer]
        for name, tensor in bound.items():
            if not context.set_tensor_address(name, tensor.data_ptr()):
                raise EngineError(f"decoder: the engine has no tensor {name}; build it again")
        return context

    def _capture(self, context: Any) -> torch.cuda.CUDAGraph | None:
        """The pass as a CUDA graph, or None where this engine cannot be captured."""
        self._stream.wait_stream(torch.cuda.current_stream())
        for _ in range(_WARM_UPS):
            self._enqueue(context)
        self._stream.synchronize()
        capturable = getattr(context, "is_stream_capturable", None)
        if capturable is not None and not capturable(self._stream.cuda_stream):
            return None
        graph = torch.cuda.CUDAGraph()
        # TensorRT may compile kernels in threads of its own, whose allocations must not void the capture.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._enqueue(context)
        return graph
