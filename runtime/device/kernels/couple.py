"""New drafts behind the cells that a pass decided: drawn independently, coupled to the old drafts, or raced.

The reference is `algos.spatial.jacobi.WindowState.redraft`.
"""

from torch import Tensor

from underpaint.runtime.device.kernels.row_maths import PARTS, flip, goal_of, part_at, row_sum, scale_for
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts, tile
from underpaint.runtime.device.kernels.window import WindowBuffers, end_of_drafts
from underpaint.runtime.device.launch import kernel, launch, tl, wait_for_earlier_kernels

INDEPENDENT = tl.constexpr(0)
MAXIMAL = tl.constexpr(1)
GUMBEL = tl.constexpr(2)
CONFIDENCE = tl.constexpr(3)
"""How a draft is made from its new distribution; see `algos.spatial.jacobi_window.Coupling`."""


@kernel
def mixed_at(probs, total, row, row_total, weight, place, there, MIXED: tl.constexpr):
    """Return the probabilities (float64) of the tokens at `place`, 0 where not `there`: probs / total.

    MIXED: weight * probs / total + (1 - weight) * row / row_total. The totals are the sums of both rows.
    """
    here = tl.load(probs + place, there, other=0.0).to(tl.float64) / total
    if MIXED:
        beside = tl.load(row + place, there, other=0.0).to(tl.float64) / row_total
        here = weight * here + (1.0 - weight) * beside
    return here


@kernel
def race(probs, total, row, row_total, weight, noise, V, MIXED: tl.constexpr, BLOCK: tl.constexpr):
    """Return the first token (int64) with the least noise / weight, as `algos.coupling.SampledNoise.race`."""
    best = tl.full((), float("inf"), tl.float64)
    token = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        place = start + tl.arange(0, BLOCK)
        weights = mixed_at(probs, total, row, row_total, weight, place, place < V, MIXED)
        runs = weights > 0.0
        times = tl.load(noise + place, place < V, other=0.0) / tl.where(runs, weights, 1.0)
        times = tl.where(runs, times, float("inf"))
        here = tl.min(times, axis=0)
        first = tl.min(tl.where(times == here, place.to(tl.int64), V), axis=0)
        token = tl.where(here < best, first, token)
        best = tl.minimum(best, here)
    return token


@kernel
def lacking_at(probs, share, row, row_share, stale, offer, start, V, MIXED: tl.constexpr, BLOCK: tl.constexpr):
    """Return [share * probs + row_share * row - offer * stale]_+ [BLOCK] float64 for tokens from `start` on; 0 past V.

    `row` is read only if MIXED and row_share > 0, `stale` only if offer > 0.
    """
    place = start + tl.arange(0, BLOCK)
    now_here = tl.load(probs + place, place < V, other=0.0).to(tl.float64) * share
    if MIXED:
        beside = tl.load(row + place, place < tl.where(row_share > 0.0, V, 0), other=0.0)
        now_here += beside.to(tl.float64) * row_share
    before_here = tl.load(stale + place, place < tl.where(offer > 0.0, V, 0), other=0.0).to(tl.float64) * offer
    lacking = now_here - before_here
    return tl.where(lacking > 0.0, lacking, 0.0)


@kernel
def draw_lacking(
    probs, share, row, row_share, stale, offer, V, uniform, MIXED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return the token (int64) that `uniform` falls on in the cumulative sum of `lacking_at`; V if all of it is 0.

    Works as `row_maths.draw`, but each part is a whole tile.
    """
    most = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, V, BLOCK):
        here = lacking_at(probs, share, row, row_share, stale, offer, start, V, MIXED, BLOCK)
        most = tl.where(here > most, here, most)
    scale = scale_for(tl.max(most, axis=0))
    lane = tl.arange(0, PARTS)
    sums = tl.zeros((PARTS,), tl.int64)
    for turn in range(0, tl.cdiv(V, BLOCK)):  # trips: V / BLOCK
        here = lacking_at(probs, share, row, row_share, stale, offer, turn * BLOCK, V, MIXED, BLOCK)
        sums = tl.where(lane == turn, tl.sum((here * scale).to(tl.int64), axis=0), sums)
    total = tl.sum(sums, axis=0)
    goal = goal_of(total, uniform)
    part, before = part_at(sums, goal)
    here = lacking_at(probs, share, row, row_share, stale, offer, part * BLOCK, V, MIXED, BLOCK)
    below = before + tl.cumsum((here * scale).to(tl.int64), axis=0) <= goal
    return tl.where(total > 0, part * BLOCK + tl.sum(below.to(tl.int32), axis=0), V).to(tl.int64)


@kernel
def is_confident(now, stale, draft, confidence, V, BLOCK: tl.constexpr):
    """Return whether `now`, the probability of `draft`, is above `confidence` times that under the weights `stale`."""
    before = tl.load(stale + draft).to(tl.float64) / row_sum(stale, V, BLOCK)
    return now > tl.load(confidence) * before


@kernel
def redrawn(
    probs, total, row, row_total, weight, stale, draft, is_held, uniforms, noise, confidence, U, V,
    KIND: tl.constexpr, MIXED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return a draft (int64) from a distribution as in `mixed_at`.

    draft: the old one, drawn from the weights `stale`, if is_held. uniforms: the cell's uniforms, U apart by role.
    confidence: see `WindowBuffers`. With MAXIMAL, it stays `draft` as often as possible.
    """
    token = draft
    stays = False
    offer = tl.full((), 0.0, tl.float64)
    if KIND == GUMBEL:
        token = race(probs, total, row, row_total, weight, noise, V, MIXED, BLOCK)
    else:
        if KIND != INDEPENDENT:
            stays = is_held
            if is_held:  # otherwise `stale` may lie past the last row, for the first cell behind a window
                now = mixed_at(probs, total, row, row_total, weight, draft, is_held, MIXED)
                if KIND == CONFIDENCE:
                    stays = is_confident(now, stale, draft, confidence, V, BLOCK)
                else:
                    offered = row_sum(stale, V, BLOCK)
                    offer = 1.0 / offered
                    stays = flip(tl.load(uniforms + U), now, tl.load(stale + draft).to(tl.float64) / offered)
        if stays == 0:
            share, row_share = weight / total, (1.0 - weight) / row_total
            drawn = draw_lacking(probs, share, row, row_share, stale, offer, V, tl.load(uniforms), MIXED, BLOCK)
            # If nothing is lacking, the distributions differ only by rounding.
            token = tl.where((drawn < V) | (is_held == 0), drawn, draft)
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
    """One program per (draft, image). The draft at `place` moves forward by the number of decided cells."""
    wait_for_earlier_kernels()
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
    noise = window.noise + (image * raced + cell) * V
    one = tl.full((), 1.0, tl.float64)
    total = one
    if KIND != INDEPENDENT:
        total = row_sum(row, V, BLOCK)
    token = redrawn(
        row, total, row, one, one, stale, stood, is_held, own, noise, window.confidence, U, V, KIND, False, BLOCK
    )
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
    """Fill window.tokens with new drafts for the cells behind those that the verdicts decided.

    Draft k's new distribution is row window.nodes[k] of tree.probs, and the one that it was drawn from is row k of
    tree.draft_probs.

    Args:
        window: Buffers of the window.
        tree: The trees of the pass.
        verdicts: The verdicts on them.
        levels: Drafts of each tree, [B] int64.
        cells: Decided cells after the verdict, [B] int64, so draft k is for cell cells - taken + k.
        kind: INDEPENDENT, MAXIMAL, GUMBEL or CONFIDENCE.
        most: Cells of the picture.
        last_row: Whether to draft the first cell behind the window too.
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
        BLOCK=tile(vocab_size, wide=True),
        warps=8,
    )
