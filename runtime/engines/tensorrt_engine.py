"""A decoder on TensorRT, with a KV cache at fixed CUDA addresses and one captured CUDA graph per number of positions.

Plans write new keys and values into the cache. Each pass copies logits and features to the host, once each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts import decoder_graph as names
from underpaint.artifacts import device_graph
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.device.weights import embed_ids, stored_weights
from underpaint.runtime.engines import tensorrt_runtime
from underpaint.runtime.engines.cache import KeyValueCache
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder, load_config_only
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.device_memory import TYPES, InPlaceMemory, aligned, bind_layers, check_free, host_places
from underpaint.runtime.engines.engine import PassOutput, PassTimer, call_kind, check_cells
from underpaint.runtime.engines.pass_inputs import PassInputs, fill
from underpaint.runtime.engines.tensorrt_files import EngineRecord, backend_module, check_rows, part_of, read_record
from underpaint.runtime.engines.tensorrt_runtime import BoundPass
from underpaint.zoo.load import locate

_WARM_UPS: Final = 2
_new_stream: Final[Callable[[], torch.cuda.Stream]] = torch.cuda.Stream
_DEVICE: Final = "cuda"


class _Open:
    """The plans, weights and embeddings of a decoder, which all its open engines share."""

    def __init__(self, decoder: ConfigOnlyDecoder, backend: str, module: ModuleType) -> None:
        device = torch.device(_DEVICE)
        self.plans = tensorrt_runtime.open_plans(decoder, backend, module, device)
        self.embeddings = stored_weights(decoder.located).embeddings(decoder.config, device)


class _Bucket(NamedTuple):
    """The buffers, the pass and the captured graph (None: not capturable) for one number of new positions.

    host: the inputs of `decoder_graph` as NumPy lays them out, and values derived from them, in pinned memory for
    asynchronous copies. device: their copies on the GPU. read: pairs of logits and of features, on the GPU and host.
    """

    host: dict[str, torch.Tensor]
    device: dict[str, torch.Tensor]
    read: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    run: Callable[[], None]
    captured: torch.cuda.CUDAGraph | None


@dataclass(frozen=True, slots=True)
class TensorRTDecoder:
    """A `LoadedDecoder` that reads its plans and weights when the first engine is opened.

    Attributes:
        decoder: The name, config and checked file of the decoder.
        backend: "tensorrt" or "tensorrt-rtx".
        module: The Python package of the backend.
        live: The state that open engines share; it is freed, with its GPU memory, when the last engine closes.
    """

    decoder: ConfigOnlyDecoder
    backend: str
    module: ModuleType
    live: WeakValueDictionary[str, _Open] = field(default_factory=WeakValueDictionary)

    @property
    def name(self) -> str:
        """See `LoadedDecoder`."""
        return self.decoder.name

    @property
    def config(self) -> DecoderConfig:
        """See `LoadedDecoder`."""
        return self.decoder.config

    @property
    def _folder(self) -> Path:
        return self.decoder.located.path.parent

    def _record(self) -> EngineRecord:
        return read_record(self._folder, part_of(self.name, device_graph.LAYERS), self.backend)

    @property
    def row_counts(self) -> tuple[int, ...] | None:
        """See `LoadedDecoder`; the numbers that the plan was built for."""
        least, most = self._record().rows
        return tuple(range(least, most + 1))

    def max_positions(self, rows: int) -> int | None:
        """See `LoadedDecoder`; the size of the largest profile."""
        record = self._record()
        check_rows(record, rows, self._folder)
        return max(most for _, most in record.passes)

    def open(self, rows: int) -> "TensorRTEngine":
        """See `LoadedDecoder`. Raises the errors of `open_plans`, and EngineError if the GPU's memory is too small."""
        record = self._record()
        check_rows(record, rows, self._folder)
        shared = self.live.get(self.name)
        if shared is None:
            shared = self.live[self.name] = _Open(self.decoder, self.backend, self.module)
        check_free(row_bytes(self.config, [most for _, most in record.passes]), rows, f"{self.name}: passes")
        return TensorRTEngine(self.config, shared, rows)


def row_bytes(config: DecoderConfig, counts: Sequence[int]) -> int:
    """Return the bytes of one row: its cache, and its inputs and outputs in passes of `counts` positions."""
    places, size = host_places(config, counts), TYPES[config.precision].itemsize
    cache = 2 * config.layers * config.kv_heads * device_graph.cached_width(config) * places * size
    return cache + sum(counts) * (4 * config.vocab_size + (8 + 2 * size) * config.dim + places)


def load_tensorrt(name: str, kind: str, folder: Path, backend: str) -> TensorRTDecoder:
    """Load the decoder `name` with its TensorRT plans.

    Raises ManifestError without a manifest of this kind, and EngineError without the package, a GPU, or a plan.
    """
    module = backend_module(backend)
    tensorrt_runtime.gpu_name()
    decoder = TensorRTDecoder(load_config_only(name, locate(name, kind, folder)), backend, module)
    _ = decoder.row_counts  # raises if the folder has no plans
    return decoder


class TensorRTEngine:
    """An `Engine` with only plain passes: a captured graph drafts one level and returns no distributions."""

    fuses_chains: Final = False
    fuses_trees: Final = False
    """See `Engine`."""

    def __init__(self, config: DecoderConfig, shared: _Open, rows: int) -> None:
        self.config, self.rows, self.cost = config, rows, PassTimer()
        self._counts = [most for _, most in shared.plans.layers.record.passes]
        self.memory = InPlaceMemory(config, rows, self._counts, _DEVICE)
        self.cache = KeyValueCache(self.memory, rows)
        self._shared: _Open | None = shared
        self._stream = _new_stream()
        self._outside: torch.Tensor | None = None
        if config.external_cond_rows:
            self._outside = torch.zeros((config.external_cond_rows, config.dim), dtype=torch.float32, device=_DEVICE)
        self._buckets: dict[int, _Bucket] = {}

    @property
    def captured(self) -> bool:
        """Whether all passes so far replayed CUDA graphs."""
        return all(bucket.captured is not None for bucket in self._buckets.values())

    def sample_by(self, params: SamplingParams) -> None:
        """See `Engine`; does nothing, as these graphs return only logits and the host computes the distributions."""

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        self.cache.clear(hidden)
        if cond_rows is not None and self._outside is not None:
            self._outside.copy_(torch.from_numpy(np.ascontiguousarray(cond_rows)))

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
        """See `Engine`. Raises EngineError for passes larger than the largest profile."""
        if chain_levels != 1 or tree is not None:
            raise EngineError("decoder: TensorRT's graphs are plain passes; draft level by level")
        check_cells(self.config, cells)
        if self._shared is None:
            raise EngineError("decoder: this engine is closed; open another one")
        count = cells.shape[-1]
        fitting = [size for size in self._counts if size >= count]
        if not fitting:
            raise EngineError(
                f"decoder: expected at most {max(self._counts)} new positions a pass, got {count}; draft fewer nodes "
                f"a cycle, or build with larger --buckets (as 1,8,16,32,64,{count})"
            )
        bucket = self._bucket(self._shared, min(fitting))
        seen = self.cache.past_bias if past_bias is None else past_bias
        self._fill(bucket.host, PassInputs(tokens, cells, bias, seen, features))
        start = perf_counter()
        output = self._pass(bucket, count)
        self.cost.add(call_kind(self.cache, count), count, perf_counter() - start)
        return output

    def close(self) -> None:
        self._buckets.clear()
        self._shared = None

    def _fill(self, host: dict[str, torch.Tensor], inputs: PassInputs) -> None:
        """Write a pass to the host buffers; the first places of the cache are the new positions."""
        buffers = {name: each.numpy() for name, each in host.items()}
        fill(buffers, inputs)
        bias, sees = buffers[names.BIAS], buffers[device_graph.SEES][:, 0]
        slots, first = self.memory.slots, self.memory.first_slot
        np.equal(bias[..., slots:], 0.0, out=sees[..., : bias.shape[2] - slots])
        np.equal(bias[..., :slots], 0.0, out=sees[..., first : first + slots])
        for row, visible in enumerate(sees[..., first : first + slots]):
            places = visible.any(axis=0).nonzero()[0]
            buffers[device_graph.READ_PLACES][row] = first + (int(places[-1]) + 1 if places.size else 0)

    def _pass(self, bucket: _Bucket, count: int) -> PassOutput:
        self._stream.wait_stream(torch.cuda.current_stream())  # wait for the commits of the last pass
        with torch.cuda.stream(self._stream):
            for name, buffer in bucket.device.items():
                buffer.copy_(bucket.host[name], non_blocking=True)
            if bucket.captured is not None:
                bucket.captured.replay()
            else:
                bucket.run()
            for output, read in bucket.read:
                read.copy_(output, non_blocking=True)
        self._stream.synchronize()
        self.memory.new_positions = count
        logits, features = (read.numpy()[:, :count] for _, read in bucket.read)
        return PassOutput(logits, features)

    def _bucket(self, shared: _Open, count: int) -> _Bucket:
        if count not in self._buckets:
            self._stream.wait_stream(torch.cuda.current_stream())  # warm-up passes overwrite what commits still read
            with torch.cuda.stream(self._stream):
                self._buckets[count] = self._make(shared, count)
            for plan in shared.plans:
                plan.keep_compiled()
        return self._buckets[count]

    def _make(self, shared: _Open, count: int) -> _Bucket:
        """Create buffers and contexts with their profiles, run warm-up passes, and capture a graph."""
        config, rows, memory = self.config, self.rows, self.memory
        kind = TYPES[config.precision]
        wide = (rows, count, config.dim)
        inputs = {
            names.TOKENS: ((rows, count), torch.int64),
            names.CELLS: ((rows, count), torch.int64),
            names.BIAS: ((rows, count, memory.slots + count), torch.float32),
            names.FEATURES: (wide, torch.float32),
            device_graph.SEES: ((rows, 1, count, memory.caches.shape[3]), torch.bool),
            device_graph.READ_PLACES: ((rows,), torch.int64),
        }
        if not config.drafter:
            del inputs[names.FEATURES]
        host = {name: torch.zeros(size, dtype=type_, pin_memory=True) for name, (size, type_) in inputs.items()}
        device = {name: aligned(*inputs[name], _DEVICE) for name in inputs if name != names.BIAS}
        passed = {name: device[name] for name in (names.CELLS, device_graph.SEES, device_graph.READ_PLACES)}
        passed[device_graph.WRITE_AT] = aligned((rows,), torch.int64, _DEVICE)
        passed[device_graph.EMBEDDINGS] = aligned(wide, kind, _DEVICE)
        if config.drafter:
            passed[names.FEATURES] = aligned(wide, kind, _DEVICE)
        features, logits = (
            aligned(wide, kind, _DEVICE),
            aligned((rows, count, config.vocab_size), torch.float32, _DEVICE),
        )
        layers = bind_layers(shared.plans.layers.bind, config, passed, features, memory.caches)
        head = shared.plans.head.bind({names.FEATURES: features}, {names.LOGITS: logits})
        widened = torch.zeros(wide, dtype=torch.float32, device=_DEVICE)

        def run() -> None:
            embedded = embed_ids(shared.embeddings, config.vocab_size, device[names.TOKENS], self._outside)
            passed[device_graph.EMBEDDINGS].copy_(embedded)
            if config.drafter:
                passed[names.FEATURES].copy_(device[names.FEATURES])
            layers()
            head()
            widened.copy_(features)

        read = tuple((output, torch.zeros(output.shape, pin_memory=True)) for output in (logits, widened))
        return _Bucket(host, device, read, run, self._capture(run, (layers, head)))

    def _capture(self, run: Callable[[], None], bound: Sequence[BoundPass]) -> torch.cuda.CUDAGraph | None:
        """Capture the pass as a CUDA graph; return None if the plans cannot be captured."""
        for _ in range(_WARM_UPS):
            run()
        self._stream.synchronize()
        if not all(one.capturable for one in bound):
            return None
        graph = torch.cuda.CUDAGraph()
        # TensorRT may compile kernels in its own threads, whose allocations must not invalidate the capture.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph
