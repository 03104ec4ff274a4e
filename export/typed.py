"""Graphs that compute in a chosen precision, with weights beside the graph where they do not fit into it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from underpaint.export.graph import IR_VERSION, OPSET, GraphWriter

ELEMENTS: Final = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
ARRAYS: Final = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
_LARGE: Final = 1024
_ALIGN: Final = 4096


class TypedGraph(GraphWriter):
    """A graph whose caches, weights and hidden states are of one precision; scores, logits and features are float32.

    beside: a stream for large weights, under the file name `data` in the graph; None keeps them in the graph.
    """

    def __init__(self, name: str, precision: str, beside: BinaryIO | None = None, data: str = "") -> None:
        super().__init__(name, halves=False)
        self.precision = precision
        self._beside = beside
        self._data = data

    def feed(self, name: str, shape: Sequence[int | str]) -> str:
        """Declare an input of the graph's precision."""
        self._inputs.append(helper.make_tensor_value_info(name, ELEMENTS[self.precision], shape))
        return name

    def result(self, name: str, shape: Sequence[int | str]) -> None:
        """Declare an output of the graph's precision."""
        self._outputs.append(helper.make_tensor_value_info(name, ELEMENTS[self.precision], shape))

    def outputs(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """Add a node with `count` outputs; return their names."""
        names = [self._fresh(kind.lower()) for _ in range(count)]
        self._nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def narrow(self, value: str, output: str | None = None) -> str:
        """From float32 to the graph's precision."""
        if self.precision == "fp32" and output is None:
            return value
        return self.node("Cast", [value], output, to=ELEMENTS[self.precision])

    def widen(self, value: str, output: str | None = None) -> str:
        """From the graph's precision to float32."""
        if self.precision == "fp32" and output is None:
            return value
        return self.node("Cast", [value], output, to=TensorProto.FLOAT)

    def weight(self, values: NDArray[np.float32], stem: str) -> str:
        """Store float32 `values` in the graph's precision."""
        return self._store(np.ascontiguousarray(values, ARRAYS[self.precision]), ELEMENTS[self.precision], stem)

    def _store(self, values: NDArray[Any], element: int, stem: str) -> str:
        tensor = TensorProto(name=self._fresh(stem), data_type=element, dims=values.shape)
        if self._beside is None or values.nbytes < _LARGE:
            tensor.raw_data = values.tobytes()
        else:
            start = -(-self._beside.tell() // _ALIGN) * _ALIGN
            self._beside.seek(start)
            values.tofile(self._beside)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", self._data), ("offset", start), ("length", values.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
        self._weights.append(tensor)
        return tensor.name

    def write(self, path: Path) -> None:
        """Check the graph and write it. Raises onnx.checker.ValidationError on a graph that is none."""
        if self._beside is not None:
            self._beside.flush()
        model = self._model([*self._inputs, *map(_stand_in, filter(_large, self._weights))])
        model.graph.initializer.extend(weight for weight in self._weights if not _large(weight))
        onnx.checker.check_model(model, full_check=True)  # of shapes alone: checking copies whatever it is given
        model = self._model(self._inputs)
        model.graph.initializer.extend(self._weights)
        path.write_bytes(model.SerializeToString(deterministic=True))

    def _model(self, inputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """The graph without its weights."""
        graph = helper.make_graph(self._nodes, self._name, inputs, self._outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        model.producer_name = "underpaint"
        return model


def _large(weight: onnx.TensorProto) -> bool:
    return weight.data_location == TensorProto.EXTERNAL or len(weight.raw_data) >= _LARGE


def _stand_in(weight: onnx.TensorProto) -> onnx.ValueInfoProto:
    """An input of the weight's type and shape."""
    return helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
