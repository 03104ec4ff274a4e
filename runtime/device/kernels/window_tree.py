"""Adds candidates to Jacobi windows, and finds the nodes that later drafts follow; as `algos.spatial.jacobi_window`."""

from torch import Tensor

from underpaint.runtime.device.kernels.children import is_last
from underpaint.runtime.device.kernels.row_maths import draw_several, hide, restore, row_parts
from underpaint.runtime.device.kernels.tree_meta import TreePlaces, lay_out_tree
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels


@kernel
def add_candidates_kernel(
    levels,
    uniforms,
    proposals,
    arrivals,
    tree,
    layout,
    W,
    V,
    N,
    most,
    deepest,
    CANDIDATES: tl.constexpr,
    CHILDREN: tl.constexpr,
    LEVELS: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (cell, image) draws a cell's candidates after its draft; an image's last lays out the tree.

    Place 0 of a level is the chain's own node, which is not added again.
    """
    wait_for_earlier_kernels()
    cell, image = tl.program_id(0), tl.program_id(1)
    count = tl.load(levels + image)
    base = image * N
    turns = tl.arange(0, CHILDREN)
    branching = tl.minimum(deepest, count)
    if cell < branching:
        row = tree.draft_probs + (image * W + cell).to(tl.int64) * V
        draft = tl.where(turns == 0, tl.load(tree.tokens + base + 1 + cell), -1)
        weights = hide(row, draft, draft >= 0)
        own = uniforms + (image * deepest + cell) * CANDIDATES + 1
        others = draw_several(row, V, own, CANDIDATES - 1, row_parts(row, V, BLOCK), CHILDREN, 0, BLOCK)
        restore(row, draft, weights, draft >= 0)
        places = proposals + (image * deepest + cell) * CANDIDATES
        tl.store(places + turns, draft, turns == 0)
        tl.store(places + 1 + turns, others, turns < CANDIDATES - 1)
    if is_last(arrivals + image, tl.num_programs(0)) == 0:
        return
    lane = tl.arange(0, NODES)
    tl.store(tree.parents + base + lane, lane - 1, lane <= count)
    tl.store(tree.draft_rows + base + lane, tl.where(lane < count, lane, -1), lane <= count)
    width = tl.full((), 1, tl.int64)
    first = tl.full((), 1, tl.int64)
    size = count + 1
    for level in range(0, branching):  # trips: deepest
        places = proposals + (image * deepest + level) * CANDIDATES
        offered = tl.load(places + turns, turns < CANDIDATES, other=V, cache_modifier=".cg")
        proposed = tl.sum((offered < V).to(tl.int32), axis=0)
        above = lane // proposed
        rank = lane % proposed
        token = tl.sum(tl.where(rank[:, None] == turns[None, :], offered[None, :], 0), axis=1)
        node = base + size + lane - 1
        goes = (lane > 0) & (lane < width * proposed)
        tl.store(tree.tokens + node, token, goes)
        tl.store(tree.parents + node, tl.where(above == 0, level, first + above - 1), goes)
        tl.store(tree.draft_rows + node, tl.where(level + 1 < branching, level + 1, -1), goes)
        first = size
        width = width * proposed
        size += width - 1
    tl.store(tree.counts + image, size)
    tl.debug_barrier()
    lay_out_tree(tree, layout, image, N, most, LEVELS, NODES)


def add_candidates(
    tree: BatchTree,
    layout: TreePlaces,
    levels: Tensor,
    uniforms: Tensor,
    proposals: Tensor,
    arrivals: Tensor,
    most: int,
) -> None:
    """Extend chains of `levels` [B] int64 drafts to trees, and lay them out as `tree_meta` does.

    uniforms [B, D, K] float64: of the first D cells, by candidate; the first of K candidates is the draft itself.
    proposals [B, D, K] int64: overwritten. arrivals [B] int32: 0 before and after the launch.
    """
    batch, nodes, vocab_size = tree.probs.shape
    _, deepest, candidates = uniforms.shape
    launch(
        add_candidates_kernel,
        (deepest, batch),
        batch * (deepest * vocab_size * tree.draft_probs.element_size() + 24 * nodes),
        levels,
        uniforms,
        proposals,
        arrivals,
        tree,
        layout,
        tree.draft_probs.shape[1],
        vocab_size,
        nodes,
        most,
        deepest,
        CANDIDATES=candidates,
        CHILDREN=next_power_of_2(max(2, candidates)),
        LEVELS=tree.draft_probs.shape[1],
        NODES=next_power_of_2(max(2, nodes)),
        BLOCK=tile(vocab_size, wide=True),
        warps=8,
        trips={"MOST": candidates - 1},
    )


@kernel
def follow_kernel(nodes, first, path, taken, levels, W, N, LANES: tl.constexpr) -> None:
    """One program per image."""
    wait_for_earlier_kernels()
    image = tl.program_id(0)
    done, last = tl.load(taken + image), tl.load(levels + image)
    if done == 0:
        return
    line = nodes + image * W
    lane = tl.arange(0, LANES)
    accepted = tl.load(path + image * N + lane - 1, (lane > 0) & (lane < done), other=0)
    tl.store(line + lane, accepted, lane < done)
    node = tl.load(path + image * N + done - 2, done > 1, other=0)
    for place in range(done, last):  # trips: W
        below = tl.load(first + image * N + node)
        node = tl.where(below < 0, place, below)
        tl.store(line + place, node)
    if done <= last:
        tl.store(line + last, last)


def follow(nodes: Tensor, tree: BatchTree, verdicts: Verdicts, levels: Tensor) -> None:
    """Fill nodes [B, W + 1] int64: for each of W + 1 cells, the node whose target row is the cell's new distribution.

    These are the root and the accepted nodes, then the first proposals below the last accepted node, and where the
    tree ends there, the nodes of the held chain. levels [B] int64: drafts of the chain.
    """
    batch, width = nodes.shape
    launch(
        follow_kernel,
        (batch,),
        8 * batch * 3 * width,
        nodes,
        tree.first,
        verdicts.path,
        verdicts.taken,
        levels,
        width,
        tree.tokens.shape[1],
        LANES=next_power_of_2(max(2, width)),
        warps=1,
    )
