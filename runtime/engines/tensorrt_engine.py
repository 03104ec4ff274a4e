"""A decoder on TensorRT: caches in CUDA memory that is never moved, one captured CUDA graph a number of positions.

`TensorRTEngine` has the seams of `onnx_engine.OnnxEngine`, so `EngineTarget` and `EngineDrafter`, which hold the
protocols of `algos.step`, run on it unchanged: `EngineTarget(load_tensorrt(...), sampler)`. New keys and values stay on
the device; logits and features come back in one copy each a pass.
"""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.device_cache import TYPES, DeviceCache, layered
from underpaint.runtime.engines.padding import Given, fill
from underpaint.runtime.engines.passes import Pass, PassTimer
from underpaint.runtime.engines.shape import DecoderShape, read_shape
from underpaint.runtime.engines.tensorrt_files import EngineRecord, backend_module, paths, read_engine

_WARM_UPS: Final = 2
_new_stream: Final[Callable[[], torch.cuda.Stream]] = torch.cuda.Stream


def gpu_name() -> str:
    """This machine's GPU with its compute capability; EngineError where PyTorch sees none."""
    if not torch.cuda.is_available():
        raise EngineError("no GPU: this PyTorch sees none; check the driver, and that PyTorch is a CUDA build")
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} (sm_{major}{minor})"


def new_context(module: ModuleType, engine: Any) -> Any:
    """A context of `engine` whose kernels are settled before its first pass; None where the GPU's memory is full.

    TensorRT for RTX swaps better kernels in while it runs, unless told not to: a graph captured before would keep the
    slow ones. TensorRT itself compiles when it builds. Every context holds the memory of its own profile: by default
    it would hold that of the largest, which may pass over a whole image.
    """
    own = module.ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE
    strategies = getattr(module, "DynamicShapesKernelSpecializationStrategy", None)
    if strategies is None:
        return engine.create_execution_context(own)
    config = engine.create_runtime_config()
    config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
    config.set_execution_context_allocation_strategy(own)
    return engine.create_execution_context(config)


class _Bucket(NamedTuple):
    """One optimisation profile: its context, buffers, and the captured graph (None: not capturable).

    host: inputs, and `read` outputs, in pinned memory, which copies without stopping for anything.
    """

    context: Any
    device: dict[str, torch.Tensor]
    host: dict[str, torch.Tensor]
    read: dict[str, torch.Tensor]
    captured: torch.cuda.CUDAGraph | None
    size: int


class TensorRTDecoder(NamedTuple):
    """A deserialised engine; any number of `TensorRTEngine`s may share one."""

    session: Any
    shape: DecoderShape
    name: str
    record: EngineRecord
    module: ModuleType
    runtime: Any
    """What read the engine, and must outlive it."""

    def engine(self, rows: int) -> "TensorRTEngine":
        """A new engine for `rows` sequences."""
        return TensorRTEngine(self, rows)


def load_tensorrt(name: str, kind: str, folder: Path, backend: str) -> TensorRTDecoder:
    """The engine of decoder `name`, refused unless graph, GPU and version are those that it was built for."""
    module = backend_module(backend)
    located, record = read_engine(folder, name, kind, backend, module.__version__, gpu_name())
    runtime = module.Runtime(module.Logger(module.Logger.ERROR))
    place = paths(folder, name, backend).engine
    engine = runtime.deserialize_cuda_engine(place.read_bytes())
    if engine is None:
        raise EngineError(f"{place}: {backend} cannot read it on this machine; build it here with `underpaint engine`")
    return TensorRTDecoder(engine, read_shape(located.manifest.settings, name), name, record, module, runtime)


class TensorRTEngine:
    """Runs a decoder engine on `rows` sequences against one cache; see `runtime.engines.onnx_engine.OnnxEngine`."""

    chains: Final = False
    """A captured graph holds one level of drafting."""
    grows: Final = False

    def __init__(self, loaded: TensorRTDecoder, rows: int) -> None:
        self.shape = loaded.shape
        self.rows = rows
        self.spent = PassTimer()
        self.cache = DeviceCache(loaded.shape, rows)
        self.conditions = np.zeros((loaded.shape.external_cond_rows, loaded.shape.dim), dtype=np.float32)
        self.unseen = np.zeros(rows, dtype=np.int64)
        self._loaded = loaded
        self._engine = loaded.session
        self._stream = _new_stream()
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        self._inputs = {name for name in names if self._engine.get_tensor_mode(name).name == "INPUT"}
        self._profiles = {
            count: index for index, (batch, count) in enumerate(loaded.record.batch_counts) if batch == rows
        }
        if not self._profiles:
            raise EngineError(f"{loaded.name}: its engine has no profile for {rows} rows; build it again")
        self._buckets: dict[int, _Bucket] = {}

    @property
    def captured(self) -> bool:
        """Whether every pass so far replayed a CUDA graph."""
        return all(bucket.captured is not None for bucket in self._buckets.values())

    def sample_by(self, sampler: SamplingParams) -> None:
        """See `OnnxEngine.sample_by`: these graphs give logits alone, of which the host makes distributions."""

    def run(
        self,
        tokens: IntArray,
        cells: IntArray,
        bias: FloatArray,
        past_bias: FloatArray | None = None,
        features: FloatArray | None = None,
    ) -> Pass:
        """One pass; see `OnnxEngine.run`: views of buffers that the next pass overwrites.

        Passes larger than the largest profile raise EngineError.
        """
        self.shape.check_cells(cells)
        count = len(cells)
        fitting = [size for size in self._profiles if size >= count]
        if not fitting:
            raise EngineError(
                f"decoder: expected at most {max(self._profiles)} new positions a pass, got {count}; draft fewer nodes "
                f"a cycle, or build with larger --buckets (as 1,8,16,32,64,{count})"
            )
        bucket = self._bucket(min(fitting))
        seen = self.cache.bias if past_bias is None else past_bias
        buffers = {name: each.numpy() for name, each in bucket.host.items()}
        fill(buffers, Given(tokens, cells, bias, seen, features, self.conditions, self.unseen))
        start = perf_counter()
        result = self._pass(bucket, count)
        self.spent.seconds += perf_counter() - start
        self.spent.passes += 1
        self.spent.positions += count
        return result

    def _pass(self, bucket: _Bucket, count: int) -> Pass:
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
        logits, found = (bucket.read[name].numpy()[:, :count] for name in ("logits", self._predicted))
        device: Any = bucket.device  # new keys and values stay there: `DeviceCache` alone reads them
        return Pass(logits, found, device["keys"][:, :, :, :count], device["values"][:, :, :, :count])

    @property
    def _predicted(self) -> str:
        """The output of features: a drafter reads an input of that name."""
        return "predicted" if "features" in self._inputs else "features"

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._stream.cuda_stream):
            raise EngineError("decoder: TensorRT could not run a pass; its log says why")

    def _bucket(self, count: int) -> _Bucket:
        if count not in self._buckets:
            self._buckets[count] = self._make(count)
        return self._buckets[count]

    def _make(self, count: int) -> _Bucket:
        """Buffers, a context on its profile, and a capture after warm-up passes."""
        shape, rows = self.shape, self.rows
        width = self.cache.slots + count
        sizes = {"tokens": (rows, count), "cells": (count,), "bias": (count, width)}
        kinds = dict.fromkeys(("tokens", "cells", "unseen"), torch.int64)
        if "features" in self._inputs:
            sizes["features"] = (rows, count, shape.dim)
        if "conditions" in self._inputs:
            sizes["conditions"] = self.conditions.shape
        if "unseen" in self._inputs:
            sizes["unseen"] = self.unseen.shape
        host, device = {}, {}
        for name, size in sizes.items():
            kind = kinds.get(name, torch.float32)
            host[name] = torch.zeros(size, dtype=kind, pin_memory=True)
            device[name] = torch.zeros(size, dtype=kind, device="cuda")
        new = (rows, shape.heads, count, shape.head_dim)
        for name in ("keys", "values"):
            device[name] = layered(shape.layers, new, TYPES[shape.precision], "cuda")
        read = {}
        for name, wide in (("logits", shape.vocab_size), (self._predicted, shape.dim)):
            device[name] = torch.zeros((rows, count, wide), device="cuda")
            read[name] = torch.zeros((rows, count, wide), pin_memory=True)
        context = self._context(count, host, device)
        return _Bucket(context, device, host, read, self._capture(context), count)

    def _context(self, count: int, host: dict[str, torch.Tensor], device: dict[str, torch.Tensor]) -> Any:
        context = new_context(self._loaded.module, self._engine)
        if context is None:
            raise EngineError("decoder: TensorRT made no execution context; is the GPU's memory full?")
        if not context.set_optimization_profile_async(self._profiles[count], self._stream.cuda_stream):
            raise EngineError(f"decoder: the engine refuses its profile of {count} positions; build it again")
        bound = {name: device[name] for name in host}
        for index in range(self.shape.layers):
            bound[f"past_key_{index}"] = self.cache.keys[index]
            bound[f"past_value_{index}"] = self.cache.values[index]
        for name, tensor in bound.items():
            if name in self._inputs and not context.set_input_shape(name, tuple(tensor.shape)):
                raise EngineError(f"decoder: the engine refuses {name} {tuple(tensor.shape)}; build it again")
        bound |= {name: device[name] for name in ("logits", self._predicted)}
        for index in range(self.shape.layers):
            bound[f"new_key_{index}"], bound[f"new_value_{index}"] = device["keys"][index], device["values"][index]
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
