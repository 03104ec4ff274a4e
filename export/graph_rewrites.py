"""Graphs made from graphs: half precision run in float32.

A processor without half-precision kernels runs such a graph node by node in float32, with each result rounded. That is
what a GPU's kernels do, which add products up in float32 and round what they write. Nodes, weights and casts are those
of the graph itself: a graph that rounds where it should not is seen to.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx
from onnx import TensorProto, helper

_HALVES: Final = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


def rounded_graph(path: Path) -> bytes:
    """The graph at `path` with float32 in place of half precision: of its inputs, its outputs, and between its nodes.

    What goes in has to be numbers that the graph's precision holds; what comes out are such numbers. Weights stay in
    the file beside `path`, in their own type. Raises ValueError on a graph with graphs inside.
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
    """The type of every value of half precision."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    found = {tensor.name: tensor.data_type for tensor in inferred.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        found[value.name] = value.type.tensor_type.elem_type
    unknown = [name for node in model.graph.node for name in node.output if name and not found.get(name)]
    if unknown:
        raise ValueError(f"expected a type of every value, got none of {', '.join(unknown[:3])}")
    return {name: kind for name, kind in found.items() if kind in _HALVES}


def _widened_weights(model: onnx.ModelProto, kinds: dict[str, int]) -> Iterator[onnx.NodeProto]:
    for tensor in model.graph.initializer:
        if tensor.name in kinds:
            yield helper.make_node("Cast", [tensor.name], [_wide(tensor.name)], to=TensorProto.FLOAT)


def _rounded(node: onnx.NodeProto, kinds: dict[str, int], weights: set[str]) -> Iterator[onnx.NodeProto]:
    """The node on float32 values, and the rounding of what it gives."""
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
