"""A graph with the matrices that it stores in 8 bits already widened, for engines that take 8 bits to mean products."""

from pathlib import Path

import onnx
from onnx import TensorProto, numpy_helper

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
            steps, scale = (numpy_helper.to_array(tensors[casts[name]], str(folder)) for name in node.input)
            graph.initializer.append(numpy_helper.from_array(ScaledRows(steps, scale).widened(), node.output[0]))
        elif node.output[0] not in casts:
            kept.append(node)
    left = [tensor for tensor in graph.initializer if tensor.name not in parts]
    for field, values in (("node", kept), ("initializer", left)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
