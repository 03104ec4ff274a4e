"""A kernel that starts before the one before it has finished waits for it before it accesses memory."""

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tools import device_programs
from tools.device_programs import Node, Program
from tools.sass import waits_first
from underpaint.runtime.device import launch as launching
from underpaint.runtime.device.kernels.draft_inputs import embed_kernel
from underpaint.runtime.device.kernels.layers import product_kernel, store_heads
from underpaint.runtime.device.launch import Launch, overlaps
from underpaint.sim.latency.machines import MACHINES

WAIT = "wait_for_earlier_kernels"
MAY_PRECEDE = {"arange", "cdiv", "prefetch", "program_id", "to"}
"""Calls that access no memory."""
ROOT = Path(__file__).resolve().parents[3]
H100 = MACHINES["h100"]


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "?")


def faults(source: str) -> list[str]:
    """The kernels that do not wait once, in every program, before whatever may access memory."""
    bad = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or not function.name.endswith("_kernel"):
            continue
        calls = [call for call in ast.walk(function) if isinstance(call, ast.Call)]
        waits = [call for call in calls if name_of(call) == WAIT]
        top = [one for one in function.body if isinstance(one, ast.Expr) and one.value in waits]
        first = waits[0].lineno if waits else 0
        before = {name_of(call) for call in calls if call.lineno < first and call not in function.decorator_list}
        returns = any(isinstance(one, ast.Return) and one.lineno < first for one in ast.walk(function))
        if len(waits) != 1 or len(top) != 1 or not before <= MAY_PRECEDE or returns:
            bad.append(function.name)
    return bad


def sources() -> list[Path]:
    folders = [ROOT / "runtime" / "device", ROOT / "runtime" / "methods", ROOT / "docs" / "examples"]
    return [file for folder in folders for file in sorted(folder.rglob("*.py")) if "_kernel(" in file.read_text()]


def test_every_kernel_waits_before_it_accesses_memory() -> None:
    assert len(sources()) > 30
    assert {str(file): faults(file.read_text()) for file in sources()} == {str(file): [] for file in sources()}


KERNEL = """
def copy_kernel(a, b):
    place = tl.program_id(0)
    wait_for_earlier_kernels()
    tl.store(b + place, tl.load(a + place))
"""
LATE = KERNEL.replace("    wait_for_earlier_kernels()\n", "") + "    wait_for_earlier_kernels()\n"


@pytest.mark.parametrize(
    "planted",
    [
        KERNEL.replace("    wait_for_earlier_kernels()\n", ""),
        LATE,
        KERNEL.replace("    wait", "    if place:\n        wait"),
        KERNEL.replace("    wait", "    if place:\n        return\n    wait"),
        KERNEL.replace("    wait", "    helper(a)\n    wait"),
    ],
    ids=["no wait", "after the store", "in some programs", "after a return", "after a helper"],
)
def test_a_kernel_that_does_not_wait_is_found(planted: str) -> None:
    assert faults(KERNEL) == []
    assert faults(planted) == ["copy_kernel"]


def listing(*codes: str) -> str:
    return "\n".join(f"        /*{16 * place:04x}*/    {code} ;" for place, code in enumerate(codes))


def test_machine_code_that_accesses_memory_before_it_waits_is_found() -> None:
    prefetches = ("LDC R1, c[0x0][0x28]", "@P1 CCTL.E.PF2 [R10]", "PREEXIT")
    assert waits_first(listing(*prefetches, "ACQBULK", "LDG.E R2, [R4.64]"))
    assert not waits_first(listing(*prefetches, "@P0 LDG.E R2, [R4.64]", "ACQBULK"))
    assert not waits_first(listing(*prefetches, "RED.E.ADD [R4.64], R1", "ACQBULK"))
    assert not waits_first(listing(*prefetches))


def test_kernels_overlap_where_they_wait_and_the_gpu_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [overlaps(embed_kernel, capability) for capability in (80, 89, 90, 120)] == [False, False, True, True]
    assert overlaps(product_kernel, 90)
    assert not overlaps(store_heads, 90)  # stands for any kernel that does not wait
    monkeypatch.setattr(launching, "_OVERLAP_ALLOWED", False)
    assert not overlaps(product_kernel, 90)


def test_the_switch_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in ((None, True), ("1", True), ("0", False)):
        if value is not None:
            monkeypatch.setenv(launching.OVERLAP, value)
        assert launching._overlap_allowed() is expected
    monkeypatch.setenv(launching.OVERLAP, "off")
    with pytest.raises(ValueError, match="UNDERPAINT_PDL: expected '0' or '1', got 'off'"):
        launching._overlap_allowed()


class Launched:
    """Stands for a kernel on a GPU: keeps the options of its launches."""

    def __init__(self, function: Any) -> None:
        self.fn, self.options = function.fn, dict[str, Any]()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **options: self.options.update(options)


@pytest.mark.parametrize(
    ("capability", "driver", "expected"), [((9, 0), 12_030, True), ((9, 0), 12_020, False), ((8, 9), 12_080, False)]
)
def test_the_launch_of_a_kernel_is_dependent_where_graphs_keep_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], driver: int, expected: bool
) -> None:
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: driver, raising=False)
    launching._overlapping.cache_clear()
    try:
        for function, dependent in ((product_kernel, expected), (store_heads, False)):
            launched = Launched(function)
            launching.launch(launched, (1,), 0)
            assert launched.options["launch_pdl"] is dependent
    finally:
        launching._overlapping.cache_clear()


def node(kernel: object, moved: int, prefetched: int = 0, ahead: int = 0) -> Node:
    launch = Launch("k", moved, "", kernel, (), {}, 4, 3, (1,), {}, prefetched, ahead)
    return Node("k", moved, "", None if kernel is None else launch)


def test_a_launch_is_shorter_after_a_kernel_that_lets_it_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its memory traffic is hidden as far as it is prefetched, and as the launch lasts."""
    monkeypatch.setattr(device_programs, "compile_for", lambda *_: SimpleNamespace(issued=lambda machine: 0.0))
    rate, short = H100.bytes_per_us, H100.launch_us - H100.overlap_us
    whole = round(10 * rate)
    nodes = (
        node(None, whole),
        node(embed_kernel, whole, prefetched=whole),  # after PyTorch's kernel
        node(embed_kernel, whole, prefetched=round(rate)),
        node(embed_kernel, round(rate), prefetched=round(rate), ahead=whole),
        node(embed_kernel, whole, prefetched=whole),  # which the one before has left time to prefetch
        node(store_heads, whole, prefetched=whole),  # which does not wait
        node(embed_kernel, whole, prefetched=whole),
    )
    times = Program(nodes, ()).times(H100, 90)
    assert [one.launch for one in times] == pytest.approx([2.75, 2.75, short, short, short, 2.75, 2.75])
    assert [one.bytes for one in times] == pytest.approx([10, 10, 9, 0, 10 - short - (short - 1), 10, 10], abs=1e-3)
    assert Program(nodes, ()).times(MACHINES["a100"], 80)[2].launch == 2.75
    assert {one.launch for one in Program(nodes, ()).times(H100)} == {2.75}
