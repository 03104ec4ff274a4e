"""A graph with the matrices that it stores in 8 bits already widened, for engines that take 8 bits to mean products."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from underpaint.artifacts.scaled_rows import SCALE, ScaledRows


def widen_scaled_rows(model: onnx.ModelProto, folder: Path) -> None:
    """Put float32 weights inside `model` in the place of its `ScaledRows`, which lie in a file of `folder`.

    What widened them there (`export.graph.GraphWriter.weight`) goes with them. A graph without such weights stays.
    """
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    narrow = {name for name, tensor in tensors.items() if tensor.data_type == TensorProto.INT8}
    parts = narrow | {name + SCALE for name in narrow}
    casts = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast" and node.input[0] in parts}
    kept = []
    for node in graph.node:
        if node.op_type == "Mul" and node.input[0] in casts and casts[node.input[0]] in narrow:
            steps, scale = (_values(tensors[casts[name]], folder) for name in node.input)
            graph.initializer.append(numpy_helper.from_array(ScaledRows(steps, scale).widened(), node.output[0]))
        elif node.output[0] not in casts:
            kept.append(node)
    left = [tensor for tensor in graph.initializer if tensor.name not in parts]
    for field, values in (("node", kept), ("initializer", left)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)


def _values(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """A tensor's numbers, in the graph or in a file of `folder`. onnx's own reader refuses a file that is a link, as
    caches of model hubs keep them.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    where = ExternalDataInfo(tensor)
    with (folder / Path(where.location).name).open("rb") as file:
        file.seek(where.offset or 0)
        content = file.read(where.length)
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.frombuffer(content, kind).reshape(tuple(tensor.dims))
