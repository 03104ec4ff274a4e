"""Drafts behind what a pass decided, from their new distributions: anew, coupled to what stood there, or raced.

The reference is `algos.spatial.jacobi_window.HeldWindow.redraft`.
"""

from torch import Tensor

from underpaint.runtime.device.kernels.row_maths import draw, flip, row_sum
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import WindowBuffers, end_of_drafts
from underpaint.runtime.device.language import kernel, launch, tl

INDEPENDENT = tl.constexpr(0)
MAXIMAL = tl.constexpr(1)
GUMBEL = tl.constexpr(2)
CONFIDENCE = tl.constexpr(3)
"""How a draft is made from its new distribution; see `algos.spatial.jacobi_window.Coupling`."""


@kernel
def race(row, total, noise, V, BLOCK: tl.constexpr):
    """The first place (int64) with the least noise / weight, as `algos.coupling.SampledNoise.race`."""
    best = tl.full((), float("inf"), tl.float64)
    found = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        weights = tl.load(row + place, place < V, other=0.0).to(tl.float64) / total
        runs = weights > 0.0
        times = tl.load(noise + place, place < V, other=0.0) / tl.where(runs, weights, 1.0)
        times = tl.where(runs, times, float("inf"))
        here = tl.min(times, axis=0)
        first = tl.min(tl.where(times == here, place.to(tl.int64), V), axis=0)
        found = tl.where(here < best, first, found)
        best = tl.minimum(best, here)
    return found


@kernel
def coupled(row, stale, held, own, rest, U, V, BLOCK: tl.constexpr):
    """A draft (int64) from the weights `row` that is `held`, drawn from the weights `stale`, as often as can be."""
    token = held
    total = row_sum(row, V, BLOCK)
    offered = row_sum(stale, V, BLOCK)
    now = tl.load(row + held).to(tl.float64) / total
    before = tl.load(stale + held).to(tl.float64) / offered
    if flip(tl.load(own + U), now, before) == 0:
        scale, offer = 1.0 / total, 1.0 / offered
        excess_mass = tl.full((), 0.0, tl.float64)
        for start in range(0, V, BLOCK):
            code = start + tl.arange(0, BLOCK)
            now_here = tl.load(row + code, code < V, other=0.0).to(tl.float64) * scale
            before_here = tl.load(stale + code, code < V, other=0.0).to(tl.float64) * offer
            here = tl.maximum(now_here - before_here, 0.0)
            tl.store(rest + code, here, code < V)
            excess_mass += tl.sum(here, axis=0)
        tl.debug_barrier()
        if excess_mass > 0.0:  # else only rounding tells the distributions apart
            token = draw(rest, V, tl.load(own), BLOCK)
    return token


@kernel
def is_confident(row, stale, held, confidence, V, BLOCK: tl.constexpr):
    """Whether the probability of `held` in the weights `row` is above `confidence` times that in `stale`."""
    now = tl.load(row + held).to(tl.float64) / row_sum(row, V, BLOCK)
    before = tl.load(stale + held).to(tl.float64) / row_sum(stale, V, BLOCK)
    return now > tl.load(confidence) * before


@kernel
def redrawn(row, stale, held, is_held, own, noise, rest, confidence, U, V, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """A draft (int64) from the weights `row`.

    held: the token that stood there, drawn from the weights `stale`; is_held: whether one did. own: the cell's
    uniforms, U apart by role; rest [V] float64: scratch; confidence: see `WindowBuffers`.
    """
    token = held
    stays = False
    if KIND == CONFIDENCE:
        stays = is_held
        if is_held:  # `stale` lies behind the last row where a window is drafted one cell further
            stays = is_confident(row, stale, held, confidence, V, BLOCK)
    if KIND == GUMBEL:
        token = race(row, row_sum(row, V, BLOCK), noise, V, BLOCK)
    elif is_held & (KIND == MAXIMAL):
        token = coupled(row, stale, held, own, rest, U, V, BLOCK)
    elif stays == 0:
        token = draw(row, V, tl.load(own), BLOCK)
    return token


@kernel
def couple_kernel(
    window,
    tree,
    taken,
    levels,
    cells,
    W,
    V,
    N,
    U,
    raced,
    most,
    KIND: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a (draft, image). The draft at `place` moves to the front by what was decided."""
    place, image = tl.program_id(0), tl.program_id(1)
    done, last = tl.load(taken + image), tl.load(levels + image)
    end = end_of_drafts(done, last, tl.load(cells + image), most, LAST)
    if (done == 0) | (place < done) | (place >= end):
        return
    row = tree.probs + (image * N + tl.load(window.nodes + image * (W + 1) + place)) * V
    stale = tree.draft_probs + (image * W + place).to(tl.int64) * V
    cell = tl.load(cells + image) - done + place
    behind = tl.load(
        window.tokens + image * W + place, (place >= last) & (place < tl.load(window.counts + image)), other=0
    )
    stood = tl.load(tree.tokens + image * N + 1 + place, place < last, other=behind)
    is_held = (place < last) | (place < tl.load(window.counts + image))
    own = window.uniforms + image * 3 * U + place
    rest = window.left + (image * W + place).to(tl.int64) * V
    noise = window.noise + (image * raced + cell) * V
    token = redrawn(row, stale, stood, is_held, own, noise, rest, window.confidence, U, V, KIND, BLOCK)
    tl.store(window.tokens + image * W + place - done, token)


def couple(
    window: WindowBuffers,
    tree: BatchTree,
    verdicts: Verdicts,
    levels: Tensor,
    cells: Tensor,
    kind: int,
    most: int,
    last_row: bool = False,
) -> None:
    """Fill the window's tokens behind what the verdicts took of trees of `levels` [B] int64 drafts.

    cells [B] int64: decided since, so a draft's cell is as far behind as its place; most: of the picture. kind:
    INDEPENDENT, MAXIMAL, GUMBEL or CONFIDENCE. last_row: the first cell behind the window is drafted too. Draft k has
    its new distribution in row window.nodes[k] of tree.probs, the one that it was drawn from in row k of
    tree.draft_probs.
    """
    batch, drafts = window.tokens.shape
    vocab_size = tree.probs.shape[2]
    launch(
        couple_kernel,
        (drafts + last_row, batch),
        batch * drafts * vocab_size * (4 + 4 * (kind == MAXIMAL.value) + 8 * (kind == GUMBEL.value)),
        window,
        tree,
        verdicts.taken,
        levels,
        cells,
        drafts,
        vocab_size,
        tree.tokens.shape[1],
        window.uniforms.shape[2],
        window.noise.shape[1],
        most,
        KIND=kind,
        LAST=int(last_row),
        BLOCK=tile(vocab_size, wide=kind == GUMBEL.value),  # noise is of float64 numbers
        warps=8,
    )
