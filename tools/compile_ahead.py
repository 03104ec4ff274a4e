"""Compile a cycle's kernels for GPUs that are not present, and report their registers and spills.

`python -m tools.compile_ahead [90 80 120] [--every-size]` compiles every kernel of every method at the sizes of
LlamaGen-XL and 7B, and of the shipped models in float32, and prints JSON; the exit code is 1 if a kernel exceeds the
budget. Of kernels that differ only in sizes, the largest are compiled, which need most registers. Those that need many
on the first GPU, and each kernel's heaviest, are also compiled for the others. `--every-size` compiles all for all
(an hour). Slots are not counted.

`tools/compiled_kernels.json` records what the compiler gave, by a hash of its input: the kernel's source with every
function that it calls, types, constants and options. Only kernels that the record lacks are compiled, and a sample of
those that it has, to compare. With another version of Triton or the assembler, everything is compiled. `python -m
tools.compile_ahead --record` compiles what is new and removes unused entries; run it after changing a kernel. If the
record is deleted first, everything is compiled, as in the nightly run.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from math import prod
from operator import ge
from pathlib import Path
from typing import Any, Final, NamedTuple

if __name__ == "__main__":
    os.environ.setdefault("UNDERPAINT_TRITON", "compile")  # before the device runtime is imported

import torch
from torch import Tensor

from tools import sass
from tools.compiled_programs import all_launches, slot_launches
from tools.kernel_record import KernelRecord, digest
from underpaint.runtime.device.launch import INTERPRETED, TRITON, Launch, overlaps
from underpaint.runtime.device.providers import FP8_CAPABILITY
from underpaint.sim.latency.machines import Machine

CAPABILITIES: Final = (90, 80, 120)


class Budget(NamedTuple):
    """The resources that a kernel may use per thread.

    Attributes:
        registers: Most registers, below the 255 at which the compiler begins to spill.
        stack: Most bytes; the frame of a float64 division's slow path takes 16, and spilled registers take more.
    """

    registers: int
    stack: int

    def holds(self, kernel: "Compiled") -> bool:
        """Return whether a kernel stays within the budget, and within its GPU's shared memory."""
        fits = kernel.shared <= SHARED[kernel.capability]
        return fits and kernel.registers <= self.registers and kernel.stack <= self.stack


SHARED: Final = {80: 166_912, 90: 232_448, 120: 101_376}
"""Bytes of shared memory that a program may use, by capability. Capabilities 8.6 and 8.9 have as many as 12.0."""
BUDGETS: Final = {"3.6": Budget(254, 80), "3.9": Budget(224, 16)}
"""By Triton version; a version that is not listed gets the strictest budget.

On sm_90, Triton 3.6 needs 250 registers for `ready_kernel` and 229 for `attention_kernel`; `walk_drawn_kernel` spills.
"""
EVERY_SIZE: Final = "--every-size"
RECORD: Final = "--record"
RECORD_FILE: Final = Path(__file__).with_name("compiled_kernels.json")
MANY_REGISTERS: Final = 112
"""Half of the strictest budget: a kernel with no more on sm_90 needs at most 162 on sm_80 and sm_120."""
_TYPES: Final = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.float8_e4m3fn: "*fp8e4nv",
}


SIZES: Final = re.compile(r".*BLOCK|(NEXT_)?ROWS|V|NODES|CHILDREN|COUNT|LEVELS|MOST(_.*)?|WIDTH|W|TOTAL|WORDS|LANES|D")
"""Names of constants that say how much a kernel does, not what it does."""

MACHINES: Final = {"h200": 90, "h100": 90, "a100": 80}
"""Machines whose clock and multiprocessors the simulator knows, and the capability to compile for."""


class Compiled(NamedTuple):
    """A kernel compiled for one capability.

    Attributes:
        name: Name of the kernel.
        capability: The compute capability, such as 90.
        registers: Registers per thread.
        stack: Bytes of local memory per thread, where spilled registers go.
        shared: Bytes of shared memory per program.
        warps: Warps per program.
        programs: Number of programs in the launch.
        slots: Instructions that each warp of a program issues, see `tools.sass`; 0 if not counted.
        bytes: Least number of bytes that the launch reads and writes.
    """

    name: str
    capability: int
    registers: int
    stack: int
    shared: int
    warps: int
    programs: int
    slots: int
    bytes: int

    def issued(self, machine: Machine) -> float:
        """Return the number of instructions that the machine's busiest scheduler issues."""
        return -(-self.programs // machine.processors) * self.slots * max(1.0, self.warps / 4)


KERNELS: Final = Path(__file__).resolve().parents[1] / "runtime" / "device" / "kernels"


def signature(launch: Launch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a launch's types by argument, and its named constants. As in Triton's JIT, an int 1 is constant too."""
    names = launch.function.arg_names
    types: dict[str, Any] = dict.fromkeys(names, "constexpr")
    for name, argument in zip(names, launch.arguments, strict=False):
        types[name] = _type_of(argument)
    return types, dict(launch.constants)


def _type_of(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return type(argument)(*map(_type_of, argument))
    if isinstance(argument, Tensor):
        return _TYPES[argument.dtype]
    if isinstance(argument, float):
        return "fp32"
    if isinstance(argument, bool):
        return "u1"
    if _is_one(argument):
        return "constexpr"
    return "i32" if -(2**31) <= int(argument) < 2**31 else "i64"


def _is_one(argument: Any) -> bool:
    return type(argument) is int and argument == 1


def _divisible(launch: Launch) -> dict[tuple[int, ...], list[list[Any]]]:
    """Return the arguments that Triton specialises for at launch: addresses, and numbers that are multiples of 16."""

    def divides(argument: Any) -> bool:
        if isinstance(argument, Tensor):
            return True
        return isinstance(argument, int) and not isinstance(argument, bool) and argument % 16 == 0

    return {place: [["tt.divisibility", 16]] for place in _places(launch.arguments, divides)}


def _places(arguments: tuple[Any, ...], wanted: Callable[[Any], bool]) -> Iterator[tuple[int, ...]]:
    """Yield where the wanted arguments are, also those within named tuples."""
    for turn, argument in enumerate(arguments):
        if isinstance(argument, tuple):
            yield from ((turn, *place) for place in _places(argument, wanted))
        elif wanted(argument):
            yield (turn,)


def distinct(launches: Iterable[Launch]) -> list[Launch]:
    """Return one launch for each combination of kernel, types and constants."""
    launch_by_key: dict[str, Launch] = {}
    for launch in launches:
        launch_by_key.setdefault(_inputs(launch), launch)
    return list(launch_by_key.values())


def _inputs(launch: Launch) -> str:
    return repr((launch.name, *signature(launch), launch.warps, launch.stages, _divisible(launch)))


def largest(launches: Iterable[Launch]) -> list[Launch]:
    """Of launches that differ only in sizes, return those that no other launch equals or exceeds in every size."""
    kinds: dict[str, list[tuple[tuple[int, ...], Launch]]] = {}
    for launch in distinct(launches):
        types, constants = signature(launch)
        sizes = {name: value for name, value in constants.items() if SIZES.fullmatch(name)}
        kind = repr((launch.name, types, sorted(constants.items() - sizes.items()), sorted(sizes)))
        kinds.setdefault(kind, []).append((tuple(int(value) for _, value in sorted(sizes.items())), launch))
    return [
        launch
        for group in kinds.values()
        for sizes, launch in group
        if not any(other != sizes and all(map(ge, other, sizes)) for other, _ in group)
    ]


def heaviest(launches: Sequence[Launch], compiled: Sequence[Compiled]) -> list[Launch]:
    """Return each kernel's launch with most registers, and all launches with many, or with much shared memory."""
    most = {one.name: one for one in sorted(compiled, key=lambda one: one.registers)}
    pairs = zip(launches, compiled, strict=True)
    much = min(SHARED.values())
    return [
        launch for launch, one in pairs if one.registers > MANY_REGISTERS or one.shared > much or one is most[one.name]
    ]


def runs_on(launch: Launch, capability: int) -> bool:
    """Return whether GPUs of a capability convert the types of a launch."""
    fp8 = any(isinstance(one, Tensor) and one.dtype == torch.float8_e4m3fn for one in launch.arguments)
    return not fp8 or capability >= FP8_CAPABILITY[0] * 10 + FP8_CAPABILITY[1]


@cache
def _compiler() -> str:
    """Return Triton's version, with a hash of its assemblers' versions and of the environment that changes code."""
    if INTERPRETED:
        raise RuntimeError("kernels are interpreted in this process; set UNDERPAINT_TRITON=compile before importing")
    from triton._C.libtriton import get_cache_invalidating_env_vars

    assemblers = [_backend(capability).hash() for capability in CAPABILITIES]
    return f"{TRITON} {digest(assemblers, sorted(get_cache_invalidating_env_vars().items()))}"


@cache
def _backend(capability: int) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    return make_backend(GPUTarget("cuda", capability, 32))


@cache
def _options_hash(capability: int, warps: int, stages: int, overlap: bool) -> str:
    return str(_backend(capability).parse_options(_options(warps, stages, overlap)).hash())


def _options(warps: int, stages: int, overlap: bool) -> dict[str, Any]:
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False, "launch_pdl": overlap}


def _source(launch: Launch) -> Any:
    from triton.compiler import ASTSource

    types, constants = signature(launch)
    ones = dict.fromkeys(_places(launch.arguments, _is_one), 1)
    return ASTSource(launch.function, types, constants | ones, _divisible(launch))


@cache
def kernel_record() -> KernelRecord:
    """Return the record of this compiler's kernels, read once."""
    return KernelRecord(RECORD_FILE, _compiler())


_KEYS: Final[dict[str, str]] = {}


@cache
def _sass_hash() -> str:
    return digest(Path(sass.__file__).read_text(encoding="utf-8"))


def _numbers(argument: Any) -> Any:
    """Return an argument with the shapes of its tensors instead of the tensors."""
    if isinstance(argument, tuple):
        return [*map(_numbers, argument)]
    return list(argument.shape) if isinstance(argument, Tensor) else argument


def compile_for(launch: Launch, capability: int, count_slots: bool = True) -> Compiled:
    """Return what the record has of a launch, or compile it; errors of Triton pass through."""
    inputs = f"{capability} {_inputs(launch)}"
    if inputs not in _KEYS:
        overlap = overlaps(launch.function, capability)
        compiler, options = _compiler(), _options_hash(capability, launch.warps, launch.stages, overlap)
        _KEYS[inputs] = f"{launch.name} {capability} {digest(compiler, _source(launch).hash(), options)}"
    key = _KEYS[inputs]
    registers, stack, shared = kernel_record().figures(key, lambda: _usage(launch, capability))
    slots = 0
    if count_slots:
        names = dict(zip(launch.function.arg_names, launch.arguments, strict=False)) | launch.constants | launch.trips
        numbers = {name: _numbers(value) for name, value in names.items()}

        def count() -> list[int]:
            return [round(sass.slots(_blocks_of(_compile(launch, capability).asm["cubin"]), KERNELS, names))]

        (slots,) = kernel_record().figures(f"{key} {digest(_sass_hash(), numbers)}", count)
    sizes = (launch.warps, prod(launch.grid), slots, launch.bytes)
    return Compiled(launch.name, capability, registers, stack, shared, *sizes)


def _compile(launch: Launch, capability: int) -> Any:
    """Return Triton's kernel, which its cache keeps."""
    import triton

    options = _options(launch.warps, launch.stages, overlaps(launch.function, capability))
    return triton.compile(_source(launch), target=_backend(capability).target, options=options)


@cache
def _blocks_of(cubin: bytes) -> list[sass.Block]:
    return sass.blocks_of(sass.listing_of(cubin))


def _usage(launch: Launch, capability: int) -> list[int]:
    kernel = _compile(launch, capability)
    if kernel.metadata.launch_pdl and not sass.waits_first(sass.listing_of(kernel.asm["cubin"])):
        raise RuntimeError(f"{launch.name}: accesses memory before it waits for earlier kernels")
    usage = sass.disassemble(kernel.asm["cubin"], "cuobjdump", "-res-usage")
    match = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if match is None:
        raise RuntimeError(f"cuobjdump: expected registers and stack, got {usage!r}")
    return [int(match[1]), int(match[2]), int(kernel.metadata.shared)]


def main(arguments: Sequence[str]) -> int:
    """Compile for the named capabilities (all if none is named); return 1 if a kernel exceeds the budget, else 0."""
    every_size, recording = EVERY_SIZE in arguments, RECORD in arguments
    if unknown := [one for one in arguments if one not in (EVERY_SIZE, RECORD) and not one.isdecimal()]:
        raise SystemExit(f"expected capabilities, {EVERY_SIZE} or {RECORD}, got {' '.join(unknown)}")
    if recording and len(arguments) > 1:
        raise SystemExit(f"{RECORD} records all capabilities at the largest sizes; pass it alone")
    capabilities = [int(argument) for argument in arguments if argument.isdecimal()] or list(CAPABILITIES)
    chosen = distinct(all_launches()) if every_size else largest(all_launches())
    first = [launch for launch in chosen if runs_on(launch, capabilities[0])]
    compiled_kernels = [compile_for(launch, capabilities[0], count_slots=False) for launch in first]
    if not every_size:
        others = [launch for launch in chosen if not runs_on(launch, capabilities[0])]
        chosen = [*heaviest(first, compiled_kernels), *others]
    compiled_kernels += [
        compile_for(launch, other, count_slots=False)
        for other in capabilities[1:]
        for launch in chosen
        if runs_on(launch, other)
    ]
    if recording:
        for launch in slot_launches():
            compile_for(launch, MACHINES["h200"])
        kernel_record().write()
    elif not every_size and (missing := kernel_record().missing()):
        print(missing, file=sys.stderr)
    print(json.dumps([one._asdict() for one in compiled_kernels], indent=1))
    return int(not all(budget().holds(one) for one in compiled_kernels))


def budget() -> Budget:
    """Return the budget for the installed Triton."""
    return BUDGETS.get(TRITON.rpartition(".")[0], min(BUDGETS.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
