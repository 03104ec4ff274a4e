"""A Jacobi window moves on: the distributions of the drafts behind what was decided become those they were drawn from.

The reference is `algos.spatial.jacobi_window.HeldWindow.redraft`. A launch of its own, as `couple` still reads the rows
that this one writes.
"""

from torch import Tensor

from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import WindowBuffers
from underpaint.runtime.device.language import kernel, launch, tl


@kernel
def shift_kernel(held_counts, probs, draft_probs, taken, levels, W, V, N, BLOCK: tl.constexpr) -> None:
    """One program a (new place, image)."""
    place, image = tl.program_id(0), tl.program_id(1)
    done, last = tl.load(taken + image), tl.load(levels + image)
    if done == 0:
        return
    if place == 0:
        tl.store(held_counts + image, tl.maximum(last - done, 0))
    if place + done >= last:
        return
    source = probs + (image * N + place + done) * V
    row = draft_probs + (image * W + place).to(tl.int64) * V
    for start in range(0, V, BLOCK):
        code = start + tl.arange(0, BLOCK)
        tl.store(row + code, tl.load(source + code, code < V, other=0.0), code < V)


def shift(window: WindowBuffers, tree: BatchTree, verdicts: Verdicts, levels: Tensor) -> None:
    """Fill the window's counts and the first rows of tree.draft_probs, for trees of `levels` [B] int64 drafts."""
    batch, most = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    launch(
        shift_kernel,
        (most, batch),
        2 * 4 * batch * most * vocab_size,
        window.counts,
        tree.probs,
        tree.draft_probs,
        verdicts.taken,
        levels,
        most,
        vocab_size,
        tree.tokens.shape[1],
        BLOCK=tile(vocab_size),
    )
