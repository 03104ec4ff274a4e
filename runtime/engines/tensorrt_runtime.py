"""TensorRT plans at run time: checked against this machine, compiled once for it, and bound to torch tensors."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from underpaint.artifacts.decoder_graph import CELLS, FEATURES, past_key
from underpaint.artifacts.device_graph import HEAD, LAYERS, SEES, PassSize
from underpaint.artifacts.manifest import write_beside
from underpaint.runtime.device.weights import stored_weights
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.tensorrt_files import EngineRecord, build_again, part_of, paths, read_engine

_TYPES: Final = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT64": "int64", "BOOL": "bool"}
"""PyTorch's names of TensorRT's types."""


def gpu_name(index: int = 0) -> str:
    """Return the name and compute capability of a GPU; raise EngineError if PyTorch sees no GPU."""
    if not torch.cuda.is_available():
        raise EngineError("no GPU: this PyTorch sees none; check the driver, and that PyTorch is a CUDA build")
    major, minor = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})"


@dataclass(slots=True)
class TensorRTRuntime:
    """A deserialised engine, and the state that its contexts share.

    Attributes:
        record: The record of how the plan was built.
        module: The Python package of the backend.
        runtime: The TensorRT runtime that deserialised the engine and must outlive it.
        engine: The engine.
        compiled_file: Stores the kernels that TensorRT for RTX compiles on the first run, so that the next process does
            not compile them again.
    """

    record: EngineRecord
    module: ModuleType
    runtime: Any
    engine: Any
    compiled_file: Path
    _compiled: Any = field(default=None, init=False)
    _stored: bytes = field(default=b"", init=False)

    def new_context(self) -> Any:
        """Create a context with final kernels before its first pass; raise EngineError if the GPU's memory is full.

        By default, TensorRT for RTX replaces kernels by better ones while it runs, and a graph captured before would
        keep the slow ones. TensorRT itself compiles at build time. Each context allocates the memory of its own
        profile; the default is that of the largest profile, whose passes may cover a whole image.
        """
        allocation = self.module.ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE
        strategies = getattr(self.module, "DynamicShapesKernelSpecializationStrategy", None)
        if strategies is None:
            context = self.engine.create_execution_context(allocation)
        else:
            config = self.engine.create_runtime_config()
            config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
            config.set_execution_context_allocation_strategy(allocation)
            self._reuse_compiled(config)
            context = self.engine.create_execution_context(config)
        if context is None:
            raise EngineError("decoder: TensorRT made no execution context; is the GPU's memory full?")
        return context

    def _reuse_compiled(self, config: Any) -> None:
        """Let the context load kernels from the file, and collect newly compiled ones for `keep_compiled`."""
        if self._compiled is None:
            self._compiled = config.create_runtime_cache()
            if self.compiled_file.is_file():
                content = self.compiled_file.read_bytes()
                if self._compiled.deserialize(content):  # False for another GPU, driver or version: compile again
                    self._stored = content
        config.set_runtime_cache(self._compiled)

    def keep_compiled(self) -> None:
        """Store newly compiled kernels; do nothing if the folder is not writable."""
        if self._compiled is None:
            return
        content = bytes(self._compiled.serialize())
        if content != self._stored:
            self._stored = content
            with suppress(OSError):
                write_beside(self.compiled_file, content)

    @property
    def tensors(self) -> dict[str, torch.dtype]:
        """The types of the plan's inputs and outputs by name."""
        engine = self.engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        return {name: getattr(torch, _TYPES[engine.get_tensor_dtype(name).name]) for name in names}


class TensorRTGraph:
    """A plan with its weights; each binding has its own context and runs on the current stream, to allow capture."""

    def __init__(self, runtime: TensorRTRuntime, weights: Mapping[str, Tensor], again: str) -> None:
        """Create a graph with its weights.

        Args:
            runtime: The deserialised engine.
            weights: The plan's inputs other than those of its passes, by name.
            again: The remedy for a rejected pass.
        """
        self.record, self._runtime, self._again = runtime.record, runtime, again
        self._tensors = runtime.tensors
        self._weights = {name: each for name, each in weights.items() if name in self._tensors}

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> "BoundPass":
        """Return a pass on the current stream, bound to these tensors' addresses; see `engine_forward.DeviceGraph`."""
        size, rows = size_of(inputs), next(iter(inputs.values())).shape[0]
        place = self.record.fitting(size.most)
        if place is None or not self.record.rows[0] <= rows <= self.record.rows[1]:
            raise EngineError(f"{self.record.model}: no engine for {size} in {rows} rows; {self._again}")
        context = self._runtime.new_context()
        ready = context.set_optimization_profile_async(place, current_stream())
        bound = {**inputs, **self._weights}
        for name, tensor in bound.items():
            ready = ready and context.set_input_shape(name, tuple(tensor.shape))
        for name, tensor in (*bound.items(), *outputs.items()):
            assert tensor.is_contiguous()
            if (kind := self._tensors.get(name, tensor.dtype)) != tensor.dtype:
                raise EngineError(f"{self.record.model}: expected {name} in {kind}, got {tensor.dtype}; {self._again}")
            ready = ready and context.set_tensor_address(name, tensor.data_ptr())
        if not ready or self._tensors.keys() != {*bound, *outputs}:
            raise EngineError(f"{self.record.model}: the engine refuses {size} in {rows} rows; {self._again}")
        self._runtime.keep_compiled()
        return BoundPass(self.record.model, context, (bound, dict(outputs)))

    def keep_compiled(self) -> None:
        """See `TensorRTRuntime`."""
        self._runtime.keep_compiled()


@dataclass(frozen=True, slots=True)
class BoundPass:
    """A context bound to addresses; tensors: the tensors at these addresses, kept alive."""

    model: str
    context: Any
    tensors: tuple[Mapping[str, Tensor], Mapping[str, Tensor]]

    def __call__(self) -> None:
        """Run on the current stream."""
        if not self.context.execute_async_v3(current_stream()):
            raise EngineError(f"{self.model}: TensorRT could not run a pass; its log says why")

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can capture the pass."""
        capturable = getattr(self.context, "is_stream_capturable", None)
        return capturable is None or bool(capturable(current_stream()))


def current_stream() -> int:
    """Return the handle of torch's current CUDA stream."""
    return torch.cuda.current_stream().cuda_stream


def size_of(inputs: Mapping[str, Tensor]) -> PassSize:
    """Return the size of a pass, derived from its inputs."""
    layers = SEES in inputs
    count = inputs[CELLS if layers else FEATURES].shape[1]
    return PassSize(count, count, inputs[past_key(0)].shape[2] if layers else 0)


class Plans(NamedTuple):
    """The two plans of a decoder, which share one copy of the weights on the GPU."""

    layers: TensorRTGraph
    head: TensorRTGraph


def open_plans(
    decoder: ConfigOnlyDecoder,
    backend: str,
    module: ModuleType,
    device: torch.device,
    for_device: bool = False,
    again: str | None = None,
) -> Plans:
    """Open the plans of a decoder, and check that they were built for this graph, GPU and version.

    Args:
        decoder: The decoder, with its checked file.
        backend: "tensorrt" or "tensorrt-rtx".
        module: The Python package of the backend.
        device: The GPU that the weights are copied to.
        for_device: Whether to open the plans of the device runtime, see `part_of`.
        again: See `read_record`.

    Raises:
        EngineError: A plan does not fit, or a weight is missing from the decoder's file.
    """
    folder, manifest = decoder.located.path.parent, decoder.located.manifest
    again = again or build_again(folder, backend)
    runtimes = []
    for part in (LAYERS, HEAD):
        name = part_of(manifest.name, part, for_device)
        file = read_engine(folder, name, backend, manifest, module.__version__, gpu_name(device.index or 0), again)
        runtime = module.Runtime(module.Logger(module.Logger.ERROR))
        if file.record.version_compatible:
            runtime.engine_host_code_allowed = True  # a plan may contain the runtime of its own version
        engine = runtime.deserialize_cuda_engine(file.content)
        place = paths(folder, name, backend)
        if engine is None:
            raise EngineError(f"{place.engine}: {backend} cannot read it on this machine; {again}")
        runtimes.append(TensorRTRuntime(file.record, module, runtime, engine, place.runtime))
    types = {name: kind for one in runtimes for name, kind in one.tensors.items()}
    weights = stored_weights(decoder.located).on_device(types, decoder.config, device)
    return Plans(*(TensorRTGraph(one, weights, again) for one in runtimes))
