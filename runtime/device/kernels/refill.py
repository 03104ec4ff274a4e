"""Lays out a Jacobi window's draft chain, and fills in its new cells; as `algos.spatial.jacobi.WindowState.draft`."""

from underpaint.runtime.device.kernels.layout import Lengths, Progress
from underpaint.runtime.device.kernels.tree_meta import TreePlaces
from underpaint.runtime.device.kernels.walk import BatchTree, tile
from underpaint.runtime.device.kernels.window import WindowBuffers
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

EVENLY = tl.constexpr(0)
LEFT = tl.constexpr(1)
ABOVE = tl.constexpr(2)
RANDOM = tl.constexpr(3)
"""Source of a new cell's token: uniform, a copy from the left or above, or uniform, judged as a point proposal."""


@kernel
def lay_node(tree, layout, image, N, node, last, token, W, most) -> None:
    """Lay out a node of a chain of `last` drafts in a picture of `most` cells, as `tree_meta` does."""
    own, depth = image * N + node, node.to(tl.int64)
    tl.store(tree.tokens + own, token)
    tl.store(tree.parents + own, depth - 1)
    tl.store(tree.draft_rows + own, tl.minimum(depth, W - 1))
    tl.store(tree.first + own, tl.where(depth < last, depth + 1, -1))
    tl.store(tree.sibling + own, tl.full((), -1, tl.int64))
    tl.store(tree.masks + own, (tl.full((), 2, tl.int64) << depth) - 1)
    tl.store(layout.depths + own, depth)
    tl.store(layout.positions + own, tl.minimum(tl.load(layout.cells + image) - 1 + depth, most - 1))


@kernel
def lay_alone(tree, layout, image, N, node) -> None:
    """Lay out a node beyond an image's tree, which sees only itself."""
    own = image * N + node
    tl.store(tree.masks + own, tl.full((), 1, tl.int64) << node.to(tl.int64))
    tl.store(layout.positions + own, tl.load(layout.cells + image) - 1)


@kernel
def refill_kernel(
    window,
    progress,
    levels,
    tree,
    layout,
    W,
    V,
    N,
    U,
    most,
    width,
    even,
    KIND: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (draft, image). A copy depends on the copies before it, so each program computes those too."""
    wait_for_earlier_kernels()
    place, image = tl.program_id(0), tl.program_id(1)
    length = tl.load(levels + image)
    if place == 0:
        tl.store(tree.counts + image, length + 1)
        lay_node(tree, layout, image, N, place, length, tl.load(progress.roots + image), W, most)
    if place >= length:
        lay_alone(tree, layout, image, N, place + 1)
        return
    kept = tl.load(window.counts + image)
    lane = tl.arange(0, LANES)
    known = tl.load(window.tokens + image * W + lane, lane < kept, other=0)
    token = tl.sum(tl.where(lane == place, known, 0), axis=0)
    if place >= kept:
        if (KIND == EVENLY) | (KIND == RANDOM):
            whole = (tl.load(window.uniforms + (image * 3 + 2) * U + place) * 9007199254740992.0).to(tl.int64)
            token = tl.umulhi(whole.to(tl.uint64) << 11, (token * 0 + V).to(tl.uint64)).to(tl.int64)
        else:
            cell = tl.load(progress.cells + image)
            for turn in range(kept, place + 1):  # trips: W
                here = cell + turn
                above = (here >= width) & ((KIND == ABOVE) | (here % width == 0))
                source = tl.where(above, here - width, here - 1)
                drafted = tl.sum(tl.where(lane == source - cell, known, 0), axis=0)
                before = tl.load(progress.decided + image * most + source, source < cell, other=0)
                token = tl.where(source < cell, before, drafted)
                known = tl.where(lane == turn, token, known)
        row = tree.draft_probs + (image * W + place).to(tl.int64) * V
        for start in range(0, V, BLOCK):
            code = start + tl.arange(0, BLOCK)
            share = tl.where(code == token, 1.0, 0.0)
            if KIND == EVENLY:
                share = tl.zeros((BLOCK,), tl.float32) + even
            tl.store(row + code, share, code < V)
    lay_node(tree, layout, image, N, place + 1, length, token, W, most)


def refill(
    window: WindowBuffers,
    progress: Progress,
    lengths: Lengths,
    tree: BatchTree,
    layout: TreePlaces,
    kind: int,
    width: int,
) -> None:
    """Lay out a chain of lengths.levels drafts for each image, and fill in the draft distributions of new cells.

    Args:
        window: Buffers of the window.
        progress: Progress of the images.
        lengths: The lengths of the chains are lengths.levels.
        tree: Takes the chains.
        layout: Takes the depths and positions of their nodes.
        kind: EVENLY, LEFT, ABOVE or RANDOM. At the start of a row, LEFT copies the cell above; in the first row, ABOVE
            copies the cell to the left.
        width: Columns of the grid.
    """
    batch, most = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    launch(
        refill_kernel,
        (most, batch),
        8 * batch * (3 * most + 4) + 4 * batch * vocab_size,
        window,
        progress,
        lengths.levels,
        tree,
        layout,
        most,
        vocab_size,
        tree.tokens.shape[1],
        window.uniforms.shape[2],
        progress.decided.shape[1],
        width,
        1.0 / vocab_size,
        KIND=kind,
        LANES=next_power_of_2(max(2, most)),
        BLOCK=tile(vocab_size),
    )
