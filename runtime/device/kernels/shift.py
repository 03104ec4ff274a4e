"""Moves a Jacobi window forward: stores its drafts' new distributions as those that they were drawn from.

The reference is `algos.spatial.jacobi.WindowState.redraft`. This is a separate launch because `couple` still reads the
rows that it writes. After a pass over a shorter window or another tree, a window may hold drafts beyond that pass.
They move to their new places with the distributions that they were drawn from, because no rule has looked at them.
"""

from torch import Tensor

from underpaint.runtime.device.kernels.children import is_last
from underpaint.runtime.device.kernels.lookup_table import LookupBuffers
from underpaint.runtime.device.kernels.row_maths import copy_row, row_sum
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import WindowBuffers, end_of_drafts
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

_TILE = 512
"""Values of a row that one program moves, row after row; few, so that every multiprocessor gets some."""


@kernel
def shift_kernel(
    window,
    table,
    tree,
    taken,
    levels,
    cells,
    W,
    V,
    N,
    most,
    LOOKED: tl.constexpr,
    BESIDE: tl.constexpr,
    MOVES: tl.constexpr,
    LAST: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    MOVED: tl.constexpr,
) -> None:
    """One program per (new place, image); MOVES adds one per (tile of codes, image). An image's last moves tokens."""
    wait_for_earlier_kernels()
    place, image = tl.program_id(0), tl.program_id(1)
    done, last = tl.load(taken + image), tl.load(levels + image)
    end = end_of_drafts(done, last, tl.load(cells + image), most, LAST)
    filled = tl.load(window.counts + image)
    first = tl.maximum(done, end)
    rows = tree.draft_probs + (image * W).to(tl.int64) * V
    if (done > 0) & (place < W) & (place + done < end):
        source = tree.probs + (image * N + tl.load(window.nodes + image * (W + 1) + place + done)) * V
        out = rows + place.to(tl.int64) * V
        said = source
        note = tl.full((), 0, tl.int64)
        if LOOKED:
            note = tl.load(table.sources + image * W + place)
            if note > 0:
                said = table.seen + (image.to(tl.int64) * W * W + note - 1) * V
        if (BESIDE == 1) and (note < 0):
            beside = table.decided + (image.to(tl.int64) * most - note - 1) * V
            weight = tl.load(table.weight)
            there_share, here_share = weight / row_sum(beside, V, BLOCK), (1.0 - weight) / row_sum(source, V, BLOCK)
            for start in range(0, V, BLOCK):
                code = start + tl.arange(0, BLOCK)
                there = tl.load(beside + code, code < V, other=0.0).to(tl.float64) * there_share
                here = tl.load(source + code, code < V, other=0.0).to(tl.float64) * here_share
                tl.store(out + code, there + here, code < V)
        else:
            copy_row(said, out, V, BLOCK)
    if (MOVES == 1) & (done > 0) & (place >= W):
        code = (place - W) * MOVED + tl.arange(0, MOVED)
        row = rows + first * V
        for _ in range(first, filled):  # trips: W
            tl.store(row - done * V + code, tl.load(row + code, code < V, other=0.0), code < V)
            row += V
    if is_last(window.arrivals + image, tl.num_programs(0)) & (done > 0):
        if MOVES:
            lane = tl.arange(0, LANES)
            moves = (lane >= first) & (lane < filled)
            token = tl.load(window.tokens + image * W + lane, moves, other=0)
            tl.debug_barrier()
            tl.store(window.tokens + image * W + lane - done, token, moves)
        tl.store(window.counts + image, tl.maximum(end - done, 0) + tl.maximum(filled - first, 0))


def shift(
    window: WindowBuffers,
    tree: BatchTree,
    verdicts: Verdicts,
    levels: Tensor,
    cells: Tensor,
    most: int,
    last_row: bool = False,
    looked: LookupBuffers | None = None,
    moves: bool = False,
) -> None:
    """Fill the window's counts and the first rows of tree.draft_probs, after trees of `levels` drafts.

    Args:
        window: Buffers of the window.
        tree: The trees of the pass.
        verdicts: The verdicts on them.
        levels: Drafts of each tree, [B] int64.
        cells, most, last_row: See `couple`.
        looked: Distributions found by `look_up`, used instead of the pass's or mixed with them; None for none.
        moves: Whether the window may hold drafts beyond such a tree; they move forward with their rows of draft_probs.
    """
    batch, drafts = window.tokens.shape
    vocab_size, size = tree.probs.shape[2], tree.draft_probs.element_size()
    moved = min(_TILE, tile(vocab_size))
    launch(
        shift_kernel,
        (drafts + moves * -(-vocab_size // moved), batch),
        (size + (size if moves else 4)) * batch * drafts * vocab_size,  # a row is filled or moves
        window,
        looked or window,  # without `looked`, the kernel reads no table
        tree,
        verdicts.taken,
        levels,
        cells,
        drafts,
        vocab_size,
        tree.tokens.shape[1],
        most,
        LOOKED=int(looked is not None),
        BESIDE=int(looked is not None and looked.beside),
        MOVES=int(moves),
        LAST=int(last_row),
        LANES=next_power_of_2(max(2, drafts)),
        BLOCK=tile(vocab_size, wide=looked is not None),
        MOVED=moved,
        warps=max(1, min(4, moved // 32)),  # one thread per lane, because rows move in place
    )
