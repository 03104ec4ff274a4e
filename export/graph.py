"""The writer of ONNX graphs: nodes by hand, in a chosen precision, with weights in a file beside the graph."""

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
"""The first with RMSNormalization and RotaryEmbedding; ONNX Runtime and TensorRT both read it."""
IN_PLACE_OPSET: Final = 24
"""The first with TensorScatter, and with an Attention that leaves out the places behind a row's length."""
IR_VERSION: Final = 10
_CONTRIBUTED: Final = "com.microsoft"
"""ONNX Runtime's own operators, which no other engine reads."""
_EIGHT_BITS: Final = 4
"""MatMulNBits' word for rounding the value to 8 bits too; in float32 it takes ten times as long."""

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
"""Weights by name, each made when it is written; matrices are [in, out]."""


class GraphWriter:
    """Collects nodes, weights, inputs and outputs, and writes them as a checked model.

    Hidden states, weights and caches are of the graph's precision. A weight may be stored in a narrower type than
    that; engines widen it when they load.
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
        """weights: what `weight` and `product` find by name; file: where they go, None keeps them in the graph.

        bare: weights are inputs, in the types that they are multiplied in; only their shapes are read.

        int8_products: `product` multiplies by the steps of `ScaledRows` in 8 bits, in place of the widened numbers;
        not so in branches and loops, whose own nodes no other product may read.
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
        """Whether there is a weight of this name."""
        return name in self._weights

    def input(self, name: str, dtype: ElementType, shape: Sequence[int | str]) -> str:
        """Declare an input; a string is a free dimension."""
        self._inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def output(self, name: str, dtype: ElementType, shape: Sequence[int | str]) -> None:
        """Declare an output that some node has named `name`."""
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
        """`value` in float64."""
        return self.node("Cast", [value], to=TensorProto.DOUBLE)

    def to_integer(self, value: str) -> str:
        """`value` as int64; booleans become 0 and 1."""
        return self.node("Cast", [value], to=TensorProto.INT64)

    def narrow(self, value: str) -> str:
        """From float32 to the graph's precision."""
        if self.precision == "fp32":
            return value
        return self.node("Cast", [value], to=TYPES[PRECISION_TYPES[self.precision]])

    def widen(self, value: str) -> str:
        """From the graph's precision to float32."""
        return value if self.precision == "fp32" else self.node("Cast", [value], to=TensorProto.FLOAT)

    def constant(self, values: NDArray[Any], stem: str = "constant") -> str:
        """Store `values` in the graph as they are, once for all places that ask for the same ones."""
        held = np.asarray(values, order="C")
        key = (held.dtype.str, held.shape, sha256(held.tobytes()).digest())
        if key not in self._constants:
            self._constants[key] = self._fresh(stem)
            self._tensors.append(numpy_helper.from_array(held, self._constants[key]))
        return self._constants[key]

    def integers(self, *values: int) -> str:
        """Store a row of int64."""
        return self.constant(np.array(values, dtype=np.int64), "integers")

    def weight(self, name: str) -> str:
        """The weight `name` in the graph's precision, stored once."""
        self._load(name)
        return self._values[name]

    def product(self, value: str, name: str, added: str | None = None) -> str:
        """`value` [R, K] times the matrix `name` [K, N], plus `added` [R, N].

        With a matrix of 8 bits, the value is rounded to 8 bits too, a block of a row at a time, so that an outlier
        coarsens few others. A row's result does not depend on the rows beside it.
        """
        self._load(name, self._int8_products)
        if name in self._matrices:
            values, scales, settings = self._matrices[name]
            found = self.node("MatMulNBits", [value, values, scales], domain=_CONTRIBUTED, **settings)
            return found if added is None else self.node("Add", [found, added])
        if added is None:
            return self.node("MatMul", [value, self._values[name]])
        return self.node("Gemm", [value, self._values[name], added])

    def wide_product(self, value: str, name: str) -> str:
        """`product` in float32 whatever the graph's precision is: of the same factors, but with nothing rounded."""
        if self.precision == "fp32":
            return self.product(value, name)
        if self.bare:
            return self.node("MatMul", [self.widen(value), self._given(name, "float32")])
        return self.node("MatMul", [self.widen(value), self.widen(self.weight(name))])

    def _given(self, name: str, dtype: ElementType) -> str:
        """The weight `name` as an input."""
        if name not in self._values:
            found = self._weights[name]()
            assert isinstance(found, np.ndarray)
            self._values[name] = self.input(name, dtype, found.shape)
        return self._values[name]

    def _load(self, name: str, int8: bool = False) -> None:
        """Store the weight `name` where it is not stored yet; int8: `ScaledRows` are read by MatMulNBits."""
        if name in self._values or name in self._matrices:
            return
        if self.bare:
            self._given(name, PRECISION_TYPES[self.precision])
            return
        found = self._weights[name]()
        if isinstance(found, ScaledRows) and int8:
            self._matrices[name] = self._int8_matrix(name, found)
            return
        if isinstance(found, EightBitMatrix):
            width, _, block = found.values.shape
            stored = self._store(name, found.values), self._store(f"{name}.scale", found.scales)
            settings = {"K": found.depth, "N": width, "bits": 8, "block_size": block, "accuracy_level": _EIGHT_BITS}
            self._matrices[name] = (*stored, settings)
            return
        if isinstance(found, ScaledRows):
            # Engines widen constants when they load: what is multiplied is float32 numbers, to the last bit those of
            # `ScaledRows.widened`, and the model that a file holds is the rounded one for all who read it.
            parts = self._widened(name, found.steps), self._widened(name + SCALE, found.scale)
            self._values[name] = self.node("Mul", parts)
            return
        self._values[name] = self._widened(name, found)

    def _int8_matrix(self, name: str, found: ScaledRows) -> tuple[str, str, dict[str, Any]]:
        """What MatMulNBits reads of a matrix [K, N] with a scale a column: its steps as values of `EightBitMatrix`, and
        scales.

        Engines turn the constants when they load, so the same bytes of a file serve products in float32 too.
        """
        depth, width = found.steps.shape
        block = block_of(depth)
        blocks = -(-depth // block)
        columns = self.node("Transpose", [self._store(name, found.steps)], perm=[1, 0])
        steps = self.node("Cast", [columns], to=TensorProto.INT32)
        if blocks * block > depth:
            steps = self.node("Pad", [steps, self.integers(0, 0, 0, blocks * block - depth)])
        around = self.node("Add", [steps, self.constant(np.array(EIGHT_BIT_ZERO, dtype=np.int32), "zero_point")])
        narrow = self.node("Cast", [around], to=TensorProto.UINT8)
        values = self.node("Reshape", [narrow, self.integers(width, blocks, block)])
        scale = self.node("Transpose", [self._widened(name + SCALE, found.scale)], perm=[1, 0])
        each = self.node("Expand", [scale, self.integers(width, blocks)])
        settings = {"K": depth, "N": width, "bits": 8, "block_size": block, "accuracy_level": _EIGHT_BITS}
        return values, self.node("Reshape", [each, self.integers(-1)]), settings

    def _widened(self, name: str, values: NDArray[Any]) -> str:
        """Store `values` under `name`; a value of the graph's precision."""
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
        """Add a node with several outputs, None for one without a name of its own; return their names."""
        names = [name or self._fresh(kind.lower()) for name in outputs]
        self._nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def split(self, value: str, sizes: str, axis: int, names: Sequence[str | None]) -> list[str]:
        """Split `value` along `axis` into parts of `sizes`."""
        return self.nodes("Split", [value, sizes], names, axis=axis)

    def size(self, value: str, axis: int) -> str:
        """[1] int64: how long `value` is along `axis`, which counts from the front."""
        return self.node("Shape", [value], start=axis, end=axis + 1)

    def loop(
        self, times: str, carried: Sequence[str], body: Callable[["GraphWriter"], None], collected: int
    ) -> list[str]:
        """Turn `body` `times` ([] int64) times; return what its turns give, [times, ...], of `collected` outputs.

        `body` declares as inputs the turn's number, whether to go on and what is `carried`; as outputs whether to go
        on, what is carried on, and what is collected. It may name everything written so far.
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
        return self.nodes("If", [condition], names, then_branch=then, else_branch=otherwise)

    def _inside(self, part: str, body: Callable[["GraphWriter"], None]) -> onnx.GraphProto:
        """The graph that `body` writes, whose weights are kept out here."""
        inner = GraphWriter(f"{self._name}_{part}", self._weights, self.precision, self._file)
        inner._count, inner._tensors, inner._constants = self._count, self._tensors, self._constants
        inner._matrices = self._matrices
        inner._values = dict(self._values)  # what is widened inside is not seen outside
        body(inner)
        return helper.make_graph(inner._nodes, inner._name, inner._inputs, inner._outputs)

    def write(self, path: Path, told: Mapping[str, str] | None = None) -> None:
        """Check the graph and write it; see `content`."""
        path.write_bytes(self.content(told))

    def content(self, told: Mapping[str, str] | None = None) -> bytes:
        """The checked graph. Raises onnx.checker.ValidationError on a graph that is none.

        told: what the file says of itself, as metadata.
        """
        outside = [tensor for tensor in self._tensors if tensor.data_location == TensorProto.EXTERNAL]
        inside = [tensor for tensor in self._tensors if tensor.data_location != TensorProto.EXTERNAL]
        shapes = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in outside]
        # Of shapes alone: checking copies whatever it is given.
        onnx.checker.check_model(self._model([*self._inputs, *shapes], inside), full_check=True)
        model = self._model(self._inputs, self._tensors)
        helper.set_model_props(model, dict(told or {}))
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
    """An initializer whose numbers lie in `file`, where they are written to."""
    stored: Stored = file.add(name, values)
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(values.dtype), dims=values.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file.path.name), ("offset", stored.offset), ("length", stored.length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
