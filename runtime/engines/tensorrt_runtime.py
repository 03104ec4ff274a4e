"""An engine file of TensorRT at run time: refused unless it fits this machine, compiled once for it."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from underpaint.artifacts.manifest import write_beside
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.tensorrt_files import EngineRecord, part_of, paths, read_engine


def gpu_name(index: int = 0) -> str:
    """A GPU of this machine with its compute capability; EngineError where PyTorch sees none."""
    if not torch.cuda.is_available():
        raise EngineError("no GPU: this PyTorch sees none; check the driver, and that PyTorch is a CUDA build")
    major, minor = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})"


@dataclass(slots=True, weakref_slot=True)
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


def open_runtime(
    name: str,
    kind: str,
    folder: Path,
    backend: str,
    rows: int,
    module: ModuleType,
    part: str | None = None,
    again: str | None = None,
) -> TensorRTRuntime:
    """The engine of decoder `name`, refused unless graph, GPU and version are those that it was built for.

    part, again: see `read_engine`.
    """
    file = read_engine(folder, name, kind, backend, rows, module.__version__, gpu_name(), part, again)
    runtime = module.Runtime(module.Logger(module.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(file.content)
    place = paths(folder, part_of(name, part), backend, rows)
    if engine is None:
        raise EngineError(
            f"{place.engine}: {backend} cannot read it on this machine; build it here with `underpaint engine`"
        )
    return TensorRTRuntime(file.record, module, runtime, engine, place.runtime)
