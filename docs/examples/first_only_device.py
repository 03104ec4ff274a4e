"""The device form of rule `first_only`: a Triton kernel that decides one image's tree in each program."""

from typing import Any

import torch
from torch import Tensor

from underpaint.runtime.device.kernels.row_maths import draw, flip, hide, restore, row_sum
from underpaint.runtime.device.kernels.walk import (
    BatchTree,
    Decide,
    Shape,
    Verdicts,
    conclude,
    launch_walk,
    noise_of,
    row_bytes,
    takes_part,
    tile,
)
from underpaint.runtime.device.launch import kernel, tl, wait_for_earlier_kernels


@kernel
def first_only_kernel(tree, out, V, N, drafts, rows, ROLES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    if takes_part(out.status, out.finite, out.taken, image, rows, ROWS) == 0:
        return
    base = image * N
    accept, residual, bonus = noise_of(tree, image, N, ROLES)
    node = tl.full((), 0, tl.int64)
    length = tl.full((), 0, tl.int64)
    rejected = tl.full((), -1, tl.int64)
    child = tl.load(tree.first + base)
    role = bonus
    while child >= 0:
        row = tree.probs + (base + node) * V
        token = tl.load(tree.tokens + base + child)
        if flip(tl.load(accept + child), tl.load(row + token).to(tl.float64), row_sum(row, V, BLOCK)):
            tl.store(out.path + base + length, child)
            length += 1
            node = child
            child = tl.load(tree.first + base + node)
        else:
            rejected = token
            role = residual
            child = tl.full((), -1, tl.int64)
    row = tree.probs + (base + node) * V
    weight = hide(row, rejected, rejected >= 0)
    extra_token = draw(row, V, tl.load(role + node), BLOCK)
    restore(row, rejected, weight, rejected >= 0)
    conclude(out, image, length, extra_token, V, 1)


def first_only_walk(rule: Any, shape: Shape, device: torch.device) -> Decide:
    """The launches that decide trees of this shape."""

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        moved = row_bytes(tree, shape.levels + 1)
        launch_walk(first_only_kernel, shape, tree, out, moved, BLOCK=tile(shape.vocab_size))

    return decide
