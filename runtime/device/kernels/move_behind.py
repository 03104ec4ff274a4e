"""Drafts that a Jacobi window holds behind the pass over a shorter one, or over another tree, move to their new places.

The reference is `algos.spatial.jacobi_window.HeldWindow.redraft` and `pass_over`: nobody has looked at these drafts, so
each keeps the distribution that it was drawn from.
"""

from torch import Tensor

from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import WindowBuffers, end_of_drafts
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


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
    )
