"""Writes ONNX graphs node by node, in a chosen precision, with weights in a separate file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from underpaint.artifacts.decoder_config import Precision
from underpaint.artifacts.decoder_graph import PRECISION_TYPES, ElementType, TensorSpec
from underpaint.artifacts.scaled_rows import SCALE, ScaledRows
from underpaint.export.eight_bits import EIGHT_BIT_ZERO, EightBitMatrix, block_of
from underpaint.export.weight_file import Stored, WeightStore

OPSET: Final = 23
"""The first opset with RMSNormalization and RotaryEmbedding; ONNX Runtime and TensorRT both support it."""
IN_PLACE_OPSET: Final = 24
"""The first opset with TensorScatter, and with an Attention that ignores places after a row's length."""
IR_VERSION: Final = 10
_CONTRIBUTED: Final = "com.microsoft"
"""Domain of ONNX Runtime's own operators, which other engines do not support."""
_EIGHT_BITS: Final = 4
"""MatMulNBits' accuracy level that also rounds the value to 8 bits; in float32 it takes ten times as long."""

TYPES: Final[Mapping[ElementType, int]] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
ARRAYS: Final = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


WeightSource: TypeAlias = Mapping[str, Callable[[], "NDArray[Any] | EightBitMatrix | ScaledRows"]]
"""Weights by name, each computed when it is written; matrices are [in, out]."""


class GraphWriter:
    """Collects nodes, weights, inputs and outputs, and writes them as a checked model.

    Hidden states, weights and caches have the graph's precision. A weight may be stored in a narrower type; engines
    widen it at load time.
    """

    def __init__(
        self,
        name: str,
        weights: WeightSource | None = None,
        precision: Precision = "fp32",
        file: WeightStore | None = None,
        int8_products: bool = False,
        opset: int = OPSET,
        bare: bool = False,
    ) -> None:
        """Start an empty graph.

        Args:
            name: Name of the graph.
            weights: Weights for `weight` and `product` by name.
            precision: Type of hidden states, weights and caches.
            file: Where to store the weights; None stores them in the graph.
            int8_products: `product` multiplies the steps of `ScaledRows` in 8 bits instead of the widened numbers; not
                in branches and loops, whose own nodes no other product can read.
            opset: Version of ONNX's operators.
            bare: Make weights inputs, in the types that are multiplied; only their shapes are read.
        """
        self.precision = precision
        self._int8_products = int8_products
        self._name = name
        self._weights = weights or {}
        self._file = file
        self._opset, self.bare = opset, bare
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = count(1)
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._values: dict[str, str] = {}
        self._matrices: dict[str, tuple[str, str, dict[str, Any]]] = {}

    def _fresh(self, stem: str) -> str:
        return f"{stem}_{next(self._count)}"

    def has(self, name: str) -> bool:
        """Return whether there is a weight with this name."""
        return name in self._weights

    def input(self, name: str, dtype: ElementType, shape: Sequence[int | str]) -> str:
        """Declare an input; string dimensions are free."""
        self._inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def output(self, name: str, dtype: ElementType, shape: Sequence[int | str]) -> None:
        """Declare the output `name`, which some node must produce."""
        self._outputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))

    def inputs(self, specs: Iterable[TensorSpec]) -> None:
        """Declare inputs."""
        for spec in specs:
            self.input(*spec)

    def outputs(self, specs: Iterable[TensorSpec]) -> None:
        """Declare outputs."""
        for spec in specs:
            self.output(*spec)

    def to_double(self, value: str) -> str:
        """Cast `value` to float64."""
        return self.node("Cast", [value], to=TensorProto.DOUBLE)

    def to_integer(self, value: str) -> str:
        """Cast `value` to int64; booleans become 0 and 1."""
        return self.node("Cast", [value], to=TensorProto.INT64)

    def narrow(self, value: str) -> str:
        """Cast `value` from float32 to the graph's precision."""
        if self.precision == "fp32":
            return value
        return self.node("Cast", [value], to=TYPES[PRECISION_TYPES[self.precision]])

    def widen(self, value: str) -> str:
        """Cast `value` from the graph's precision to float32."""
        return value if self.precision == "fp32" else self.node("Cast", [value], to=TensorProto.FLOAT)

    def constant(self, values: NDArray[Any], stem: str = "constant") -> str:
        """Store `values` in the graph as they are; equal values are stored only once."""
        array = np.asarray(values, order="C")
        key = (array.dtype.str, array.shape, sha256(array.tobytes()).digest())
        if key not in self._constants:
            self._constants[key] = self._fresh(stem)
            self._tensors.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def integers(self, *values: int) -> str:
        """Store a vector of int64."""
        return self.constant(np.array(values, dtype=np.int64), "integers")

    def weight(self, name: str) -> str:
        """Return the weight `name` in the graph's precision, stored once."""
        self._load(name)
        return self._values[name]

    def product(self, value: str, name: str, added: str | None = None) -> str:
        """Multiply `value` [R, K] with the matrix `name` [K, N], and add `added` [R, N].

        With an 8-bit matrix, the value is also rounded to 8 bits, block by block of each row, so that an outlier makes
        only few other values coarse. A row's result does not depend on other rows.
        """
        self._load(name, self._int8_products)
        if name in self._matrices:
            values, scales, settings = self._matrices[name]
            product = self.node("MatMulNBits", [value, values, scales], domain=_CONTRIBUTED, **settings)
            return product if added is None else self.node("Add", [product, added])
        if added is None:
            return self.node("MatMul", [value, self._values[name]])
        return self.node("Gemm", [value, self._values[name], added])

    def wide_product(self, value: str, name: str) -> str:
        """Compute `product` in float32 in every precision: the same factors, without rounding of the result."""
        if self.precision == "fp32":
            return self.product(value, name)
        if self.bare:
            return self.node("MatMul", [self.widen(value), self._weight_input(name, "float32")])
        return self.node("MatMul", [self.widen(value), self.widen(self.weight(name))])

    def _weight_input(self, name: str, dtype: ElementType) -> str:
        """Return the weight `name` as an input."""
        if name not in self._values:
            values = self._weights[name]()
            assert isinstance(values, np.ndarray)
            self._values[name] = self.input(name, dtype, values.shape)
        return self._values[name]

    def _load(self, name: str, int8: bool = False) -> None:
        """Store the weight `name` unless it is stored already; int8: MatMulNBits reads `ScaledRows`."""
        if name in self._values or name in self._matrices:
            return
        if self.bare:
            self._weight_input(name, PRECISION_TYPES[self.precision])
            return
        weight = self._weights[name]()
        if isinstance(weight, ScaledRows) and int8:
            self._matrices[name] = self._int8_matrix(name, weight)
            return
        if isinstance(weight, EightBitMatrix):
            width, _, block = weight.values.shape
            stored = self._store(name, weight.values), self._store(f"{name}.scale", weight.scales)
            settings = {"K": weight.depth, "N": width, "bits": 8, "block_size": block, "accuracy_level": _EIGHT_BITS}
            self._matrices[name] = (*stored, settings)
            return
        if isinstance(weight, ScaledRows):
            # Engines widen constants at load time: products use float32 numbers that equal `ScaledRows.widened`
            # exactly, and everyone who reads the file gets the rounded model.
            parts = self._widened(name, weight.steps), self._widened(name + SCALE, weight.scale)
            self._values[name] = self.node("Mul", parts)
            return
        self._values[name] = self._widened(name, weight)

    def _int8_matrix(self, name: str, matrix: ScaledRows) -> tuple[str, str, dict[str, Any]]:
        """Return the MatMulNBits inputs for a matrix [K, N] with a scale per column: its steps in the format of
        `EightBitMatrix`, and scales.

        Engines convert the constants at load time, so the same bytes in a file also serve float32 products.
        """
        depth, width = matrix.steps.shape
        block = block_of(depth)
        blocks = -(-depth // block)
        columns = self.node("Transpose", [self._store(name, matrix.steps)], perm=[1, 0])
        steps = self.node("Cast", [columns], to=TensorProto.INT32)
        if blocks * block > depth:
            steps = self.node("Pad", [steps, self.integers(0, 0, 0, blocks * block - depth)])
        around = self.node("Add", [steps, self.constant(np.array(EIGHT_BIT_ZERO, dtype=np.int32), "zero_point")])
        narrow = self.node("Cast", [around], to=TensorProto.UINT8)
        values = self.node("Reshape", [narrow, self.integers(width, blocks, block)])
        scale = self.node("Transpose", [self._widened(name + SCALE, matrix.scale)], perm=[1, 0])
        each = self.node("Expand", [scale, self.integers(width, blocks)])
        settings = {"K": depth, "N": width, "bits": 8, "block_size": block, "accuracy_level": _EIGHT_BITS}
        return values, self.node("Reshape", [each, self.integers(-1)]), settings

    def _widened(self, name: str, values: NDArray[Any]) -> str:
        """Store `values` under `name`, and return a value in the graph's precision."""
        stored = self._store(name, values)
        if values.dtype == ARRAYS[self.precision]:
            return stored
        return self.node("Cast", [stored], to=TYPES[PRECISION_TYPES[self.precision]])

    def _store(self, name: str, values: NDArray[Any]) -> str:
        if self._file is None or not self._file.takes(name):
            self._tensors.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        else:
            self._tensors.append(external(name, values, self._file))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output; return that output's name."""
        (name,) = self.nodes(kind, inputs, [output], **attributes)
        return name

    def nodes(self, kind: str, inputs: Sequence[str], outputs: Sequence[str | None], **attributes: Any) -> list[str]:
        """Add a node with several outputs (None for a generated name); return their names."""
        names = [name or self._fresh(kind.lower()) for name in outputs]
        self._nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def split(self, value: str, sizes: str, axis: int, names: Sequence[str | None]) -> list[str]:
        """Split `value` along `axis` into parts of `sizes`."""
        return self.nodes("Split", [value, sizes], names, axis=axis)

    def size(self, value: str, axis: int) -> str:
        """Return the size of `value` along `axis`, counted from the front, as [1] int64."""
        return self.node("Shape", [value], start=axis, end=axis + 1)

    def loop(
        self, times: str, carried: Sequence[str], body: Callable[["GraphWriter"], None], collected: int
    ) -> list[str]:
        """Run `body` `times` ([] int64) times; return the stacked `collected` outputs of its runs, [times, ...].

        `body` declares as inputs the iteration number, the condition to go on, and the `carried` values; as outputs
        the condition, the values carried on, and the collected values. It may use all nodes written so far.
        """
        names: list[str | None] = [self._fresh("looped") for _ in range(len(carried) + collected)]
        return self.nodes("Loop", [times, "", *carried], names, body=self._inside("turn", body))[len(carried) :]

    def branch(
        self,
        condition: str,
        body: Callable[["GraphWriter"], None],
        otherwise: Callable[["GraphWriter"], None],
        names: Sequence[str | None],
    ) -> list[str]:
        """Run `body` or `otherwise` depending on `condition` (a bool scalar); return their outputs.

        Both declare as many outputs as `names` (None for a generated name), and may use all nodes written so far. They
        must not multiply with weights: ONNX Runtime prepacks those only for the graph itself and its loops.
        """
        return self._branch(condition, self._inside("then", body), self._inside("else", otherwise), names)

    def branch_if(
        self, condition: str, body: Callable[["GraphWriter"], None], names: Sequence[str | None]
    ) -> list[str]:
        """Add a `branch` that runs `body` if `condition`, and has empty outputs otherwise."""
        inside = self._inside("then", body)

        def nothing(inner: GraphWriter) -> None:
            for one in inside.output:
                kind = one.type.tensor_type.elem_type
                empty = inner.constant(np.zeros(0, dtype=helper.tensor_dtype_to_np_dtype(kind)))
                inner._outputs.append(helper.make_tensor_value_info(inner.node("Identity", [empty]), kind, None))

        return self._branch(condition, inside, self._inside("else", nothing), names)

    def _branch(
        self, condition: str, then: onnx.GraphProto, otherwise: onnx.GraphProto, names: Sequence[str | None]
    ) -> list[str]:
        return self.nodes("If", [condition], names, then_branch=then, else_branch=otherwise)

    def _inside(self, part: str, body: Callable[["GraphWriter"], None]) -> onnx.GraphProto:
        """Return the subgraph that `body` writes; its weights are stored in this graph."""
        inner = GraphWriter(f"{self._name}_{part}", self._weights, self.precision, self._file)
        inner._count, inner._tensors, inner._constants = self._count, self._tensors, self._constants
        inner._matrices = self._matrices
        inner._values = dict(self._values)  # values widened inside are not visible outside
        body(inner)
        return helper.make_graph(inner._nodes, inner._name, inner._inputs, inner._outputs)

    def write(self, path: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Check the graph and write it; see `content`."""
        path.write_bytes(self.content(metadata))

    def content(self, metadata: Mapping[str, str] | None = None) -> bytes:
        """Return the checked graph as bytes.

        Args:
            metadata: Metadata entries of the file.

        Raises:
            onnx.checker.ValidationError: The graph is invalid.
        """
        outside = [tensor for tensor in self._tensors if tensor.data_location == TensorProto.EXTERNAL]
        inside = [tensor for tensor in self._tensors if tensor.data_location != TensorProto.EXTERNAL]
        shapes = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in outside]
        # Check with shapes instead of weights, because checking copies its input.
        onnx.checker.check_model(self._model([*self._inputs, *shapes], inside), full_check=True)
        model = self._model(self._inputs, self._tensors)
        helper.set_model_props(model, dict(metadata or {}))
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def _model(self, inputs: Sequence[onnx.ValueInfoProto], tensors: Sequence[onnx.TensorProto]) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, self._name, inputs, self._outputs, tensors)
        sets = [helper.make_opsetid("", self._opset)]
        if self._matrices:
            sets.append(helper.make_opsetid(_CONTRIBUTED, 1))
        model = helper.make_model(graph, opset_imports=sets, ir_version=IR_VERSION)
        model.producer_name = "underpaint"
        return model


def external(name: str, values: NDArray[Any], file: WeightStore) -> onnx.TensorProto:
    """Return an initializer whose values are written to `file`."""
    stored: Stored = file.add(name, values)
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(values.dtype), dims=values.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file.path.name), ("offset", stored.offset), ("length", stored.length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
