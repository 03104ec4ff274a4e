"""Graphs made from graphs: plain passes with widened weights for TensorRT, and half precision run in float32.

A processor without half-precision kernels runs such a graph node by node in float32, with each result rounded. That is
what a GPU's kernels do, which add products up in float32 and round what they write. Nodes, weights and casts are those
of the graph itself: a graph that rounds where it should not is seen to.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from underpaint.artifacts import decoder_graph as graph_names
from underpaint.artifacts.scaled_rows import SCALE, ScaledRows

_HALVES: Final = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_BEYOND: Final = frozenset({graph_names.PROBS, graph_names.CHAIN_TOKENS, *graph_names.TREE_OUTPUTS})


def plain_pass(path: Path) -> bytes:
    """The graph at `path` without probabilities, chains and trees, and without what only they need.

    A graph that has none is given back as it is. Weights stay where they are, in the file beside it, but for matrices
    in 8 bits, which TensorRT would multiply in: those are widened.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    given_back = {output.name for output in graph.output}
    if graph_names.LOGITS not in given_back or not given_back & _BEYOND:
        return path.read_bytes()
    outputs = [output for output in graph.output if output.name not in _BEYOND]
    needed, nodes = {output.name for output in outputs}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    inputs = [given for given in graph.input if given.name in needed]
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    for field, left in (("node", nodes[::-1]), ("input", inputs), ("output", outputs), ("initializer", tensors)):
        graph.ClearField(field)
        getattr(graph, field).extend(left)
    widen_scaled_rows(model, path.parent)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


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
