"""The walk of `algos.accept.lantern` over point proposals: each is kept with its own mass and its pool's."""

import torch
from torch import Tensor

from underpaint.algos.accept.lantern import Lantern, LanternPP
from underpaint.algos.accept.lantern_greedy import LanternGreedy, LanternPPGreedy
from underpaint.runtime.device.kernels.pool import ABSOLUTE, PAPER, RELATIVE, RELEASED, STANDARD, clear, pool
from underpaint.runtime.device.kernels.row_maths import draw, flip, row_sum
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, conclude, row_bytes, takes_part, tile
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def copy_row(row, out, V, BLOCK: tl.constexpr) -> None:
    """`row` [V] float32 to `out` [V] float64."""
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        tl.store(out + place, tl.load(row + place, place < V, other=0.0).to(tl.float64), place < V)


@kernel
def walk_lantern_kernel(
    tokens,
    first,
    sibling,
    probs,
    uniforms,
    neighbours,
    left,
    path,
    taken,
    token,
    status,
    finite,
    bound,
    K,
    columns,
    V,
    N,
    rows,
    POOLED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROLES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KBLOCK: tl.constexpr,
) -> None:
    """One program an image; what siblings leave of a distribution is kept in `left` [B, V] float64."""
    image = tl.program_id(0)
    if takes_part(status, finite, taken, image, rows, ROWS) == 0:
        return
    tree = image * N
    accept = uniforms + image * ROLES * N + N
    residual = accept + N
    bonus = residual + N
    rest = left + image.to(tl.int64) * V
    none = tl.full((2,), -1, tl.int64)
    most = tl.load(bound)
    node = tl.full((), 0, tl.int64)
    length = tl.full((), 0, tl.int64)
    tried = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    while going == 1:
        tl.debug_barrier()
        copy_row(probs + (tree + node) * V, rest, V, BLOCK)
        tl.debug_barrier()
        total = row_sum(rest, V, none, BLOCK)
        summed = total
        tried = tl.full((), 0, tl.int32)
        kept = tl.full((), -1, tl.int64)
        child = tl.load(first + tree + node)
        while (child >= 0) & (kept < 0):
            proposed = tl.load(tokens + tree + child)
            near = neighbours + proposed * columns
            own = tl.load(rest + proposed)
            limit = most * total
            if POOLED == RELATIVE:
                limit = most * own
            mass, codes = pool(rest, near, K, limit, KBLOCK)
            if flip(tl.load(accept + child), own + mass, total):
                kept = child
            else:
                tried += 1
                tl.debug_barrier()
                if RESIDUAL == PAPER:
                    clear(rest, near, codes, KBLOCK)
                if RESIDUAL == RELEASED:
                    clear(rest, near, tl.where(codes > 0, tl.minimum(K + 1, columns), 0), KBLOCK)
                tl.store(rest + proposed, 0.0)
                tl.debug_barrier()
                if RESIDUAL == PAPER:
                    total -= own + mass
                else:
                    total -= own
                if (RESIDUAL == RELEASED) | (total < 0.5 * summed):
                    total = row_sum(rest, V, none, BLOCK)
                    summed = total
                if total > 0.0:
                    child = tl.load(sibling + tree + child)
                elif RESIDUAL != RELEASED:
                    kept = child  # it was certain to be kept, and only rounding said otherwise
                else:
                    for start in range(0, V, BLOCK):
                        place = start + tl.arange(0, BLOCK)
                        tl.store(rest + place, tl.full((BLOCK,), 1.0, tl.float64), place < V)
                    tl.debug_barrier()
                    total = row_sum(rest, V, none, BLOCK)
                    summed = total
                    child = tl.load(sibling + tree + child)
        if kept >= 0:
            tl.store(path + tree + length, kept)
            length += 1
            node = kept
        else:
            going = tl.full((), 0, tl.int32)
    role = tl.where(tried > 0, residual, bonus)
    found = draw(rest, V, tl.load(role + node), none, BLOCK)
    conclude(status, taken, token, image, length, found, V)


class Pools:
    """Whose pools and residual: settings of LANTERN or LANTERN++ on the device.

    neighbours [V, columns] int32; bound [1] float64: delta, or factor - 1; k: columns used, 0 for all.
    """

    __slots__ = ("bound", "k", "kind", "neighbours", "residual")

    def __init__(self, neighbours: Tensor, k: int, bound: Tensor, kind: int, residual: str) -> None:
        self.neighbours, self.bound, self.kind = neighbours, bound, kind
        self.k = k or neighbours.shape[1]
        self.residual = {"paper": PAPER.value, "released": RELEASED.value, "standard": STANDARD.value}[residual]

    @property
    def tile(self) -> int:
        """Codes of a pool at a time."""
        return min(256, next_power_of_2(max(2, self.k)))


def pools_of(
    rule: Lantern | LanternPP | LanternGreedy | LanternPPGreedy, device: torch.device, residual: str = "paper"
) -> Pools:
    """The pools of a rule, with its table on `device`."""
    if isinstance(rule, LanternPP | LanternPPGreedy):
        bound, kind = rule.factor - 1.0, RELATIVE
    else:
        bound, kind = rule.delta, ABSOLUTE
    table = torch.as_tensor(rule.neighbours, dtype=torch.int32, device=device).contiguous()
    return Pools(table, rule.k, torch.tensor([bound], dtype=torch.float64, device=device), kind.value, residual)


def walk_lantern(tree: BatchTree, out: Verdicts, pools: Pools, left: Tensor, levels: int) -> None:
    """Decide every image's tree of point proposals; left [B, V] float64 is scratch."""
    batch, nodes, vocab_size = tree.probs.shape
    launch(
        walk_lantern_kernel,
        (batch,),
        row_bytes(tree, levels + 1, 4 + 8 + 8),
        tree.tokens,
        tree.first,
        tree.sibling,
        tree.probs,
        tree.uniforms,
        pools.neighbours,
        left,
        out.path,
        out.taken,
        out.token,
        out.status,
        out.finite,
        pools.bound,
        pools.k,
        pools.neighbours.shape[1],
        vocab_size,
        nodes,
        out.finite.shape[1],
        POOLED=pools.kind,
        RESIDUAL=pools.residual,
        ROLES=tree.uniforms.shape[1],
        ROWS=next_power_of_2(out.finite.shape[1]),
        BLOCK=tile(vocab_size),
        KBLOCK=pools.tile,
    )
