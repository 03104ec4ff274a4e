"""The precision of training: bfloat16 if the processor has units for it, else float32.

Parameters, their averages and the losses stay float32; `autocast` narrows the products inside a model's pass. On a
processor without bfloat16 units, bfloat16 products are slower than float32 ones.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch

_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Linux names of the bfloat16 units of x86 and ARM processors."""


@lru_cache(maxsize=1)
def processor_has_bfloat16(table: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the first processor of Linux's table has bfloat16 units; False if there is no such table."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return False
    flags = next((line.split(":", 1)[1] for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _FLAGS.isdisjoint(flags.split())


@lru_cache(maxsize=1)
def gpu_has_bfloat16() -> bool:
    """Return whether the GPU has its own bfloat16 units."""
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def product_type(device: torch.device | str) -> torch.dtype:
    """Return the dtype of large products on a device."""
    narrow = processor_has_bfloat16() if torch.device(device).type == "cpu" else gpu_has_bfloat16()
    return torch.bfloat16 if narrow else torch.float32


def describe_products(device: torch.device | str) -> str:
    """Return a message with the dtype of products on a device, and advice if it is the slow one."""
    if product_type(device) == torch.bfloat16:
        return f"products in bfloat16 on {device}"
    message = f"products in float32 on {device}, which has no bfloat16 units and takes several times as long for a step"
    if torch.device(device).type == "cpu":
        return f"{message}; train on a processor that has them ({', '.join(sorted(_FLAGS))}), or with --device cuda"
    return f"{message}; train on a GPU that has them (compute capability 8.0 or more)"


def autocast(device: torch.device | str) -> AbstractContextManager[object]:
    """Compute the products inside in `product_type(device)`."""
    kind = product_type(device)
    return nullcontext() if kind == torch.float32 else torch.autocast(torch.device(device).type, kind)
