"""A kernel that starts before the one before it has finished waits for it before it accesses memory."""

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tools import device_programs
from tools.device_programs import Node, Program
from tools.sass import waits_first
from underpaint.runtime.device import launch as launching
from underpaint.runtime.device.kernels import attention as attending
from underpaint.runtime.device.kernels import layers
from underpaint.runtime.device.kernels.draft_inputs import embed_kernel
from underpaint.runtime.device.kernels.heads import Heads, store_heads
from underpaint.runtime.device.kernels.layers import ADD, GATE, HEADS, product, product_kernel
from underpaint.runtime.device.launch import SECTOR, Launch, overlaps, recording
from underpaint.sim.latency.machines import MACHINES

WAIT = "wait_for_earlier_kernels"
MAY_PRECEDE = {"arange", "cdiv", "prefetch", "program_id", "to"}
"""Calls that access no memory."""
ROOT = Path(__file__).resolve().parents[3]
H100 = MACHINES["h100"]


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launching.OVERLAP, raising=False)
    monkeypatch.setattr(launching, "_OVERLAP_ALLOWED", True)


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
    assert not waits_first(listing(*prefetches, "@P0 ACQBULK", "LDG.E R2, [R4.64]"))
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
    ("capability", "driver", "cuda", "expected"),
    [
        ((9, 0), 12_030, "13.0", True),
        ((9, 0), 12_020, "13.0", False),
        ((8, 9), 12_080, "13.0", False),
        ((9, 4), 12_080, None, False),
    ],
)
def test_the_launch_of_a_kernel_is_dependent_where_graphs_keep_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], driver: int, cuda: str | None, expected: bool
) -> None:
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: driver, raising=False)
    launching.overlap_capability.cache_clear()
    try:
        for function, dependent in ((product_kernel, expected), (store_heads, False)):
            launched = Launched(function)
            launching.launch(launched, (1,), 0)
            assert launched.options.get("launch_pdl", False) is dependent
    finally:
        launching.overlap_capability.cache_clear()


def node(kernel: object, moved: int, prefetched: int = 0, ahead: int = 0) -> Node:
    launch = Launch("k", moved, "", kernel, (), {}, 4, 3, (1,), {}, prefetched, ahead)
    return Node("k", moved, "", None if kernel is None else launch)


def test_a_launch_is_shorter_after_a_kernel_that_lets_it_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its memory traffic is hidden as far as it is prefetched, and as the launch lasts."""
    monkeypatch.setattr(device_programs, "compile_for", lambda *_: SimpleNamespace(issued=lambda machine: 0.0))
    rate, short = H100.bytes_per_us, H100.launch_us - H100.overlap_us
    whole, cached = round(10 * rate), 1e-3 / H100.l2_bandwidth
    nodes = (
        node(None, whole),
        node(embed_kernel, whole, prefetched=whole),  # after PyTorch's kernel
        node(embed_kernel, whole, prefetched=round(rate)),
        node(embed_kernel, round(rate), prefetched=round(rate), ahead=whole),
        node(embed_kernel, whole, prefetched=whole),  # which the one before has left time to prefetch
        node(store_heads, whole, prefetched=whole),  # which does not wait
        node(embed_kernel, whole, prefetched=whole, ahead=whole),
        node(None, 0),
        node(embed_kernel, 0, ahead=whole),  # which starts late, and so prefetches too late
        node(embed_kernel, whole),
    )
    times = Program(nodes, ()).times(H100, 90)
    assert [one.launch for one in times] == pytest.approx(
        [2.75, 2.75, short, short, short, 2.75, 2.75, 2.75, 2.75, short]
    )
    assert [one.bytes for one in times] == pytest.approx(
        [10, 10, 9, cached * rate, 10 - short - (short + cached * rate - 1), 10, 10, 0, 0, 10], abs=1e-3
    )
    assert Program(nodes, ()).times(MACHINES["a100"], 80)[2].launch == 2.75
    assert {one.launch for one in Program(nodes, ()).times(H100)} == {2.75}
    unknown = Program(nodes, ()).times(replace(H100, overlap_us=0.0), 90)
    assert (unknown[2].launch, unknown[2].bytes) == pytest.approx((2.75, 10), abs=1e-3)


class Prefetched:
    """Stands for `prefetch` in the interpreter: keeps the addresses of each launch."""

    def __init__(self) -> None:
        self.addresses: list[int] = []

    def __call__(self, pointers: Any, mask: Any) -> None:
        where = np.broadcast_to(mask.handle.data, pointers.handle.data.shape)
        self.addresses += pointers.handle.data[where.astype(bool)].astype(np.int64).ravel().tolist()

    def bytes_in(self, tensor: Tensor) -> int:
        """The bytes of a matrix's rows that its prefetched sectors cover; each may be prefetched once."""
        size, row = tensor.numel() * tensor.element_size(), tensor.shape[-1] * tensor.element_size()
        offsets = [one - tensor.data_ptr() for one in self.addresses]
        inside = [one for one in offsets if 0 <= one < size]
        assert len({*inside}) == len(inside)
        return sum(min(SECTOR, row - one % row) for one in inside)


@pytest.mark.parametrize("ahead", [0, 1 << 10, 1 << 12, 1 << 20])
@pytest.mark.parametrize(("kind", "columns", "width"), [(ADD, 33, 40), (GATE, 21, 300), (ADD, 70, 24), (ADD, 16, 7)])
@pytest.mark.parametrize(
    ("lines", "types"),
    [
        (1, (torch.float32, torch.float32)),
        (5, (torch.int8, torch.int8)),
        (40, (torch.int8, torch.float32)),
        (40, (torch.float16, torch.int8)),
    ],
)
def test_a_product_prefetches_its_first_weights_and_the_next_product_s_last(
    monkeypatch: pytest.MonkeyPatch,
    ahead: int,
    kind: Any,
    columns: int,
    width: int,
    lines: int,
    types: tuple[torch.dtype, torch.dtype],
) -> None:
    fetched = Prefetched()
    monkeypatch.setattr(layers, "prefetch", fetched)
    monkeypatch.setattr(layers, "AHEAD", ahead)
    both = 2 if kind is GATE else 1
    weight, after = torch.zeros(both * columns, width, dtype=types[0]), torch.zeros(90, 130, dtype=types[1])
    hidden, out = torch.zeros(1, lines, width), torch.zeros(1, lines, columns)
    with recording() as record:
        product(hidden, None, weight, None, out, kind.value, after=after)
    (launch,) = record.launches
    assert fetched.bytes_in(weight) == launch.prefetched <= ahead
    assert fetched.bytes_in(after) == launch.prefetched_next <= ahead - launch.prefetched
    assert len(fetched.addresses) == len({*fetched.addresses}), "each sector once"
    own = [*fetched.addresses]
    fetched.addresses.clear()
    product(torch.zeros(1, lines, 130), None, after, None, torch.zeros(1, lines, 90), ADD.value)
    assert not {*own} & {*fetched.addresses}, "what the next product prefetches itself"
    if ahead == 1 << 20:
        assert launch.prefetched == weight.numel() * weight.element_size()


@pytest.mark.parametrize("half", [8, 10])
def test_a_product_of_heads_prefetches_both_halves_of_each(monkeypatch: pytest.MonkeyPatch, half: int) -> None:
    fetched = Prefetched()
    monkeypatch.setattr(layers, "prefetch", fetched)
    rows, count, heads, shared, width = 2, 3, 2, 1, 24
    weight, hidden = torch.zeros((heads + 2 * shared) * 2 * half, width), torch.zeros(rows, count, width)
    query, slots = torch.zeros(rows, heads, count, 2 * half), torch.zeros(2, rows, shared, count, 2 * half)
    sizes = (0, count, count, rows, 1, 1, heads, shared, half)
    with recording() as record:
        product(hidden, None, weight, None, Heads(query, slots, hidden, hidden, hidden, *sizes), HEADS.value)
    assert fetched.bytes_in(weight) == record.launches[0].prefetched == weight.numel() * 4


@pytest.mark.parametrize(("size", "width"), [(150, 16), (40, 64), (150, 24), (150, 10)])
@pytest.mark.parametrize("count", [1, 40])
def test_attention_prefetches_each_head_s_first_positions(
    monkeypatch: pytest.MonkeyPatch, size: int, width: int, count: int
) -> None:
    fetched = Prefetched()
    monkeypatch.setattr(attending, "prefetch", fetched)
    rows, heads, shared = 2, 4, 2
    query, out = torch.zeros(rows, heads, count, width), torch.zeros(rows, count, heads * width)
    cache, slots = torch.zeros(2, rows, shared, size, width), torch.zeros(2, rows, shared, count, width)
    lengths, unseen = torch.full((1,), size - 1), torch.zeros(rows, dtype=torch.int64)
    masks, arrivals = torch.ones(1, count, 1, dtype=torch.int64), torch.zeros(rows, 64, dtype=torch.int32)
    with recording() as record:
        attending.attention(query, cache, slots, lengths, unseen, masks, out, arrivals, size - 1, splits=2)
    whole = width % 8 == 0 and width.bit_count() == 1  # sectors of a position: a power of two
    assert fetched.bytes_in(cache) == record.launches[0].prefetched
    assert record.launches[0].prefetched == (2 * rows * shared * min(size, 128) * width * 4 if whole else 0)
