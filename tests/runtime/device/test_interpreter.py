"""What the interpreter remembers is what Triton would have made: compared with a process that remembers nothing."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from underpaint.runtime.device import interpreter

MADE = """
import json, sys
import numpy as np
REMEMBERED = sys.argv[1] == "remember"
import os
os.environ["TRITON_INTERPRET"] = "1"
from triton.language import core
from triton.runtime import interpreter
if REMEMBERED:
    from remembering import remember
    remember()
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
print(json.dumps(found))
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
    "operands of as many dimensions": ("lhs.shape is rhs.shape", "len(lhs.shape) == len(rhs.shape)"),
    "types of as many bits": ("input.dtype is dst_ty", "input.dtype.primitive_bitwidth == dst_ty.primitive_bitwidth"),
    "how to round is forgotten": ("dst_ty, fp_downcast_rounding)", "dst_ty)"),
    "overflow is not told": ("if self.builder.options.debug", "if False"),
}


def made(how: str, folder: str | None = None) -> list[object]:
    ran = subprocess.run([sys.executable, "-c", MADE, how], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    results: list[object] = json.loads(ran.stdout)
    return results


@cache
def triton_s_own() -> list[object]:
    return made("not")


def remembered(source: str, folder: Path) -> list[object]:
    (folder / "remembering.py").write_text(source, encoding="utf-8")
    return made("remember", str(folder))


def test_types_shapes_and_refusals_are_triton_s_own(tmp_path: Path) -> None:
    assert len(triton_s_own()) > 500
    assert any(isinstance(one, list) for one in triton_s_own()), "nothing was refused"
    assert remembered(SOURCE, tmp_path) == triton_s_own()


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(tmp_path: Path, bug: str) -> None:
    right, wrong = BUGS[bug]
    assert SOURCE.count(right) == 1
    assert remembered(SOURCE.replace(right, wrong), tmp_path) != triton_s_own()
