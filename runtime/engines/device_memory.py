"""KV caches in GPU memory, and the buffers there that an ONNX Runtime session reads and writes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from underpaint.algos.arrays import IntArray
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.device_graph import cache_specs, cached_width, features_output
from underpaint.runtime.engines.context import EngineError, bind, onnx_runtime

TYPES: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ALIGNED_BYTES: Final = 256
"""The alignment of every address that TensorRT takes; PyTorch's allocations have it."""

_BFLOAT16: Final = 16
"""ONNX's number for bfloat16, a type that NumPy does not have."""
_HOST: Final = ("Cpu", "CudaPinned")
"""ONNX Runtime's names for memory that the host can read and write."""
_NOT_CAPTURED: Final = -1
_graph_ids: Final = count(1)
Pass = TypeVar("Pass")
"""A callable that runs a bound pass."""


def layered(layers: int, shape: tuple[int, ...], kind: torch.dtype, device: str | torch.device) -> torch.Tensor:
    """Return zeros [layers, *shape] in which each layer is contiguous and aligned for TensorRT."""
    count, unit = math.prod(shape), ALIGNED_BYTES // kind.itemsize
    apart = -(-count // unit) * unit
    return torch.zeros((layers, apart), dtype=kind, device=device)[:, :count].view(layers, *shape)


def aligned(shape: tuple[int, ...], kind: torch.dtype, device: str | torch.device) -> torch.Tensor:
    """Return contiguous zeros that are aligned for TensorRT."""
    return layered(1, shape, kind, device)[0]


def cache_places(config: DecoderConfig, count: int) -> int:
    """Return the least number of cache places, at least `count`, that aligns every layer for TensorRT."""
    size = config.kv_heads * cached_width(config) * TYPES[config.precision].itemsize
    unit = ALIGNED_BYTES // math.gcd(ALIGNED_BYTES, size)
    return -(-count // unit) * unit


def host_places(config: DecoderConfig, counts: Sequence[int]) -> int:
    """Return the cache places of an engine that the host drives: the largest pass plus all committed positions."""
    return cache_places(config, max(counts) + config.capacity)


def check_free(row_bytes: int, rows: int, what: str) -> None:
    """Raise EngineError, with the number of rows that fit, unless the GPU has `row_bytes` free for each of `rows`."""
    free, _ = torch.cuda.mem_get_info()
    if rows * row_bytes > free:
        raise EngineError(
            f"{what} of {rows} rows need {rows * row_bytes:,} bytes beside the weights, the GPU has {free:,} free; the "
            f"largest that fits has {free // row_bytes} rows: lower the batch, or build with smaller --buckets"
        )


def bind_layers(
    bind: Callable[[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]], Pass],
    config: DecoderConfig,
    inputs: Mapping[str, torch.Tensor],
    features: torch.Tensor,
    caches: Iterable[torch.Tensor],
) -> Pass:
    """Bind the layers of `artifacts.device_graph` on an engine; they write to the caches that they read.

    Args:
        bind: The engine's function that binds inputs and outputs.
        config: The config of the decoder.
        inputs: The inputs of the graph, except the caches.
        features: The output of the graph.
        caches: The caches, in the order of `cache_specs`.
    """
    read, written = dict[str, torch.Tensor](), {features_output(config.drafter): features}
    for (before, after), cache in zip(cache_specs(config), caches, strict=True):
        read[before.name] = written[after.name] = cache
    return bind({**inputs, **read}, written)


class _FixedMemory:
    """Base of the caches in CUDA memory. S is fixed, because captured graphs read fixed addresses."""

    def __init__(self, config: DecoderConfig, device: str) -> None:
        self.capacity = self.slots = config.capacity
        self._device = device

    def reset(self) -> None:
        """See `CacheMemory`."""

    def grow(self, count: int) -> None:
        """See `CacheMemory`."""

    def _index(self, places: IntArray) -> torch.Tensor:
        return torch.tensor(np.asarray(places), device=self._device)


class DeviceMemory(_FixedMemory):
    """A `CacheMemory` in CUDA memory, for passes that read the cache and return the new keys and values."""

    def __init__(self, config: DecoderConfig, rows: int, device: str = "cuda") -> None:
        super().__init__(config, device)
        kind = TYPES[config.precision]
        self.keys = layered(config.layers, (rows, config.kv_heads, config.head_dim, self.slots), kind, device)
        self.values = layered(config.layers, (rows, config.kv_heads, self.slots, config.head_dim), kind, device)
        self.new_keys = self.new_values = self.values[:, :, :, :0]
        """The keys and values of the last pass, [L, B, H, T, hd]."""

    @property
    def new_positions(self) -> int:
        """The number of new positions in the last pass, T."""
        return int(self.new_keys.shape[3])

    def write(self, rows: slice, positions: IntArray | slice, start: int, count: int) -> None:
        at = positions if isinstance(positions, slice) else self._index(positions)
        end = start + count
        self.keys[:, rows, :, :, start:end] = self.new_keys[:, rows, :, at].transpose(3, 4)
        self.values[:, rows, :, start:end] = self.new_values[:, rows, :, at]

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        at, to = self._index(positions), self._index(slots)
        self.keys[..., to] = self.new_keys[:, :, :, at].transpose(3, 4)
        self.values[:, :, :, to] = self.new_values[:, :, :, at]


class InPlaceMemory(_FixedMemory):
    """A `CacheMemory` in CUDA memory, for passes that write to the cache themselves.

    caches: for each layer its keys [B, H, P, W], then its values. A pass writes its T new positions to the first
    places; the slots follow after the places of the largest pass.
    """

    def __init__(self, config: DecoderConfig, rows: int, counts: Sequence[int], device: str = "cuda") -> None:
        """Create the cache.

        Args:
            config: The config of the decoder.
            rows: The number of rows, B.
            counts: The possible numbers of new positions of a pass.
            device: PyTorch's name of the GPU.
        """
        super().__init__(config, device)
        shape = rows, config.kv_heads, host_places(config, counts), cached_width(config)
        self.caches = layered(2 * config.layers, shape, TYPES[config.precision], device)
        self.first_slot, self.new_positions = max(counts), 0
        self._committed = self.caches[:, :, :, self.first_slot : self.first_slot + self.slots]
        self.keys, self.values = self._committed[::2].transpose(3, 4), self._committed[1::2]

    def write(self, rows: slice, positions: IntArray | slice, start: int, count: int) -> None:
        new = self.caches[:, rows, :, : self.new_positions]
        at = positions if isinstance(positions, slice) else self._index(positions)
        self._committed[:, rows, :, start : start + count] = new[:, :, :, at]

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        self._committed[:, :, :, self._index(slots)] = self.caches[:, :, :, self._index(positions)]


class DeviceBuffers:
    """A KV cache in GPU memory, and the host buffers of a session's passes, each with a mirror on the GPU.

    A pass copies the host's inputs to their mirrors, runs, and copies the outputs back. The cache, the new keys and the
    new values never leave the GPU.
    """

    def __init__(
        self, session: Any, config: DecoderConfig, rows: int, device: str, graph_option: str | None = None
    ) -> None:
        """Create the cache.

        Args:
            session: The session that runs the passes.
            config: The config of the decoder.
            rows: The number of rows, B.
            device: PyTorch's name of the GPU. "cpu" uses the same code with mirrors in separate host memory.
            graph_option: The run option that names a captured graph; None if the session captures no graphs.
        """
        self.memory = DeviceMemory(config, rows, device)
        self.captures = graph_option is not None
        self._session, self._device, self._graph_option = session, torch.device(device), graph_option
        self._on_host = host_inputs(session) if self._device.type == "cuda" else frozenset()
        self._arrays: dict[str, NDArray[Any]] = {}
        self._stored: dict[str, torch.Tensor] = {}
        self._mirrors: dict[int, torch.Tensor] = {}
        """The mirrors, by the address of the host array."""
        self._settled: set[int] = set()
        self._graphs: list[int] = []

    def host(self, name: str, shape: tuple[int, ...], most: int, kind: DTypeLike = np.float32) -> NDArray[Any]:
        """See `HostBuffers`."""
        if name not in self._arrays:
            zeros = torch.from_numpy(np.zeros(most, dtype=kind))
            self._arrays[name] = flat = (zeros.pin_memory() if self._device.type == "cuda" else zeros).numpy()
            self._mirrors[flat.ctypes.data] = zeros.to(self._device, copy=True)
        array: NDArray[Any] = self._arrays[name][: math.prod(shape)].reshape(shape)
        return array

    def stored(self, name: str, shape: tuple[int, ...], most: int) -> torch.Tensor:
        """See `HostBuffers`."""
        if name not in self._stored:
            self._stored[name] = torch.zeros(most, dtype=self.memory.keys.dtype, device=self._device)
        return self._stored[name][: math.prod(shape)].view(shape)

    def settle(self, array: NDArray[Any]) -> None:
        """Copy an array of `host` to its mirror now, instead of in every pass."""
        self._mirrors[array.ctypes.data][: array.size].view(array.shape).copy_(torch.from_numpy(array))
        self._settled.add(array.ctypes.data)

    def bind(
        self,
        inputs: Mapping[str, NDArray[Any] | torch.Tensor],
        outputs: Mapping[str, NDArray[Any] | torch.Tensor],
        capture: bool,
    ) -> Callable[[], None]:
        """Return a pass from `inputs` to `outputs` that keeps both alive.

        Tensors are bound in place. A host input that nodes of the session read on the host is also bound in place,
        because otherwise ONNX Runtime would copy it only once, when it is bound.

        Args:
            inputs: The inputs by name.
            outputs: The outputs by name.
            capture: Whether to capture the pass, if the session captures: with fixed addresses and shapes.
        """
        binding, moved_in, moved_out = self._session.io_binding(), [], []
        bound: list[Any] = [dict(inputs), dict(outputs)]
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor):
                self._bind(binding.bind_input, name, value, value.data_ptr())
            elif name in self._on_host:
                bind(binding, "input", name, value)
            else:
                mirror, flat = self._mirror(value)
                self._bind(binding.bind_input, name, mirror, flat.data_ptr())
                bound.append(flat)
                if value.ctypes.data not in self._settled:
                    moved_in.append((mirror, torch.from_numpy(value)))
        for name, value in outputs.items():
            if isinstance(value, torch.Tensor):
                self._bind(binding.bind_output, name, value, value.data_ptr())
            else:
                mirror, flat = self._mirror(value)
                self._bind(binding.bind_output, name, mirror, flat.data_ptr())
                bound.append(flat)
                moved_out.append((torch.from_numpy(value), mirror))
        options = self._run_options(capture)
        session = self._session

        def run() -> None:
            assert bound  # keeps the bound buffers alive as long as the pass
            for mirror, tensor in moved_in:
                mirror.copy_(tensor, non_blocking=True)
            self._synchronize()  # ONNX Runtime uses its own stream, and waits for it before it returns
            session.run_with_iobinding(binding, options)
            for tensor, mirror in moved_out:
                tensor.copy_(mirror, non_blocking=True)
            self._synchronize()

        return run

    def close(self) -> None:
        """Free the memory and the session's captured graphs."""
        for graph in self._graphs:
            self._session.release_captured_graph(graph)
        for buffers in (self._arrays, self._stored, self._mirrors, self._graphs):
            buffers.clear()

    def _bind(self, put: Callable[..., None], name: str, tensor: torch.Tensor, address: int) -> None:
        assert tensor.is_contiguous()
        kind = _BFLOAT16 if tensor.dtype == torch.bfloat16 else torch.empty(0, dtype=tensor.dtype).numpy().dtype
        put(name, self._device.type, self._device.index or 0, kind, tuple(tensor.shape), address)

    def _mirror(self, array: NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mirror of an array, and the flat tensor that contains it: an empty mirror has no own address."""
        flat = self._mirrors.get(array.ctypes.data)
        if flat is None:
            flat = torch.zeros(max(1, array.size), dtype=torch.from_numpy(array).dtype, device=self._device)
        return flat[: array.size].view(array.shape), flat

    def _run_options(self, capture: bool) -> Any:
        if self._graph_option is None:
            return None
        graph = next(_graph_ids) if capture else _NOT_CAPTURED
        if capture:
            self._graphs.append(graph)
        options = onnx_runtime().RunOptions()
        options.add_run_config_entry(self._graph_option, str(graph))
        return options

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def host_inputs(session: Any) -> frozenset[str]:
    """Return the inputs that a session reads on the host, such as k of a top-k."""
    infos = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
    return frozenset(each.name for each, info in infos if info.name in _HOST)
