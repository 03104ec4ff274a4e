"""Compile a cycle's kernels for GPUs that are not there, and report their registers and spills.

`python -m underpaint.runtime.device.compile_ahead` compiles every kernel of every method at LlamaGen-XL's and at 7B's
sizes and prints JSON; exit code 1 where one is beyond the budget.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("UNDERPAINT_TRITON", "compile")

import torch
from torch import Tensor

from underpaint.runtime.device.language import INTERPRETED, Launch

CAPABILITIES: Final = (80, 90, 120)
MOST_REGISTERS: Final = 224
"""Of a thread, below the 255 at which the compiler begins to spill."""
MOST_STACK: Final = 16
"""Bytes a thread: the frame of a float64 division's slow path; spilled registers take more."""
_TYPES: Final = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
}


class Compiled(NamedTuple):
    """A kernel on one capability. stack: bytes of local memory a thread, which is where spilled registers go."""

    name: str
    capability: int
    registers: int
    stack: int
    shared: int
    warps: int


def signature(launch: Launch) -> tuple[dict[str, str], dict[str, Any]]:
    """A launch's types by argument, and its constants."""
    names = launch.function.arg_names
    types = dict.fromkeys(names, "constexpr")
    for name, argument in zip(names, launch.arguments, strict=False):
        types[name] = _type_of(argument)
    return types, dict(launch.constants)


def _type_of(argument: Any) -> str:
    if isinstance(argument, Tensor):
        return _TYPES[argument.dtype]
    if isinstance(argument, float):
        return "fp32"
    return "i32" if -(2**31) <= int(argument) < 2**31 else "i64"


def distinct(launches: Iterable[Launch]) -> list[Launch]:
    """One launch for each kernel, types and constants."""
    found: dict[str, Launch] = {}
    for launch in launches:
        found.setdefault(repr((launch.name, *signature(launch), launch.warps)), launch)
    return list(found.values())


def compile_for(launch: Launch, capability: int) -> Compiled:
    """Compile one launch; whatever Triton refuses it raises."""
    if INTERPRETED:
        raise RuntimeError("kernels are interpreted in this process; set UNDERPAINT_TRITON=compile before importing")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types, constants = signature(launch)
    source = ASTSource(fn=launch.function, signature=types, constexprs=constants)
    options = {"num_warps": launch.warps, "enable_fp_fusion": False}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack = resources(made.asm["cubin"])
    return Compiled(launch.name, capability, registers, stack, int(made.metadata.shared), launch.warps)


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread, by the cuobjdump in Triton's wheel."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as held:
        held.write(cubin)
        held.flush()
        told = subprocess.run([tool, "-res-usage", held.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    if found is None:
        raise RuntimeError(f"cuobjdump: expected registers and stack, got {told!r}")
    return int(found[1]), int(found[2])


def main(arguments: Sequence[str]) -> int:
    """Compile everything for the capabilities named (all without one); 1 where a kernel is beyond the budget."""
    from underpaint.runtime.device.program import count_cycle
    from underpaint.runtime.device.sizes import METHODS, SEVEN_B, XL, method_of

    capabilities = [int(argument) for argument in arguments] or list(CAPABILITIES)
    launches: list[Launch] = []
    for config in (XL, SEVEN_B):
        for name in METHODS:
            launches += count_cycle(config, method_of(name, config.vocab_size), batch=1).launches
    made = [compile_for(launch, capability) for capability in capabilities for launch in distinct(launches)]
    print(json.dumps([one._asdict() for one in made], indent=1))
    return int(any(one.stack > MOST_STACK or one.registers > MOST_REGISTERS for one in made))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
