"""Rewrites half-precision graphs to run in float32.

A processor without half-precision kernels runs the rewritten graph in float32, and rounds the result of each node.
GPU kernels do the same: they accumulate products in float32 and round what they write. Nodes, weights and casts are
those of the original graph, so a graph that rounds in a wrong place is still detected.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx
from onnx import TensorProto, helper

_HALVES: Final = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


def rounded_graph(path: Path) -> bytes:
    """Rewrite the graph at `path` with float32 instead of half precision for inputs, outputs and values in between.

    Inputs must be numbers that the graph's precision represents exactly; outputs are such numbers. Weights stay in
    their file next to `path`, in their own type. Raises ValueError if a node contains a subgraph.
    """
    model = onnx.load(path, load_external_data=False)
    kinds = _half_values(model)
    nodes = list(_widened_weights(model, kinds))
    weights = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
            raise ValueError(f"{path.name}: {node.op_type} holds a graph of its own; expected a plain pass")
        nodes += _rounded(node, kinds, weights)
    for value in (*model.graph.input, *model.graph.output):
        if value.name in kinds:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    model.graph.ClearField("node")
    model.graph.ClearField("value_info")
    model.graph.node.extend(nodes)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _half_values(model: onnx.ModelProto) -> dict[str, int]:
    """Return the type of every half-precision value."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {tensor.name: tensor.data_type for tensor in inferred.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        types[value.name] = value.type.tensor_type.elem_type
    unknown = [name for node in model.graph.node for name in node.output if name and not types.get(name)]
    if unknown:
        raise ValueError(f"expected a type of every value, got none of {', '.join(unknown[:3])}")
    return {name: kind for name, kind in types.items() if kind in _HALVES}


def _widened_weights(model: onnx.ModelProto, kinds: dict[str, int]) -> Iterator[onnx.NodeProto]:
    for tensor in model.graph.initializer:
        if tensor.name in kinds:
            yield helper.make_node("Cast", [tensor.name], [_wide(tensor.name)], to=TensorProto.FLOAT)


def _rounded(node: onnx.NodeProto, kinds: dict[str, int], weights: set[str]) -> Iterator[onnx.NodeProto]:
    """Yield the node on float32 values, and the nodes that round its results."""
    written = onnx.NodeProto()
    written.CopyFrom(node)
    written.ClearField("input")
    written.input.extend(_wide(name) if name in kinds and name in weights else name for name in node.input)
    written.ClearField("output")
    written.output.extend(f"{name}.exact" if name in kinds else name for name in node.output)
    if node.op_type == "Cast" and node.output[0] in kinds:
        written.ClearField("attribute")
        written.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    yield written
    for name in node.output:
        if name in kinds:
            yield helper.make_node("Cast", [f"{name}.exact"], [f"{name}.half"], to=kinds[name])
            yield helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT)


def _wide(name: str) -> str:
    return f"{name}.wide"
