"""A Jacobi window moves on: the distributions of the drafts behind what was decided become those they were drawn from.

The reference is `algos.spatial.jacobi.HeldWindow.redraft`. A launch of its own, as `couple` still reads the rows
that this one writes. Drafts that a window holds behind the pass over a shorter one, or over another tree, move to their
new places with the distributions that they were drawn from: nobody has looked at these.
"""

from torch import Tensor

from underpaint.runtime.device.kernels.lookup_table import LookupBuffers
from underpaint.runtime.device.kernels.row_maths import copy_row, row_sum
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import WindowBuffers, end_of_drafts
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

_TILE = 512
"""Numbers of a row that one program moves, row after row: few, so that every multiprocessor has some."""


@kernel
def shift_kernel(
    held_counts,
    found,
    kept,
    seen,
    weights,
    nodes,
    probs,
    draft_probs,
    taken,
    levels,
    cells,
    W,
    V,
    N,
    most,
    LOOKED: tl.constexpr,
    BESIDE: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (new place, image)."""
    place, image = tl.program_id(0), tl.program_id(1)
    done, last = tl.load(taken + image), tl.load(levels + image)
    if done == 0:
        return
    end = end_of_drafts(done, last, tl.load(cells + image), most, LAST)
    if place == 0:
        behind = tl.maximum(tl.load(held_counts + image) - tl.maximum(done, end), 0)
        tl.debug_barrier()  # all threads have read it before one writes another
        tl.store(held_counts + image, tl.maximum(end - done, 0) + behind)
    if place + done >= end:
        return
    source = probs + (image * N + tl.load(nodes + image * (W + 1) + place + done)) * V
    out = draft_probs + (image * W + place).to(tl.int64) * V
    said = source
    note = tl.full((), 0, tl.int64)
    if LOOKED:
        note = tl.load(found + image * W + place)
        if note > 0:
            said = seen + (image.to(tl.int64) * W * W + note - 1) * V
    if (note < 0) & (BESIDE == 1):
        beside = kept + (image.to(tl.int64) * most - note - 1) * V
        weight = tl.load(weights)
        there_share, here_share = weight / row_sum(beside, V, BLOCK), (1.0 - weight) / row_sum(source, V, BLOCK)
        for start in range(0, V, BLOCK):
            code = start + tl.arange(0, BLOCK)
            there = tl.load(beside + code, code < V, other=0.0).to(tl.float64) * there_share
            here = tl.load(source + code, code < V, other=0.0).to(tl.float64) * here_share
            tl.store(out + code, there + here, code < V)
    else:
        copy_row(said, out, V, BLOCK)


def shift(
    window: WindowBuffers,
    tree: BatchTree,
    verdicts: Verdicts,
    levels: Tensor,
    cells: Tensor,
    most: int,
    last_row: bool = False,
    looked: LookupBuffers | None = None,
) -> None:
    """Fill the window's counts and the first rows of tree.draft_probs, for trees of `levels` [B] int64 drafts.

    Drafts that were held behind such a tree count too; `move_behind`, launched before this, moves them.
    cells, most, last_row: see `couple`. looked: what `look_up` has found, which takes the place of the pass's.
    """
    batch, drafts = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    table = (
        (window.tokens, *(tree.probs,) * 3)
        if looked is None
        else (looked.found, looked.decided, looked.seen, looked.weight)
    )
    launch(
        shift_kernel,
        (drafts, batch),
        (4 + tree.draft_probs.element_size()) * batch * drafts * vocab_size,
        window.counts,
        *table,
        window.nodes,
        tree.probs,
        tree.draft_probs,
        verdicts.taken,
        levels,
        cells,
        drafts,
        vocab_size,
        tree.tokens.shape[1],
        most,
        LOOKED=int(looked is not None),
        BESIDE=int(looked is not None and looked.beside),
        LAST=int(last_row),
        BLOCK=tile(vocab_size, wide=looked is not None),
    )


@kernel
def move_behind_kernel(
    held,
    held_counts,
    draft_probs,
    taken,
    levels,
    cells,
    W,
    V,
    most,
    LAST: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (tile of the codes, image); the first one moves the tokens too."""
    turn, image = tl.program_id(0), tl.program_id(1)
    done, last = tl.load(taken + image), tl.load(levels + image)
    if done == 0:
        return
    first = tl.maximum(done, end_of_drafts(done, last, tl.load(cells + image), most, LAST))
    filled = tl.load(held_counts + image)
    if turn == 0:
        lane = tl.arange(0, LANES)
        moves = (lane >= first) & (lane < filled)
        token = tl.load(held + image * W + lane, moves, other=0)
        tl.debug_barrier()
        tl.store(held + image * W + lane - done, token, moves)
    code = turn * BLOCK + tl.arange(0, BLOCK)
    for place in range(first, filled):  # trips: W
        row = draft_probs + (image * W + place).to(tl.int64) * V
        tl.store(row - done * V + code, tl.load(row + code, code < V, other=0.0), code < V)


def move_behind(
    window: WindowBuffers,
    tree: BatchTree,
    verdicts: Verdicts,
    levels: Tensor,
    cells: Tensor,
    most: int,
    last_row: bool,
) -> None:
    """Move tokens and rows of tree.draft_probs; see `shift`, to be launched behind this."""
    batch, drafts = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    block = min(_TILE, tile(vocab_size))
    launch(
        move_behind_kernel,
        (-(-vocab_size // block), batch),
        2 * tree.draft_probs.element_size() * batch * drafts * vocab_size,
        window.tokens,
        window.counts,
        tree.draft_probs,
        verdicts.taken,
        levels,
        cells,
        drafts,
        vocab_size,
        most,
        LAST=int(last_row),
        LANES=next_power_of_2(max(2, drafts)),
        BLOCK=block,
        warps=max(1, min(4, block // 32)),  # each lane in one thread: rows move in place
    )
