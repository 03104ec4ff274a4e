"""LANTERN's pools: the nearest codes of a token, up to a bound on their mass, as in `algos.accept.lantern.pool`."""

from typing import NamedTuple

import torch
from torch import Tensor

from underpaint.algos.accept.lantern import Lantern, LanternPP
from underpaint.algos.accept.lantern_greedy import LanternGreedy, LanternPPGreedy
from underpaint.runtime.device.launch import kernel, next_power_of_2, tl

NONE: tl.constexpr = tl.constexpr(0)
ABSOLUTE: tl.constexpr = tl.constexpr(1)
"""LANTERN: at most `bound` of the distribution's mass."""
RELATIVE: tl.constexpr = tl.constexpr(2)
"""LANTERN++: at most `bound` times the token's own mass."""
PAPER: tl.constexpr = tl.constexpr(0)
RELEASED: tl.constexpr = tl.constexpr(1)
STANDARD: tl.constexpr = tl.constexpr(2)
"""Which residual a rule uses: see `algos.accept.lantern`."""


@kernel
def pool(row, near, K, limit, share, KBLOCK: tl.constexpr):
    """Return mass (float64) and number (int64) of the first codes of `near` [K] whose weights sum to at most `limit`.

    A weight is the row's absolute value times `share`; its sign is a mark, see `walk_pooled`.
    """
    running = tl.full((), 0.0, tl.float64)
    mass = tl.full((), 0.0, tl.float64)
    codes = tl.full((), 0, tl.int64)
    for start in range(0, K, KBLOCK):  # trips: pools.k / KBLOCK
        place = start + tl.arange(0, KBLOCK)
        code = tl.load(near + place, place < K, other=0)
        weights = tl.abs(tl.load(row + code, place < K, other=0.0).to(tl.float64)) * share
        sums = running + tl.cumsum(weights, axis=0)
        within = (sums <= limit) & (place < K)
        codes += tl.sum(within.to(tl.int64), axis=0)
        mass = tl.maximum(mass, tl.max(tl.where(within, sums, 0.0), axis=0))
        running += tl.sum(weights, axis=0)
    return mass, codes


@kernel
def clear(row, near, count, KBLOCK: tl.constexpr) -> None:
    """Set the weights of the first `count` codes of `near` to 0."""
    for start in range(0, count, KBLOCK):  # trips: pools.k / KBLOCK
        place = start + tl.arange(0, KBLOCK)
        code = tl.load(near + place, place < count, other=0)
        tl.store(row + code, tl.zeros((KBLOCK,), tl.float64), place < count)


class Pools(NamedTuple):
    """A rule's pools: neighbours [V, columns] int32, of which k are used; bound [1] float64: delta, or factor - 1."""

    neighbours: Tensor
    bound: Tensor
    k: int
    columns: int


def no_pools(device: torch.device) -> tuple[Pools, dict[str, int]]:
    """Return what `pools_of` returns, for a rule without pools in a kernel that can have pools."""
    nothing = Pools(
        torch.zeros(1, 1, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.float64, device=device), 1, 0
    )
    return nothing, {"POOLED": NONE.value, "RESIDUAL": PAPER.value, "KBLOCK": 2}


def pools_of(
    rule: Lantern | LanternPP | LanternGreedy | LanternPPGreedy, device: torch.device
) -> tuple[Pools, dict[str, int]]:
    """Return a rule's pools with its table on `device`, and the constants by which kernels read them."""
    if isinstance(rule, LanternPP | LanternPPGreedy):
        bound, kind = rule.factor - 1.0, RELATIVE
    else:
        bound, kind = rule.delta, ABSOLUTE
    table = torch.as_tensor(rule.neighbours, dtype=torch.int32, device=device).contiguous()
    k = rule.k or table.shape[1]
    residual = {"paper": PAPER, "released": RELEASED, "standard": STANDARD}[getattr(rule, "residual", "paper")]
    pools = Pools(table, torch.tensor([bound], dtype=torch.float64, device=device), k, table.shape[1])
    block = min(256, next_power_of_2(max(2, k)))
    return pools, {"POOLED": kind.value, "RESIDUAL": residual.value, "KBLOCK": block}
