"""A Jacobi window as a tree: candidates beside its first drafts, and what the drafts behind an accepted path follow.

The reference is `algos.spatial.window_drafts`.
"""

from torch import Tensor

from underpaint.runtime.device.kernels.row_maths import draw, hide, restore
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def add_candidates_kernel(
    levels,
    uniforms,
    tokens,
    parents,
    draft_rows,
    counts,
    draft_probs,
    W,
    V,
    N,
    deepest,
    CANDIDATES: tl.constexpr,
    CHILDREN: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image. Place 0 of a level is the chain's node, which stands among the chain's."""
    image = tl.program_id(0)
    count = tl.load(levels + image)
    tree = image * N
    lane = tl.arange(0, NODES)
    tl.store(parents + tree + lane, lane - 1, lane <= count)
    tl.store(draft_rows + tree + lane, tl.where(lane < count, lane, -1), lane <= count)
    turns = tl.arange(0, CHILDREN)
    branching = tl.minimum(deepest, count)
    width = tl.full((), 1, tl.int64)
    first = tl.full((), 1, tl.int64)
    size = count + 1
    for level in range(0, branching):  # trips: deepest
        row = draft_probs + (image * W + level).to(tl.int64) * V
        offered = tl.where(turns == 0, tl.load(tokens + tree + 1 + level), -1)
        proposed = tl.full((), 1, tl.int32)
        going = tl.full((), 1, tl.int32)
        for turn in range(1, CANDIDATES):
            if going == 1:
                own = uniforms + (image * deepest + level) * CANDIDATES + turn
                weights = hide(row, offered, offered >= 0)
                found = draw(row, V, tl.load(own), BLOCK)
                restore(row, offered, weights, offered >= 0)
                if found < V:
                    offered = tl.where(turns == turn, found, offered)
                    proposed += 1
                else:
                    going = tl.full((), 0, tl.int32)
        above = lane // proposed
        rank = lane % proposed
        token = tl.sum(tl.where(rank[:, None] == turns[None, :], offered[None, :], 0), axis=1)
        node = tree + size + lane - 1
        goes = (lane > 0) & (lane < width * proposed)
        tl.store(tokens + node, token, goes)
        tl.store(parents + node, tl.where(above == 0, level, first + above - 1), goes)
        tl.store(draft_rows + node, tl.where(level + 1 < branching, level + 1, -1), goes)
        first = size
        width = width * proposed
        size += width - 1
    tl.store(counts + image, size)


def add_candidates(tree: BatchTree, levels: Tensor, uniforms: Tensor) -> None:
    """Make trees of chains of `levels` [B] int64 drafts: tokens, parents, draft_rows and counts.

    uniforms [B, D, K] float64: of the first D cells, by candidate; the first of K candidates is the draft itself.
    """
    batch, nodes, vocab_size = tree.probs.shape
    _, deepest, candidates = uniforms.shape
    launch(
        add_candidates_kernel,
        (batch,),
        batch * (deepest * candidates * vocab_size * tree.draft_probs.element_size() + 24 * nodes),
        levels,
        uniforms,
        tree.tokens,
        tree.parents,
        tree.draft_rows,
        tree.counts,
        tree.draft_probs,
        tree.draft_probs.shape[1],
        vocab_size,
        nodes,
        deepest,
        CANDIDATES=candidates,
        CHILDREN=next_power_of_2(max(2, candidates)),
        NODES=next_power_of_2(max(2, nodes)),
        BLOCK=tile(vocab_size, wide=True),
        warps=8,
    )


@kernel
def follow_kernel(nodes, first, path, taken, levels, W, N) -> None:
    """One program an image."""
    image = tl.program_id(0)
    done, last = tl.load(taken + image), tl.load(levels + image)
    if done == 0:
        return
    line = nodes + image * W
    node = tl.full((), 0, tl.int64)
    tl.store(line, node)
    for place in range(1, done):  # trips: W
        node = tl.load(path + image * N + place - 1)
        tl.store(line + place, node)
    for place in range(done, last):  # trips: W
        below = tl.load(first + image * N + node)
        node = tl.where(below < 0, place, below)
        tl.store(line + place, node)
    if done <= last:
        tl.store(line + last, last)


def follow(nodes: Tensor, tree: BatchTree, verdicts: Verdicts, levels: Tensor) -> None:
    """Fill nodes [B, W + 1] int64 with the nodes in whose contexts the target said something of each of W + 1 cells.

    Those of accepted tokens; behind them the first proposals below the last accepted node, and where the tree ends
    there, the held chain's. levels [B] int64: drafts of the chain.
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
        warps=1,
    )
