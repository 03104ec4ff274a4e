"""Engines that run the device runtime's graphs at the addresses of torch tensors: ONNX Runtime and TensorRT."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from underpaint.artifacts.decoder_graph import BIAS, FEATURES, past_key
from underpaint.artifacts.device_graph import HEAD, LAYERS, WEIGHTS_SHA256, PassSize, graph_file, slot_key
from underpaint.runtime.device.engine_forward import EngineGraphs
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder
from underpaint.runtime.engines.tensorrt_runtime import TensorRTRuntime

_KINDS: Final = {torch.float32: "float32", torch.int64: "int64"}
"""NumPy's names of what graphs for ONNX Runtime read and write."""


class OnnxGraph:
    """A graph on ONNX Runtime, on the CPU: its binding holds the tensors' own addresses, nothing is copied."""

    def __init__(self, path: Path, weights_sha256: str, again: str, context: EngineContext | None = None) -> None:
        """again: the command that writes it. EngineError where it is not there, or of other weights."""
        if not path.is_file():
            raise EngineError(f"no graph {path} for --forward; write it with `{again}`")
        self._session = open_session(path, context)
        told = self._session.get_modelmeta().custom_metadata_map.get(WEIGHTS_SHA256)
        if told != weights_sha256:
            raise EngineError(f"{path}: expected the graph of weights {weights_sha256}, got {told}; `{again}`")

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Callable[[], None]:
        binding = self._session.io_binding()
        for put, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
            for name, tensor in tensors.items():
                assert tensor.is_contiguous()
                put(name, "cpu", 0, _KINDS[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
        kept = (dict(inputs), dict(outputs))

        def run() -> None:
            assert kept  # the tensors live as long as what runs on them
            self._session.run_with_iobinding(binding)

        return run


class TensorRTGraph:
    """A graph on TensorRT: a context for every binding, enqueued on the current stream, so that a graph captures it."""

    def __init__(self, runtime: TensorRTRuntime, again: str) -> None:
        self._runtime, self._again = runtime, again
        engine = runtime.engine
        self._names = frozenset(engine.get_tensor_name(index) for index in range(engine.num_io_tensors))

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Callable[[], None]:
        record, size = self._runtime.record, size_of(inputs)
        fitting = [(one[1] - one[0], index) for index, one in enumerate(record.passes) if PassSize(*one).holds(size)]
        if not fitting:
            raise EngineError(f"{record.model}: no engine for {size.told(record.rows)}; {self._again}")
        _, place = min(fitting)
        context = self._runtime.new_context()
        ready = context.set_optimization_profile_async(place, current_stream())
        for name, tensor in inputs.items():
            ready = ready and context.set_input_shape(name, tuple(tensor.shape))
        for name, tensor in (*inputs.items(), *outputs.items()):
            assert tensor.is_contiguous()
            ready = ready and context.set_tensor_address(name, tensor.data_ptr())
        if not ready or self._names != {*inputs, *outputs}:
            raise EngineError(f"{record.model}: the engine refuses {size.told(record.rows)}; {self._again}")
        self._runtime.keep_compiled()
        kept = (dict(inputs), dict(outputs))

        def run() -> None:
            assert kept  # the tensors live as long as what runs on them
            if not context.execute_async_v3(current_stream()):
                raise EngineError(f"{record.model}: TensorRT could not run a pass; its log says why")

        return run


def current_stream() -> int:
    """The handle of the CUDA stream that torch launches on."""
    return torch.cuda.current_stream().cuda_stream


def size_of(inputs: Mapping[str, Tensor]) -> PassSize:
    """The size of a pass from what it reads."""
    count = inputs[BIAS if BIAS in inputs else FEATURES].shape[1]
    size, slots = (inputs[name].shape[2] if name in inputs else 0 for name in (past_key(0), slot_key(0)))
    return PassSize(count, count, size, slots)


def onnx_graphs(decoder: ElsewhereDecoder, context: EngineContext | None = None) -> EngineGraphs:
    """A decoder on ONNX Runtime. EngineError where its graphs are missing, of other weights, or not in float32."""
    found = decoder.located.manifest
    if decoder.config.precision != "fp32":
        raise EngineError(
            f"{found.name}: expected a float32 export for ONNX Runtime on the CPU, got {decoder.config.precision}; "
            "export with --precision fp32"
        )
    folder, sha = decoder.located.path.parent, "" if found.weights is None else found.weights.sha256
    again = f"underpaint engine {folder} --backend onnx"
    layers, head = (OnnxGraph(graph_file(folder, found.name, part), sha, again, context) for part in (LAYERS, HEAD))
    return EngineGraphs(layers, head)
