"""TensorRT and CUDA for machines without a GPU: engines that run their graph on ONNX Runtime, at the addresses bound.

What stands in here holds to NVIDIA's contract: a context takes only the shapes of its profile, addresses are multiples
of 256, a cache is written where it is read, a captured pass is recorded and not run, and a replay reads and writes the
memory of the capture. The graphs are those that NVIDIA's builder is given.
"""

import ctypes
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from underpaint.export.device_engines import build_folder
from underpaint.export.tensorrt_build import EngineBuilder, Profile
from underpaint.runtime.engines import device_memory, tensorrt_engine, tensorrt_runtime
from underpaint.runtime.engines.context import EngineContext, open_session

BACKEND = "tensorrt-rtx"
GPU, VERSION = "a stand-in (sm_00)", "0.0"
_ALIGNED = 256
_KINDS = {
    "tensor(int64)": ("INT64", np.int64),
    "tensor(float)": ("FLOAT", np.float32),
    "tensor(float16)": ("HALF", np.float16),
    "tensor(bool)": ("BOOL", np.bool_),
}
"""ONNX Runtime's names of types, with TensorRT's and NumPy's."""
_STREAM = 7


@dataclass
class Graph:
    """A captured CUDA graph."""

    calls: list[Callable[[], None]] = field(default_factory=list)

    def replay(self) -> None:
        for call in self.calls:
            call()


class Recorder:
    """What is being captured, and how often anything ran."""

    capturing: Graph | None = None
    enqueued = 0


class RuntimeCache:
    """Kernels compiled at run time: the passes whose contexts were made."""

    compiled = 0
    """By all of them, and taken from no file."""
    gpu = GPU

    def __init__(self) -> None:
        self.held: set[str] = set()

    def deserialize(self, blob: bytes) -> bool:
        if not blob.startswith(self.gpu.encode()):
            return False
        self.held = set(json.loads(blob[len(self.gpu) :]))
        return True

    def serialize(self) -> bytes:
        return self.gpu.encode() + json.dumps(sorted(self.held)).encode()

    def need(self, kernel: str) -> None:
        RuntimeCache.compiled += kernel not in self.held
        self.held.add(kernel)


@dataclass
class Config:
    """A runtime configuration."""

    cache: RuntimeCache = field(default_factory=RuntimeCache)

    dynamic_shapes_kernel_specialization_strategy: str = "LAZY"

    def create_runtime_cache(self) -> RuntimeCache:
        return RuntimeCache()

    def set_runtime_cache(self, cache: RuntimeCache) -> bool:
        self.cache = cache
        return True

    def set_execution_context_allocation_strategy(self, strategy: str) -> bool:
        assert strategy == "ON_PROFILE_CHANGE"
        return True


class Context:
    def __init__(self, engine: "Engine", config: Config) -> None:
        self._engine = engine
        self._cache = config.cache
        self._capturable = config.dynamic_shapes_kernel_specialization_strategy == "EAGER" and engine.capturable
        self._addresses: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._profile: dict[str, Any] = {}

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream == _STREAM
        self._profile = dict(self._engine.profiles[index])
        self._cache.need(f"{self._engine.name} {index}")
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = shape
        if name not in self._profile:
            return list(shape) == self._engine.shapes[name]
        least, _, most = self._profile[name]
        return len(shape) == len(least) and all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert memory % _ALIGNED == 0, f"{name} at {memory}"
        self._addresses[name] = memory
        return name in self._engine.kinds

    def is_stream_capturable(self, stream: int) -> bool:
        assert stream == _STREAM
        return self._capturable

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == _STREAM
        assert set(self._addresses) == set(self._engine.kinds)
        for name, address in self._addresses.items():
            if name.startswith("written_"):
                assert address == self._addresses[name.replace("written", "past")], "a cache is updated in place"
        if Recorder.capturing is not None:
            assert self._capturable
            Recorder.capturing.calls.append(self._run)
        else:
            self._run()
        return True

    def _run(self) -> None:
        Recorder.enqueued += 1
        engine = self._engine
        feed = {each: self._memory(each, self._shapes[each]).copy() for each in engine.inputs}
        names = [each for each in engine.kinds if each not in engine.inputs]
        for name, value in zip(names, engine.session.run(names, feed), strict=True):
            self._memory(name, value.shape)[...] = value

    def _memory(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        kind = np.dtype(self._engine.kinds[name])
        size = int(np.prod(shape)) * kind.itemsize
        raw = (ctypes.c_char * size).from_address(self._addresses[name])
        return np.frombuffer(raw, dtype=kind).reshape(shape)


class Engine:
    """A graph on ONNX Runtime behind the methods of NVIDIA's engine."""

    capturable = True
    live: ClassVar[WeakSet["Engine"]] = WeakSet()
    """Those that hold weights in memory."""

    def __init__(self, content: bytes) -> None:
        Engine.live.add(self)
        fields = json.loads(content)
        self.name, self.profiles = fields["name"], fields["profiles"]
        self.session = open_session(Path(__file__), EngineContext(threads=1), b64decode(fields["graph"]))
        both = (*self.session.get_inputs(), *self.session.get_outputs())
        self.inputs = [each.name for each in self.session.get_inputs()]
        self.types = {each.name: _KINDS[each.type][0] for each in both}
        self.kinds = {each.name: _KINDS[each.type][1] for each in both}
        self.shapes = {each.name: list(each.shape) for each in both}

    @property
    def num_io_tensors(self) -> int:
        return len(self.kinds)

    def get_tensor_name(self, index: int) -> str:
        return list(self.kinds)[index]

    def get_tensor_dtype(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=self.types[name])

    def create_runtime_config(self) -> Config:
        return Config()

    def create_execution_context(self, config: Config) -> Context:
        return Context(self, config)


def _zeros(size: Any, dtype: Any = torch.float32, device: str = "cpu", pin_memory: bool = False) -> torch.Tensor:
    """As CUDA's allocator does it: at a multiple of 256."""
    count = int(np.prod(size)) * dtype.itemsize
    raw = torch.zeros(count + _ALIGNED, dtype=torch.uint8)
    start = -raw.data_ptr() % _ALIGNED
    return raw[start : start + count].view(dtype).reshape(tuple(size))


class _Logger:
    ERROR = 1

    def __init__(self, severity: int) -> None:
        assert severity == self.ERROR


class _Recording(TorchDispatchMode):
    """PyTorch's operations, in the graph that is being captured."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))

        def again() -> None:
            new_output = function(*args, **(kwargs or {}))
            if new_output is not args[0]:
                output.copy_(new_output)

        assert Recorder.capturing is not None
        Recorder.capturing.calls.append(again)
        return output


@contextmanager
def _capture(graph: Graph, stream: object, capture_error_mode: str) -> Iterator[None]:
    Recorder.capturing = graph
    with _Recording():
        yield
    Recorder.capturing = None


@contextmanager
def _on(stream: object) -> Iterator[None]:
    yield


class _Over:
    """PyTorch, with some of its names replaced."""

    def __init__(self, **replaced: Any) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


MODULE = SimpleNamespace(
    __name__="tensorrt_rtx",
    __version__=VERSION,
    Logger=_Logger,
    Runtime=lambda logger: SimpleNamespace(deserialize_cuda_engine=Engine),
    ExecutionContextAllocationStrategy=SimpleNamespace(ON_PROFILE_CHANGE="ON_PROFILE_CHANGE"),
    DynamicShapesKernelSpecializationStrategy=SimpleNamespace(LAZY="LAZY", EAGER="EAGER", NONE="NONE"),
)
FREE = 1 << 40
"""Bytes that the GPU has free."""


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `runtime.engines.tensorrt_engine` find this TensorRT, and CUDA's memory in the host's."""
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None, cuda_stream=_STREAM)
    cuda = SimpleNamespace(
        current_stream=lambda: stream,
        stream=_on,
        CUDAGraph=Graph,
        graph=_capture,
        Stream=torch.cuda.Stream,
        mem_get_info=lambda: (FREE, FREE),
    )
    monkeypatch.setattr(tensorrt_engine, "torch", _Over(zeros=_zeros, cuda=cuda))
    on_host = _Over(zeros=_zeros, tensor=lambda values, device: torch.tensor(values), cuda=cuda)
    monkeypatch.setattr(device_memory, "torch", on_host)
    monkeypatch.setattr(tensorrt_engine, "_DEVICE", "cpu")
    monkeypatch.setattr(tensorrt_engine, "_new_stream", lambda: stream)
    monkeypatch.setattr(tensorrt_runtime, "current_stream", lambda: _STREAM)
    monkeypatch.setattr(tensorrt_runtime, "gpu_name", lambda index=0: GPU)
    monkeypatch.setattr(tensorrt_engine, "backend_module", lambda backend: MODULE)


class Builder(EngineBuilder):
    """A builder whose plans hold the graph as it is."""

    def build(self, graph: bytes, profiles: list[Profile], name: str, precision: str, timing: Path) -> bytes:
        return json.dumps({"graph": b64encode(graph).decode(), "profiles": profiles, "name": name}).encode()


BUILDER = Builder(MODULE, BACKEND, GPU)  # type: ignore[arg-type]


def build(folder: Path, name: str, buckets: tuple[int, ...], batches: tuple[int, ...] = (1, 2)) -> None:
    """Write the plans of a decoder as `underpaint engine` would."""
    list(build_folder(folder, BUILDER, (name,), buckets, batches))
