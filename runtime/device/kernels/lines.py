"""End-of-line tokens in a cycle: a node whose cell ends a line of the picture is followed by one.

The reference is `engines.pass_inputs`. A pass over N nodes has 2 N positions: node i in slot i, and the token after it
in slot N + i, which is unused if the node ends no line.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.kernels.layout import Lengths, Progress
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


class LineBuffers(NamedTuple):
    """int64: tokens, positions, masks [B, 2 N] of a pass; outputs [B, N]: the slot whose output follows each node.

    path [B, 2 N] and counts [B]: the slots to commit after the root's, and their number including the root's.
    """

    tokens: Tensor
    positions: Tensor
    masks: Tensor
    outputs: Tensor
    path: Tensor
    counts: Tensor


@kernel
def lay_lines_kernel(tree, cells, progress, target, out, N, W, most, eol, NODES: tl.constexpr) -> None:
    """One program per image."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    node = tl.arange(0, NODES)
    here = node.to(tl.int64)
    inside = node < N
    cell = tl.load(cells + image * N + node, inside, other=0)
    mask = tl.load(tree.masks + image * N + node, inside, other=0)
    ends = (node < tl.load(tree.counts + image)) & (cell % W == W - 1) & (cell < most)
    own = tl.full((NODES,), 1, tl.int64) << here
    lines = tl.sum(tl.where(ends, own, 0), axis=0)
    behind = (mask & lines & ~own) << N
    place = image * 2 * N + node
    tl.store(out.tokens + place, tl.load(tree.tokens + image * N + node, inside, other=0), inside)
    tl.store(out.positions + place, cell, inside)
    tl.store(out.masks + place, mask | behind, inside)
    tl.store(out.tokens + place + N, here * 0 + eol, inside)
    tl.store(out.positions + place + N, tl.where(ends, most + 1 + cell // W, 0), inside)
    tl.store(out.masks + place + N, tl.where(ends, mask | behind, 0) | (own << N), inside)
    tl.store(out.outputs + image * N + node, tl.where(ends, here + N, here), inside)
    drawn = tl.load(progress.cells + image) - 1
    tl.store(target + image, tl.load(progress.prefixes + image) + drawn + drawn // W)


def lay_lines(
    tree: BatchTree, cells: Tensor, progress: Progress, lengths: Lengths, out: LineBuffers, width: int, eol: int
) -> None:
    """Lay out a pass, and count end-of-line tokens among the cached positions in lengths.target.

    Args:
        tree: The trees, of at most 32 nodes.
        cells: Cells of the nodes, [B, N] int64.
        progress: Progress of the images.
        lengths: Takes the cached positions.
        out: Takes the pass.
        width: Length of a line.
        eol: The end-of-line token.
    """
    batch, nodes = tree.tokens.shape
    launch(
        lay_lines_kernel,
        (batch,),
        8 * batch * 10 * nodes,
        tree,
        cells,
        progress,
        lengths.target,
        out,
        nodes,
        width,
        progress.decided.shape[1] - 1,
        eol,
        NODES=next_power_of_2(max(2, nodes)),
        warps=1,
    )


@kernel
def commit_lines_kernel(verdicts, out, N, NODES: tl.constexpr) -> None:
    """One program per image: the slot of every committed node, and after it that of its end-of-line token."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    count = tl.load(verdicts.taken + image)
    lane = tl.arange(0, NODES)
    inside = lane < count
    node = tl.load(verdicts.path + image * N + lane - 1, inside & (lane > 0), other=0)
    ends = inside & (tl.load(out.outputs + image * N + node, inside, other=0) >= N)
    more = ends.to(tl.int64)
    place = image * 2 * N + lane + tl.cumsum(more, axis=0) - more - 1
    tl.store(out.path + place, node, inside & (lane > 0))
    tl.store(out.path + place + 1, node + N, ends)
    tl.store(out.counts + image, count + tl.sum(more, axis=0))


def commit_lines(verdicts: Verdicts, out: LineBuffers) -> None:
    """Fill out.path and out.counts from the verdicts."""
    batch, nodes = verdicts.path.shape
    launch(
        commit_lines_kernel,
        (batch,),
        8 * batch * 5 * nodes,
        verdicts,
        out,
        nodes,
        NODES=next_power_of_2(max(2, nodes)),
        warps=1,
    )
