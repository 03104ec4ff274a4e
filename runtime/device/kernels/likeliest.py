"""In place of every distribution, its likeliest token: what a rule reads that decides by these."""

from torch import Tensor

from underpaint.runtime.device.kernels.row_maths import one_hot, row_argmax
from underpaint.runtime.device.kernels.walk import tile
from underpaint.runtime.device.language import kernel, launch, tl


@kernel
def likeliest_kernel(probs, out, counts, V, N, BLOCK: tl.constexpr) -> None:
    """One program a (node, image)."""
    node, image = tl.program_id(0), tl.program_id(1)
    if node >= tl.load(counts + image):
        return
    row = (image * N + node).to(tl.int64) * V
    _, token = row_argmax(probs + row, V, BLOCK)
    one_hot(token, out + row, V, BLOCK)


def likeliest(probs: Tensor, out: Tensor, counts: Tensor) -> None:
    """Fill out [B, N, V] float32 from probs of its size: 1 at the likeliest token (ties: the lower).

    counts [B] int64: rows of an image."""
    batch, nodes, vocab_size = probs.shape
    launch(
        likeliest_kernel,
        (nodes, batch),
        2 * 4 * probs.numel(),
        probs,
        out,
        counts,
        vocab_size,
        nodes,
        BLOCK=tile(vocab_size),
    )
