"""A small writer of ONNX graphs: nodes by hand, weights stored in half their size."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import count
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET: Final = 23
"""The first with RMSNormalization and RotaryEmbedding; ONNX Runtime and TensorRT both read it."""
IR_VERSION: Final = 10
_CONTRIBUTED: Final = "com.microsoft"
"""ONNX Runtime's own operators, which no other engine reads."""

_BLOCK: Final = 64
"""Numbers that share a scale in a product of 8 bits."""
_EIGHT_BITS: Final = 4
"""MatMulNBits' word for rounding the value to 8 bits too; in float32 it takes ten times as long."""

_TYPES: Final = {
    "float": TensorProto.FLOAT,
    "double": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}


class GraphWriter:
    """Collects nodes, weights, inputs and outputs, and closes them into a checked model."""

    def __init__(self, name: str, halves: bool = True, integers: bool = False) -> None:
        """`halves`: store weights as float16; `integers`: multiply by int8 matrices instead (see `product`)."""
        self._name = name
        self._halves = halves
        self._integers = integers
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = count(1)
        self._stored: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._widened: dict[str, str] = {}

    def _fresh(self, stem: str) -> str:
        return f"{stem}_{next(self._count)}"

    def input(self, name: str, kind: str, shape: Sequence[int | str]) -> str:
        """Declare an input; a string is a free dimension."""
        self._inputs.append(helper.make_tensor_value_info(name, _TYPES[kind], shape))
        return name

    def output(self, name: str, shape: Sequence[int | str], kind: str = "float") -> None:
        """Declare an output that some node has named `name`."""
        self._outputs.append(helper.make_tensor_value_info(name, _TYPES[kind], shape))

    def widened(self, value: str) -> str:
        """`value` in float64."""
        return self.node("Cast", [value], to=TensorProto.DOUBLE)

    def counted(self, value: str) -> str:
        """`value`, of booleans, as 0 and 1."""
        return self.node("Cast", [value], to=TensorProto.INT64)

    def constant(self, values: NDArray[Any], stem: str = "constant") -> str:
        """Store `values` as they are, once for all places that ask for the same ones."""
        held = np.asarray(values, order="C")
        key = (held.dtype.str, held.shape, sha256(held.tobytes()).digest())
        if key not in self._stored:
            self._stored[key] = self._fresh(stem)
            self._weights.append(numpy_helper.from_array(held, self._stored[key]))
        return self._stored[key]

    def integers(self, *values: int) -> str:
        """Store a row of int64."""
        return self.constant(np.array(values, dtype=np.int64), "integers")

    def weight(self, values: NDArray[np.float32], stem: str) -> str:
        """Store float32 `values`; with `halves`, as float16 to be widened: engines fold that when they load.

        Raises ValueError where `values` are not float16 numbers: round the torch module first (`weights.halve`), so
        that both sides compute with the same weights.
        """
        if not self._halves:
            return self.constant(values, stem)
        half = values.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), values):
            raise ValueError(f"{stem}: expected weights that float16 can hold, got others; round them with halve()")
        stored = self.constant(half, stem)
        if stored not in self._widened:
            self._widened[stored] = self.node("Cast", [stored], to=TensorProto.FLOAT)
        return self._widened[stored]

    def product(
        self, value: str, matrix: NDArray[np.float32], stem: str, added: str | None = None, floating: bool = False
    ) -> str:
        """`value` [R, K] times `matrix` [K, N], plus `added` [R, N].

        With `integers`, both factors are rounded to 8 bits, 64 numbers of a row or a column at a time, so that an
        outlier coarsens few others. A row's result does not depend on the rows beside it. `floating` keeps one product
        out of that.
        """
        if self._integers and not floating:
            multiplied = self._integer_product(value, matrix, stem)
            return multiplied if added is None else self.node("Add", [multiplied, added])
        if added is None:
            return self.node("MatMul", [value, self.weight(matrix, stem)])
        return self.node("Gemm", [value, self.weight(matrix, stem), added])

    def _integer_product(self, value: str, matrix: NDArray[np.float32], stem: str) -> str:
        depth, width = matrix.shape
        block = min(_BLOCK, max(16, 1 << (depth - 1).bit_length()))  # a power of two, and not longer than it must be
        columns = np.zeros((width, -(-depth // block), block), dtype=np.float32)
        columns.reshape(width, -1)[:, :depth] = matrix.T
        scale = np.maximum(np.abs(columns).max(axis=2), np.float32(1e-12)) / np.float32(127)
        rounded = (np.rint(columns / scale[:, :, None]) + 128).astype(np.uint8)
        factors = [value, self.constant(rounded, stem), self.constant(scale.reshape(-1), f"{stem}_scale")]
        settings = {"K": depth, "N": width, "bits": 8, "block_size": block, "accuracy_level": _EIGHT_BITS}
        return self.node("MatMulNBits", factors, domain=_CONTRIBUTED, **settings)

    def node(self, kind: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output; return that output's name."""
        name = output or self._fresh(kind.lower())
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def several(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> tuple[str, ...]:
        """Add a node with `count` outputs; return their names."""
        names = [self._fresh(kind.lower()) for _ in range(count)]
        self._nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return tuple(names)

    def split(self, value: str, sizes: str, axis: int, outputs: Sequence[str | None]) -> tuple[str, ...]:
        """Cut `value` along `axis` into the `sizes` (a stored or computed row of int64)."""
        names = [name or self._fresh("part") for name in outputs]
        self._nodes.append(helper.make_node("Split", [value, sizes], names, axis=axis))
        return tuple(names)

    def loop(
        self, times: str, carried: Sequence[str], body: Callable[["GraphWriter"], None], collected: int
    ) -> list[str]:
        """Repeat what `body` writes `times` times (int64, a scalar); return its `collected` outputs, stacked.

        `body` writes into a graph of its own, which may name everything written so far: it declares the inputs
        (the turn, a condition that stays true, then one for each of `carried`) and the outputs (the condition, the
        carried values for the next turn, then what is collected).
        """
        names = [self._fresh("looped") for _ in range(len(carried) + collected)]
        turn = self._inside("turn", body)
        self._nodes.append(helper.make_node("Loop", [times, "", *carried], names, body=turn))
        return names[len(carried) :]

    def branch(
        self,
        condition: str,
        body: Callable[["GraphWriter"], None],
        otherwise: Callable[["GraphWriter"], None],
        names: Sequence[str | None],
    ) -> list[str]:
        """Write `body` or `otherwise` as `condition` (bool, a scalar) says; return their outputs.

        Both declare as many outputs as `names` (None for a fresh one), and may name everything written so far. They
        must hold no product with weights: ONNX Runtime packs those for the graph itself and for loops in it alone.
        """
        return self._branch(condition, self._inside("then", body), self._inside("else", otherwise), names)

    def where_asked(self, asked: str, body: Callable[["GraphWriter"], None], names: Sequence[str | None]) -> list[str]:
        """`branch`, with empty outputs where nothing is asked."""
        inside = self._inside("then", body)

        def nothing(inner: GraphWriter) -> None:
            for one in inside.output:
                kind = one.type.tensor_type.elem_type
                empty = inner.constant(np.zeros(0, dtype=helper.tensor_dtype_to_np_dtype(kind)))
                inner._outputs.append(helper.make_tensor_value_info(inner.node("Identity", [empty]), kind, None))

        return self._branch(asked, inside, self._inside("else", nothing), names)

    def _branch(
        self, condition: str, then: onnx.GraphProto, otherwise: onnx.GraphProto, names: Sequence[str | None]
    ) -> list[str]:
        found = [name or self._fresh("branched") for name in names]
        self._nodes.append(helper.make_node("If", [condition], found, then_branch=then, else_branch=otherwise))
        return found

    def _inside(self, part: str, body: Callable[["GraphWriter"], None]) -> onnx.GraphProto:
        """The graph that `body` writes, whose weights are kept out here."""
        inner = GraphWriter(f"{self._name}_{part}", self._halves, self._integers)
        inner._count, inner._weights = self._count, self._weights
        inner._stored, inner._widened = self._stored, self._widened
        body(inner)
        return helper.make_graph(inner._nodes, inner._name, inner._inputs, inner._outputs)

    def close(self) -> onnx.ModelProto:
        """The model, after ONNX's own checker."""
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._weights)
        sets = [helper.make_opsetid("", OPSET)]
        if self._integers:
            sets.append(helper.make_opsetid(_CONTRIBUTED, 1))
        model = helper.make_model(graph, opset_imports=sets, ir_version=IR_VERSION)
        model.producer_name = "underpaint"
        onnx.checker.check_model(model, full_check=True)
        return model
