"""The interpreter's shortcuts give what Triton itself gives, compared with a process without them."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from underpaint.runtime.device import interpreter

SCRIPT = """
import json, os, sys
import numpy as np
os.environ["TRITON_INTERPRET"] = "1"
from triton import language
from triton.language import core
from triton.runtime import interpreter
for place, source in enumerate(json.load(sys.stdin)):  # a process for each: what is patched stays so
    child = os.fork()
    if not child:
        break
    if os.waitpid(child, 0)[1]:
        sys.exit(f"source {place} failed")
else:
    sys.exit()
if source:
    remembering = {"__name__": "remembering"}
    exec(source, remembering)
    remembering["remember"]()
TYPES = [core.int1, core.int32, core.int64, core.float32, core.float64, core.bfloat16]
TYPES += [core.pointer_type(one, space, const) for one in TYPES for space in ("global", "other") for const in (0, 1)]
SHAPES = [[4], [2, 4], [4, 2], [1], core.tuple([4]), core.tuple([core.constexpr(2), 4]), [core.constexpr(8)]]
WRONG = [[], [3], [4.0], [np.int64(4)], [True], (4,), "4", [core.tuple([4])]]

def outcome(make):
    try:
        return make()
    except Exception as error:
        return [type(error).__name__, str(error)]

def plain(value):
    if isinstance(value, core.constexpr):
        return ["constexpr", value.value]
    if isinstance(value, core.tuple):
        return [type(value).__name__, [plain(one) for one in value.values], str(value.type)]
    if isinstance(value, core.pointer_type):
        return [value.name, plain(value.element_ty), value.address_space, value.const]
    return [type(value).__name__, str(value)]

def block(element, shape):
    kind = core.block_type(element, shape)
    return {name: plain(one) for name, one in vars(kind).items()} | {"numpy": str(interpreter._get_np_dtype(kind))}

def tensor(type):
    return {name: plain(one) for name, one in vars(core.tensor(None, type)).items() if name != "type"}

outcomes = []
for _ in range(2):  # the second time all of it is known
    for element in TYPES:
        outcomes += [outcome(lambda: block(element, shape)) for shape in (*SHAPES, *WRONG)]
        outcomes += [outcome(lambda: tensor(core.block_type(element, shape))) for shape in SHAPES]
        outcomes += [tensor(element), str(interpreter._get_np_dtype(element))]
HELD = [1, 1.5, True, None, "a", [core.constexpr(1), 2], (core.constexpr(1), 2), core.constexpr(core.constexpr(3))]
outcomes += [str(core._unwrap_if_constexpr(one)) for one in (*HELD, core.tuple([core.constexpr(1), 2]), core.int32)]

semantic, builder = interpreter.interpreter_semantic, interpreter.interpreter_builder
def operand(element, shape):
    data = np.full(shape or [1], 2**31 - 1 if element is core.int32 else 1).astype(interpreter._get_np_dtype(element))
    handle = interpreter.TensorHandle(data, element)
    return core.tensor(handle, core.block_type(element, shape) if shape else element)

def shown(tensor_):
    return [str(tensor_.type), str(tensor_.handle.data.dtype), tensor_.handle.data.tolist(), plain(tensor_.shape)]

builder.options = interpreter.InterpreterOptions()
KINDS = [core.int1, core.int32, core.int64, core.float32, core.float64]
OPERANDS = [operand(element, shape) for element in KINDS for shape in ([], [1], [4], [2, 4], [8])]
for _ in range(2):
    outcomes += [outcome(lambda: shown(semantic.add(one, other, True))) for one in OPERANDS for other in OPERANDS]
    outcomes += [outcome(lambda: shown(semantic.cast(one, element))) for one in OPERANDS for element in KINDS]
    outcomes += [outcome(lambda: shown(semantic.cast(one, core.float32, "rtz"))) for one in OPERANDS]
    builder.options = interpreter.InterpreterOptions(debug=True)

interpreter._patch_lang(operand)
def pointer(element, shape):
    handle = interpreter.TensorHandle(np.full(shape or [1], 1000, dtype=np.uint64), element)
    return core.tensor(handle, core.block_type(element, shape) if shape else element)

OPERANDS = [operand(element, shape) for shape in ([], [1], [4]) for element in (*KINDS, core.uint64)]
OPERANDS += [operand(core.int32, [2, 4]), operand(core.uint32, [])]
OPERANDS += [pointer(core.pointer_type(element), shape) for element in (core.int1, core.float32) for shape in ([], [4])]
CONDITIONS = [operand(element, shape) for element in (core.int32, core.float32) for shape in ([], [4])]
OPERANDS += [one <= one for one in CONDITIONS]
NUMBERS = [0, 3, -1, 2**31, 2**40, -2**31, 2**64, True, 0.1, -0.0, 1e300, core.constexpr(2), core.constexpr(0.1), "a"]
OPERATORS = ["add", "sub", "mul", "and", "or", "xor", "lt", "le", "gt", "ge", "eq", "ne"]
np.seterr(all="ignore")
def result(one, name, other):
    result_tensor = getattr(one, f"__{name}__")(other)
    return [*shown(result_tensor), str(result_tensor.handle.dtype)]

for debug in (False, True):
    builder.options = interpreter.InterpreterOptions(debug=debug)
    for name in OPERATORS:
        every = OPERANDS if name in ("add", "and", "lt") and not debug else OPERANDS[: len(KINDS) + 1]
        outcomes += [outcome(lambda: result(one, name, other)) for one in every for other in (*every, *NUMBERS)]
for one in OPERANDS:
    for other in OPERANDS:
        outcomes.append(outcome(lambda: [shown(part) for part in semantic.broadcast_impl_value(one, other)]))
    outcomes += [outcome(lambda: shown(semantic.cast(one, element))) for element in (*KINDS, core.uint64)]
with open(f"{sys.argv[1]}/{place}.json", "w", encoding="utf-8") as file:
    json.dump(outcomes, file)
"""


SOURCE = Path(interpreter.__file__).read_text(encoding="utf-8")
BUGS = {
    "pointers to other memory": ("(element_ty.name, space, sizes)", "(element_ty.name, sizes)"),
    "another element": ("(element_ty.name, space, sizes)", "(space, sizes)"),
    "numbers that are equal": ("if all(type(one) is int for one in sizes)", "if sizes"),
    "any sequence": ("not isinstance(shape, list | core.tuple)", "False"),
    "shapes of one length": ("tuple(type.shape.values) if", "(len(type.shape.values),) if"),
    "one type of NumPy for all": ("return dtypes[scalar.name]", "return next(iter(dtypes.values()))"),
    "constants in a list": ("frozenset({int,", "frozenset({list, int,"),
    "operands of as many dimensions": ("if lhs.shape is rhs.shape", "if len(lhs.shape) == len(rhs.shape)"),
    "types of as many bits": ("if kind is to:", "if kind.primitive_bitwidth == to.primitive_bitwidth:"),
    "how to round is forgotten": ("dst_ty, fp_downcast_rounding)", "dst_ty)"),
    "overflow is not told": ("if self.builder.options.debug", "if False"),
    "operators do not tell overflow": (" or builder.options.debug", ""),
    "one operator for another": ('"__le__": np.less_equal', '"__le__": np.less'),
    "a result has the scalar's shape": ("type_ = right.type.with_element_ty(kind) if pointer else right.type", "pass"),
    "a condition is not repeated": ('if kind.name == "int1" or (', "if ("),
    "an offset of any type": ("if right.dtype is not offsets[0] and right.dtype is not offsets[1]:", "if False:"),
    "numbers of any type": (
        "if kind not in offsets or right.dtype not in offsets or kind == right.dtype:",
        "if False:",
    ),
    "a number of any type": ("if other_type is not allowed:", "if dtype is None:"),
    "fractions for integers": ('"int64": (np.int64, int)', '"int64": (np.int64, float)'),
    "comparisons of the operands' type": ("if compares else type_", "if False else type_"),
    "a cast of any rounding": ("if fp_downcast_rounding is None and ", "if "),
    "the other operand's type": ("splat(self, rhs, lhs.type)", "splat(self, lhs, lhs.type)"),
}


@cache
def results() -> dict[str, list[object]]:
    """Results of Triton itself ("not"), of the shortcuts ("right"), and of the shortcuts with each planted bug."""
    sources = {"not": "", "right": SOURCE} | {bug: SOURCE.replace(*change) for bug, change in BUGS.items()}
    with TemporaryDirectory() as folder:
        command, stdin = [sys.executable, "-c", SCRIPT, folder], json.dumps(list(sources.values()))
        ran = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stderr
        read = [json.loads((Path(folder) / f"{place}.json").read_text("utf-8")) for place in range(len(sources))]
    return dict(zip(sources, read, strict=True))


def test_results_and_refusals_are_triton_s_own() -> None:
    assert len(results()["not"]) > 500
    assert any(isinstance(one, list) for one in results()["not"]), "nothing was refused"
    assert results()["right"] == results()["not"]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str) -> None:
    assert SOURCE.count(BUGS[bug][0]) == 1
    assert results()[bug] != results()["not"]
