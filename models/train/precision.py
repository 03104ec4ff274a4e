"""The numbers that a recipe computes in: bfloat16 where the processor multiplies it, float32 elsewhere.

Parameters, their averages and the losses stay float32; `autocast` narrows the products inside a model's pass. On a
processor without bfloat16 units, bfloat16 products are slower than float32 ones.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch

_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""What Linux calls the units of x86 and ARM processors."""


@lru_cache(maxsize=1)
def processor_has_bfloat16(table: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the first processor of Linux's table has bfloat16 units; False where there is no such table."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return False
    flags = next((line.split(":", 1)[1] for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _FLAGS.isdisjoint(flags.split())


def product_type(device: torch.device | str) -> torch.dtype:
    """The type that large products are taken in on a device."""
    narrow = torch.device(device).type != "cpu" or processor_has_bfloat16()
    return torch.bfloat16 if narrow else torch.float32


def autocast(device: torch.device | str) -> AbstractContextManager[object]:
    """Take the products inside in `product_type(device)`."""
    kind = product_type(device)
    return nullcontext() if kind == torch.float32 else torch.autocast(torch.device(device).type, kind)
