"""What the interpreter remembers is what Triton would have made: compared with a process that remembers nothing."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from underpaint.runtime.device import interpreter

MADE = """
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

def told(make):
    try:
        return make()
    except Exception as error:
        return [type(error).__name__, str(error)]

def plain(held):
    if isinstance(held, core.constexpr):
        return ["constexpr", held.value]
    if isinstance(held, core.tuple):
        return [type(held).__name__, [plain(one) for one in held.values], str(held.type)]
    if isinstance(held, core.pointer_type):
        return [held.name, plain(held.element_ty), held.address_space, held.const]
    return [type(held).__name__, str(held)]

def block(element, shape):
    made = core.block_type(element, shape)
    return {name: plain(one) for name, one in vars(made).items()} | {"numpy": str(interpreter._get_np_dtype(made))}

def tensor(type):
    return {name: plain(one) for name, one in vars(core.tensor(None, type)).items() if name != "type"}

found = []
for _ in range(2):  # the second time all of it is known
    for element in TYPES:
        found += [told(lambda: block(element, shape)) for shape in (*SHAPES, *WRONG)]
        found += [told(lambda: tensor(core.block_type(element, shape))) for shape in SHAPES]
        found += [tensor(element), str(interpreter._get_np_dtype(element))]
HELD = [1, 1.5, True, None, "a", [core.constexpr(1), 2], (core.constexpr(1), 2), core.constexpr(core.constexpr(3))]
found += [str(core._unwrap_if_constexpr(one)) for one in (*HELD, core.tuple([core.constexpr(1), 2]), core.int32)]

semantic, builder = interpreter.interpreter_semantic, interpreter.interpreter_builder
def operand(element, shape):
    data = np.full(shape or [1], 2**31 - 1 if element is core.int32 else 1).astype(interpreter._get_np_dtype(element))
    handle = interpreter.TensorHandle(data, element)
    return core.tensor(handle, core.block_type(element, shape) if shape else element)

def shown(made):
    return [str(made.type), str(made.handle.data.dtype), made.handle.data.tolist(), plain(made.shape)]

builder.options = interpreter.InterpreterOptions()
KINDS = [core.int1, core.int32, core.int64, core.float32, core.float64]
OPERANDS = [operand(element, shape) for element in KINDS for shape in ([], [1], [4], [2, 4], [8])]
for _ in range(2):
    found += [told(lambda: shown(semantic.add(one, other, True))) for one in OPERANDS for other in OPERANDS]
    found += [told(lambda: shown(semantic.cast(one, element))) for one in OPERANDS for element in KINDS]
    found += [told(lambda: shown(semantic.cast(one, core.float32, "rtz"))) for one in OPERANDS]
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
    made = getattr(one, f"__{name}__")(other)
    return [*shown(made), str(made.handle.dtype)]

for debug in (False, True):
    builder.options = interpreter.InterpreterOptions(debug=debug)
    for name in OPERATORS:
        every = OPERANDS if name in ("add", "and", "lt") and not debug else OPERANDS[: len(KINDS) + 1]
        found += [told(lambda: result(one, name, other)) for one in every for other in (*every, *NUMBERS)]
for one in OPERANDS:
    for other in OPERANDS:
        found.append(told(lambda: [shown(part) for part in semantic.broadcast_impl_value(one, other)]))
    found += [told(lambda: shown(semantic.cast(one, element))) for element in (*KINDS, core.uint64)]
with open(f"{sys.argv[1]}/{place}.json", "w", encoding="utf-8") as file:
    json.dump(found, file)
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
def made() -> dict[str, list[object]]:
    """Results of Triton itself ("not"), of the shortcuts ("right"), and of the shortcuts with each planted bug."""
    sources = {"not": "", "right": SOURCE} | {bug: SOURCE.replace(*change) for bug, change in BUGS.items()}
    with TemporaryDirectory() as folder:
        command, told = [sys.executable, "-c", MADE, folder], json.dumps(list(sources.values()))
        ran = subprocess.run(command, input=told, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stderr
        read = [json.loads((Path(folder) / f"{place}.json").read_text("utf-8")) for place in range(len(sources))]
    return dict(zip(sources, read, strict=True))


def test_results_and_refusals_are_triton_s_own() -> None:
    assert len(made()["not"]) > 500
    assert any(isinstance(one, list) for one in made()["not"]), "nothing was refused"
    assert made()["right"] == made()["not"]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str) -> None:
    assert SOURCE.count(BUGS[bug][0]) == 1
    assert made()[bug] != made()["not"]
