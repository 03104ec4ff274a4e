"""A TensorRT plan at run time: refused unless it fits this machine, compiled once for it, bound to torch tensors."""

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
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder
from underpaint.runtime.engines.tensorrt_files import EngineRecord, build_again, part_of, paths, read_engine

_TYPES: Final = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT64": "int64", "BOOL": "bool"}
"""TensorRT's names of types, and PyTorch's."""


def gpu_name(index: int = 0) -> str:
    """A GPU of this machine with its compute capability; EngineError where PyTorch sees none."""
    if not torch.cuda.is_available():
        raise EngineError("no GPU: this PyTorch sees none; check the driver, and that PyTorch is a CUDA build")
    major, minor = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})"


@dataclass(slots=True)
class TensorRTRuntime:
    """A deserialised engine, and what its contexts share.

    runtime: what read the engine, and must outlive it. compiled_file: where kernels that TensorRT for RTX compiles when
    it first runs are stored, so that the next process need not compile them again.
    """

    record: EngineRecord
    module: ModuleType
    runtime: Any
    engine: Any
    compiled_file: Path
    _compiled: Any = field(default=None, init=False)
    _stored: bytes = field(default=b"", init=False)

    def new_context(self) -> Any:
        """A context whose kernels are settled before its first pass; EngineError where the GPU's memory is full.

        TensorRT for RTX swaps better kernels in while it runs, unless told not to: a graph captured before would keep
        the slow ones. TensorRT itself compiles when it builds. Every context holds the memory of its own profile: by
        default it would hold that of the largest, which may pass over a whole image.
        """
        own = self.module.ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE
        strategies = getattr(self.module, "DynamicShapesKernelSpecializationStrategy", None)
        if strategies is None:
            context = self.engine.create_execution_context(own)
        else:
            config = self.engine.create_runtime_config()
            config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
            config.set_execution_context_allocation_strategy(own)
            self._reuse_compiled(config)
            context = self.engine.create_execution_context(config)
        if context is None:
            raise EngineError("decoder: TensorRT made no execution context; is the GPU's memory full?")
        return context

    def _reuse_compiled(self, config: Any) -> None:
        """Let the context take kernels from the file, and leave those that it compiles for `keep_compiled`."""
        if self._compiled is None:
            self._compiled = config.create_runtime_cache()
            if self.compiled_file.is_file():
                content = self.compiled_file.read_bytes()
                if self._compiled.deserialize(content):  # False: of another GPU, driver or version; made anew
                    self._stored = content
        config.set_runtime_cache(self._compiled)

    def keep_compiled(self) -> None:
        """Store kernels that were compiled since; a folder that cannot be written is left as it is."""
        if self._compiled is None:
            return
        content = bytes(self._compiled.serialize())
        if content != self._stored:
            self._stored = content
            with suppress(OSError):
                write_beside(self.compiled_file, content)

    @property
    def tensors(self) -> dict[str, torch.dtype]:
        """The types of the plan's inputs and outputs, by name."""
        engine = self.engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        return {name: getattr(torch, _TYPES[engine.get_tensor_dtype(name).name]) for name in names}


class TensorRTGraph:
    """A plan over weights: a context for every binding, enqueued on the current stream, so that a graph captures it."""

    def __init__(self, runtime: TensorRTRuntime, weights: Mapping[str, Tensor], again: str) -> None:
        """weights: what the plan reads besides its passes' inputs; again: what to do where it refuses a pass."""
        self.record, self._runtime, self._again = runtime.record, runtime, again
        self._tensors = runtime.tensors
        self._weights = {name: each for name, each in weights.items() if name in self._tensors}

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> "BoundPass":
        """What runs the plan on the current stream, at these tensors' addresses; see `engine_forward.DeviceGraph`."""
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
    """A context at its addresses; tensors: what lies there, which lives as long as this."""

    model: str
    context: Any
    tensors: tuple[Mapping[str, Tensor], Mapping[str, Tensor]]

    def __call__(self) -> None:
        """Run on the current stream."""
        if not self.context.execute_async_v3(current_stream()):
            raise EngineError(f"{self.model}: TensorRT could not run a pass; its log says why")

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold it."""
        capturable = getattr(self.context, "is_stream_capturable", None)
        return capturable is None or bool(capturable(current_stream()))


def current_stream() -> int:
    """The handle of the CUDA stream that torch launches on."""
    return torch.cuda.current_stream().cuda_stream


def size_of(inputs: Mapping[str, Tensor]) -> PassSize:
    """The size of a pass from what it reads."""
    layers = SEES in inputs
    count = inputs[CELLS if layers else FEATURES].shape[1]
    return PassSize(count, count, inputs[past_key(0)].shape[2] if layers else 0)


class Plans(NamedTuple):
    """A decoder's two plans, over weights that the device holds once."""

    layers: TensorRTGraph
    head: TensorRTGraph


def open_plans(
    decoder: ElsewhereDecoder,
    backend: str,
    module: ModuleType,
    device: torch.device,
    for_device: bool = False,
    again: str | None = None,
) -> Plans:
    """The plans of a decoder, refused unless graph, GPU and version are those that they were built for.

    for_device: those of the device runtime, see `part_of`; again: see `read_record`.
    Raises EngineError; also where a weight is missing from the decoder's file.
    """
    folder, known = decoder.located.path.parent, decoder.located.manifest
    again = again or build_again(folder, backend)
    runtimes = []
    for part in (LAYERS, HEAD):
        name = part_of(known.name, part, for_device)
        file = read_engine(folder, name, backend, known, module.__version__, gpu_name(), again)
        runtime = module.Runtime(module.Logger(module.Logger.ERROR))
        if file.record.version_compatible:
            runtime.engine_host_code_allowed = True  # a plan may bring the runtime of its own version
        engine = runtime.deserialize_cuda_engine(file.content)
        place = paths(folder, name, backend)
        if engine is None:
            raise EngineError(f"{place.engine}: {backend} cannot read it on this machine; {again}")
        runtimes.append(TensorRTRuntime(file.record, module, runtime, engine, place.runtime))
    types = {name: kind for one in runtimes for name, kind in one.tensors.items()}
    weights = stored_weights(decoder.located).on_device(types, decoder.config, device)
    return Plans(*(TensorRTGraph(one, weights, again) for one in runtimes))
