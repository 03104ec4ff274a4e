"""ONNX Runtime on the device runtime's graphs, at the addresses of torch tensors."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from underpaint.artifacts.device_graph import HEAD, LAYERS, WEIGHTS_SHA256, graph_file
from underpaint.runtime.device.engine_forward import EngineGraphs
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder

_KINDS: Final = {torch.float32: "float32", torch.int64: "int64", torch.bool: "bool"}
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
