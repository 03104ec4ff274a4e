"""A Jacobi window moves on: the distributions of the drafts behind what was decided become those they were drawn from.

The reference is `algos.spatial.jacobi_window.HeldWindow.redraft`. A launch of its own, as `couple` still reads the rows
that this one writes. Drafts that a window holds behind the pass over a shorter one, or over another tree, move to their
new places with the distributions that they were drawn from: nobody has looked at these.
"""

from torch import Tensor

from underpaint.runtime.device.kernels.lookup_table import LookupBuffers
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import WindowBuffers, end_of_drafts
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


@kernel
def shift_kernel(
    held_counts,
    found,
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
    stays = tl.full((), 0, tl.int64)
    if LOOKED:
        stays += tl.load(found + image * W + place)
    if (place + done >= end) | (stays > 0):
        return
    source = probs + (image * N + tl.load(nodes + image * (W + 1) + place + done)) * V
    row = draft_probs + (image * W + place).to(tl.int64) * V
    for start in range(0, V, BLOCK):
        code = start + tl.arange(0, BLOCK)
        tl.store(row + code, tl.load(source + code, code < V, other=0.0), code < V)


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
    cells, most, last_row: see `couple`. looked: what `look_up` has found and put there is left alone.
    """
    batch, drafts = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    launch(
        shift_kernel,
        (drafts, batch),
        (4 + tree.draft_probs.element_size()) * batch * drafts * vocab_size,
        window.counts,
        window.tokens if looked is None else looked.found,
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
        LAST=int(last_row),
        BLOCK=tile(vocab_size),
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
    block = tile(vocab_size)
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
