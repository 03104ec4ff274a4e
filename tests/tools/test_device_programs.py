"""The whole cycle waits for nothing, stays within its share of launches, and compiles for GPUs that are not there."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from tools.device_programs import count, count_cycle, count_islands
from tools.device_sizes import CHOICES, METHODS, SEVEN_B, XL, chain_of, islands_of, method_of, roofline_of
from tools.kernel_record import SAMPLE, KernelRecord
from underpaint.runtime.device.launch import Launch
from underpaint.sim.latency.machines import DECODER_SIZES, MACHINES, RooflineCosts

H200 = MACHINES["h200"]
MOST_OUTSIDE = 0.0775
"""ms outside the models on an H200, by launches and bytes."""
MOST_ISSUED = {"ar": 0.03, "eagle2": 0.0725, "adt": 0.0965, "opt-tree": 0.1, "chain": 0.085}
MOST_ISSUED |= {"delayed": 0.091, "traversal": 0.097, "gsd": 0.088}
"""ms outside the models on an H200, by launches and the larger of bytes and issued instructions."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("config", [XL, SEVEN_B], ids=["xl", "7b"])
def test_a_cycle_waits_for_nothing_and_is_cheap_outside_the_models(name: str, config: object) -> None:
    program = count_cycle(config, method_of(name, config.vocab_size), batch=1)
    assert program.ms(H200, forwards=False) < MOST_OUTSIDE
    assert sum(not node.part for node in program.nodes) <= 24
    assert name != "ar" or sum(node.part == "target" for node in program.nodes) <= 5 * config.layers + 8


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_roofline_chooses_waits_for_nothing_until_it_is_decided(name: str, temperature: float) -> None:
    if temperature == 0 and "drawn" in name:
        pytest.skip("nothing is drawn at temperature 0")
    program = count_cycle(XL, roofline_of(temperature), 1, choice=CHOICES[name])
    assert program.ms(H200, forwards=False) < MOST_OUTSIDE


@pytest.mark.parametrize("config", [XL, SEVEN_B], ids=["xl", "7b"])
def test_drafting_small_and_repair_wait_for_nothing(config: object) -> None:
    programs = count_islands(config, islands_of(config.vocab_size, "islands"), batch=1)
    for name in ("draft", "repair"):
        assert programs[name].launches
        assert programs[name].ms(H200, forwards=False) < MOST_OUTSIDE
    assert programs["verify"].launches


@pytest.mark.parametrize("gpu", ["a100", "h200"])
def test_the_roofline_of_sizes_is_that_of_counted_kernels(gpu: str) -> None:
    """One model: kernels by a decoder's sizes take what those do that the device's program launches, five a layer."""
    costs = RooflineCosts(replace(MACHINES[gpu], kernels=5), DECODER_SIZES["llamagen-xl"])
    counted = [count_cycle(XL, method_of("ar", XL.vocab_size), batch=1)]
    counted += [count_cycle(XL, chain_of(size - 1, XL.vocab_size), batch=1) for size in (8, 32)]
    ms = [one.part_ms(MACHINES[gpu], {"target"}) for one in counted]
    assert costs.verify_ms(np.array([1, 8, 32])) == pytest.approx(ms, rel=0.1)


def test_what_waits_is_refused() -> None:
    with FakeTensorMode():
        done = torch.zeros(3)
        with pytest.raises(DataDependentOutputException):
            count(lambda: done.zero_() if done.sum().item() else None)


COMPILED = f"""
import sys
from benchmarks import device_program
from tools import compile_ahead, compiled_programs
from tools.kernel_record import SAMPLE
device_program.main(["--machines", "h200,h100", "--methods", "{",".join(MOST_ISSUED)}"])
assert len(compile_ahead.kernel_record().sample) in (0, SAMPLE)
assert compiled_programs.SLOT_METHODS == ({", ".join(map(repr, MOST_ISSUED))})
sys.exit(compile_ahead.main([]))
"""
"""Run in a process of its own, which compiles its kernels: this one interprets them."""


@pytest.mark.slow
def test_every_kernel_is_within_its_budget_and_issues_few_instructions_outside_the_models() -> None:
    """By the record, of which a sample is compiled again."""
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment = variables | {"UNDERPAINT_TRITON": "compile"}
    command = [sys.executable, "-c", COMPILED]
    process = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    lines, _, records = process.stdout.rpartition("\n[\n")
    report = json.loads(lines.splitlines()[-1])
    assert {row["method"] for row in report["rows"]} == {*MOST_ISSUED}
    for row in report["rows"]:
        assert row["h200_outside_ms"] < MOST_ISSUED[row["method"]], row
        assert row["h100_outside_ms"] < 0.1, row
    rows = {(one["model"], one["name"]): one for one in report["kernels"]}
    assert rows["llamagen-xl", "probs_kernel"]["slots"] > rows["7b", "probs_kernel"]["slots"] > 1000
    kernels = (ROOT / "runtime" / "device" / "kernels").glob("*.py")
    written = {name for file in kernels for name in re.findall(r"def (\w+_kernel)\(", file.read_text())}
    expected = {(capability, name) for capability in (80, 90, 120) for name in written}
    assert {(one["capability"], one["name"]) for one in json.loads("[" + records)} == expected
    assert "compiled_kernels.json lacks" not in process.stderr, process.stderr


def record_of(path: Path, figures: dict[str, list[int]], compiler: str = "this") -> KernelRecord:
    record = KernelRecord(path, compiler)
    for key, value in figures.items():
        assert record.figures(key, lambda value=value: value) == value
    record.write()
    return KernelRecord(path, compiler)


def test_only_an_unedited_record_of_this_compiler_is_read(tmp_path: Path) -> None:
    figures = {f"kernel {number}": [number] for number in range(40)}
    record = record_of(tmp_path / "record.json", figures)
    assert record.recorded == figures
    assert len(record.sample) == SAMPLE
    assert record.sample < figures.keys()
    other = KernelRecord(tmp_path / "record.json", "another")
    assert (other.recorded, other.sample) == ({}, frozenset())
    text = (tmp_path / "record.json").read_text()
    (tmp_path / "record.json").write_text(text.replace('"kernel 3": [3]', '"kernel 3": [4]'))
    with pytest.raises(RuntimeError, match="was edited"):
        KernelRecord(tmp_path / "record.json", "this")


def test_recorded_figures_are_compared_where_a_sample_is_compiled(tmp_path: Path) -> None:
    record = record_of(tmp_path / "record.json", {f"kernel {number}": [number] for number in range(40)})
    unsampled = min(record.recorded.keys() - record.sample)
    first, second = sorted(record.sample)[:2]
    assert record.figures(unsampled, lambda: [99]) == record.recorded[unsampled]
    assert record.figures(first, lambda: record.recorded[first]) == record.recorded[first]
    with pytest.raises(RuntimeError, match=rf"for {second}, the compiler gave \[99\]"):
        record.figures(second, lambda: [99])
    assert record.missing() == ""
    assert record.figures("new", lambda: [4]) == [4]
    assert record.missing().startswith("record.json lacks 1 of 3 kernels")
    record.write()  # what nothing asked for is dropped
    assert KernelRecord(tmp_path / "record.json", "this").recorded.keys() == {"new", unsampled, first}


def test_other_gpus_compile_each_kernel_s_heaviest_launch_and_all_with_many_registers() -> None:
    from tools.compile_ahead import MANY_REGISTERS, Compiled, heaviest

    registers = [
        ("light", 20),
        ("light", 30),
        ("light", 10),
        ("heavy", MANY_REGISTERS + 1),
        ("heavy", 200),
        ("heavy", 40),
    ]
    kernels = [Compiled(name, 90, count, 0, 0, 4, 1, 0, 0) for name, count in registers]
    kernels[2] = kernels[2]._replace(shared=102_000)
    assert heaviest(["a", "b", "c", "d", "e", "f"], kernels) == ["b", "c", "d", "e"]


@pytest.mark.parametrize(("capability", "most"), [(80, 166_912), (90, 232_448), (120, 101_376)])
def test_a_kernel_that_needs_more_shared_memory_than_its_gpu_has_exceeds_the_budget(capability: int, most: int) -> None:
    from tools.compile_ahead import Compiled, budget

    kernel = Compiled("product", capability, 100, 0, most, 4, 1, 0, 0)
    assert budget().holds(kernel)
    assert not budget().holds(kernel._replace(shared=most + 1))


class Sizes(NamedTuple):
    rows: Any
    cells: Any


def test_arguments_are_typed_as_by_triton_s_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which makes a constant of a 1, as in a batch of one image."""
    monkeypatch.setenv("UNDERPAINT_TRITON", "interpret")
    from triton.runtime.jit import mangle_type

    from tools.compile_ahead import _is_one, _places, signature

    arguments = (1, 2, 16, 2**40, 0.0, Sizes(1, 3))
    function = SimpleNamespace(arg_names=[*"abcdef", "BLOCK"])
    types, constants = signature(Launch("k", 0, "", function, arguments, {"BLOCK": 1}, 4, 3, (1,), {}))
    named = dict(zip("abcdef", arguments, strict=True))
    assert types == {name: mangle_type(one, specialize=True) for name, one in named.items()} | {"BLOCK": "constexpr"}
    assert (types["a"], types["f"]) == ("constexpr", Sizes("constexpr", "i32"))
    assert [*_places(arguments, _is_one)] == [(0,), (5, 0)]
    assert constants == {"BLOCK": 1}


def test_the_shipped_models_programs_are_compiled_for_one_image_and_for_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNDERPAINT_TRITON", "interpret")
    from tools.compile_ahead import signature
    from tools.compiled_programs import shipped_launches

    attends = [one for one in shipped_launches() if one.name == "attention_kernel"]
    kinds = {(signature(one)[0]["query"], signature(one)[0]["batch"], one.constants["D"]) for one in attends}
    assert kinds == {("*fp32", "constexpr", 60), ("*fp32", "i32", 60)}


@pytest.mark.parametrize("config", [XL, SEVEN_B], ids=["xl", "7b"])
@pytest.mark.parametrize("engine", [False, True], ids=["torch", "engine"])
@pytest.mark.parametrize("name", ["eagle2", "zipar"])
def test_further_layers_launch_the_same_kernels(
    name: str, engine: bool, config: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDERPAINT_TRITON", "interpret")  # importing asks for a compiler where nothing is asked for
    from tools.compile_ahead import distinct, signature
    from tools.compiled_programs import LAYERS

    whole, few = (
        distinct(count_cycle(one, method_of(name, one.vocab_size), batch=1, engine=engine).launches)
        for one in (config, replace(config, layers=LAYERS))
    )
    assert config.layers > LAYERS
    assert [(one.name, signature(one), one.warps) for one in few] == [
        (one.name, signature(one), one.warps) for one in whole
    ]


def test_interpreting_leaves_the_environment_alone() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    program = "import os, underpaint.runtime.device.launch; assert 'TRITON_INTERPRET' not in os.environ"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
