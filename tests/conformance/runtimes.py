"""The least versions of the runtimes that read the graphs which `export` writes, by what each runtime documents.

Sources: ONNX Runtime's `docs/Versioning.md` and `docs/OperatorKernels.md`, and `docs/operators.md` of TensorRT's ONNX
parser (10.15). What TensorRT for RTX reads is known from building with it, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import onnx

CONTRIBUTED: Final = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
_OWN: Final = ("", "ai.onnx")


class Runtime(NamedTuple):
    """A runtime.

    Attributes:
        name: For messages.
        least: Its least version, by the newest opset that it reads.
        operators: Of those that graphs here have, the ones that it documents, each with the versions of its definition;
            None for all of the opset.
        contributed: Those of `CONTRIBUTED` that it documents.
    """

    name: str
    least: Mapping[int, str]
    operators: Mapping[str, tuple[int, ...]] | None
    contributed: frozenset[str]


# ONNX Runtime reads "13+" as version 13 alone: an operator that a later opset defines again needs a kernel of its own.
_CUDA: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("And", "Or"), (7,)),
    **dict.fromkeys(("Conv", "Range", "TopK"), (11,)),
    **dict.fromkeys(("ArgMax", "Clip", "Concat", "DepthToSpace", "Equal", "Expand", "Gather", "GatherElements"), (13,)),
    **dict.fromkeys(("Gemm", "Greater", "Less", "MatMul", "Max", "Min", "Reciprocal", "ReduceSum", "Sigmoid"), (13,)),
    **dict.fromkeys(("Slice", "Softmax", "Sqrt", "Sum", "Tile"), (13,)),
    **dict.fromkeys(("Add", "CumSum", "Div", "Mul", "Relu", "Sub"), (14,)),
    **dict.fromkeys(("Pad", "ReduceL2", "ReduceMean", "ScatterElements", "Split"), (18,)),
    **dict.fromkeys(("Identity", "If", "Loop", "Resize"), (19,)),
    **dict.fromkeys(("Cast", "Reshape", "Shape"), (19, 21, 23)),
    **dict.fromkeys(("Squeeze", "Transpose", "Unsqueeze"), (13, 21, 23)),
    **dict.fromkeys(("RMSNormalization", "RotaryEmbedding"), (23,)),
    **{"InstanceNormalization": (6,), "LessOrEqual": (16,), "Pow": (15,), "Where": (16,)},
}
CPU: Final = Runtime("ONNX Runtime", {20: "1.17", 23: "1.23"}, None, frozenset({"MatMulNBits"}))
CUDA: Final = Runtime("ONNX Runtime's CUDA provider", CPU.least, _CUDA, frozenset({"MatMulNBits"}))
TENSORRT: Final = Runtime(
    "TensorRT",
    {20: "10.0", 24: "10.15"},
    dict.fromkeys((*_CUDA, "Attention", "TensorScatter"), tuple(range(1, 25))),
    frozenset(),
)
"""The same operators and those of a cache that is updated in place, of every opset from 9 to 24. Of `Attention` it does
not document the input that says how many places are read: graphs for plans leave it out, see `InPlaceAttention`."""
RUNTIMES: Final = (CPU, CUDA, TENSORRT)


def operators(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """The domain and the name of every node, those of branches and loops too."""
    for node in graph.node:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from operators(attribute.g)


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that a model is written in."""
    return next(int(each.version) for each in model.opset_import if each.domain in _OWN)


def least_version(model: onnx.ModelProto, runtime: Runtime) -> str:
    """The least version of a runtime that reads the model's opset; ValueError where none is documented."""
    versions = [version for newest, version in sorted(runtime.least.items()) if newest >= opset(model)]
    if not versions:
        raise ValueError(f"{runtime.name}: expected opset {max(runtime.least)} at most, got {opset(model)}")
    return versions[0]


def undocumented(model: onnx.ModelProto, runtime: Runtime) -> set[str]:
    """The operators of a model that a runtime does not document, each with the version of its definition.

    ONNX Runtime's CUDA provider leaves such nodes to the CPU; TensorRT does not read the graph.
    """
    names, version = set(), opset(model)
    for domain, name in set(operators(model.graph)):
        if domain not in _OWN:
            if domain != CONTRIBUTED or name not in runtime.contributed:
                names.add(f"{domain}.{name}")
        elif runtime.operators is not None:
            since = onnx.defs.get_schema(name, version, "").since_version
            if since not in runtime.operators.get(name, ()):
                names.add(f"{name}-{since}")
    return names
