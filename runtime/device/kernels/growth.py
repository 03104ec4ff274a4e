"""Grow a tree of the drafter's likeliest tokens level by level, and taking the best of all.

The meaning is `algos.draft.tree_builder`. Candidates are numbered level by level, W * C places a level whether they
are used or not: the order of those that are is the reference's, and so are its ties. A candidate that does not exist
has the score 0 and is never taken.
"""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


class ExpandedRows(NamedTuple):
    """What each level expands, [L, B, W]; level 0 expands the root alone, in row 0.

    tokens, candidates (their numbers), slots (where the drafter holds their parents, from 1 on; 0: the root): int64.
    scores: float64, 0 where a row expands nothing. masks [L, B, W, words] int64: the slots that a row sees, its own
    among them; level l's rows lie in the slots from (l - 1) * W on.
    """

    tokens: Tensor
    candidates: Tensor
    slots: Tensor
    scores: Tensor
    masks: Tensor


class Candidates(NamedTuple):
    """All candidates, [B, M] with M = L * W * C: tokens, parents (numbers; -1: the root) int64; scores float64."""

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    taken: Tensor
    places: Tensor


@kernel
def grow_level_kernel(
    tops,
    widths,
    levels,
    front_tokens,
    front_candidates,
    front_slots,
    front_scores,
    front_masks,
    tokens,
    parents,
    scores,
    level,
    L,
    batch,
    rows,
    held,
    W: tl.constexpr,
    C: tl.constexpr,
    WORDS: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HELD: tl.constexpr,
) -> None:
    """One program an image: its level's candidates, and what the next level expands."""
    image = tl.program_id(0)
    width = tl.load(widths + image)
    grows = level < tl.load(levels + image)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    lane = tl.arange(0, HELD)
    packed = tl.load(
        tops + (image * rows + row[:, None]) * held + lane[None, :],
        (row[:, None] < rows) & (lane[None, :] < held),
        other=-1,
    )
    best = tl.full((ROWS, COLUMNS), -1, tl.int64)
    for turn in range(C):
        top = tl.max(packed, axis=1)
        best = tl.where(column[None, :] == turn, top[:, None], best)
        packed = tl.where(packed == top[:, None], -1, packed)
    front = (level * batch + image) * W
    above = tl.load(front_scores + front + row, row < rows, other=0.0)
    number = tl.load(front_candidates + front + row, row < rows, other=-1)
    probs = tl.minimum((best >> 32).to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64), 1.0)
    token = 0x7FFFFFFF - (best & 0x7FFFFFFF)
    there = (best >= 0) & (column[None, :] < width) & (column[None, :] < C) & (row[:, None] < width) & grows
    found = tl.where(there, above[:, None] * probs, 0.0)
    place = row[:, None] * C + column[None, :]
    inside = (row[:, None] < W) & (column[None, :] < C)
    base = (image * L + level) * W * C
    tl.store(tokens + base + place, tl.where(there, token, 0), inside)
    tl.store(scores + base + place, found, inside)
    tl.store(parents + base + place, number[:, None] + tl.zeros_like(place), inside)
    if LAST == 0:
        following = front + batch * W
        for turn in range(W):
            most = tl.max(tl.max(found, axis=1), axis=0)
            at = tl.min(tl.min(tl.where(found == most, place, W * C), axis=1), axis=0)
            goes = (most > 0.0) & (turn < width)
            parent = tl.where(goes, at // C, 0)
            chosen = tl.sum(tl.sum(tl.where(place == at, token, 0), axis=1), axis=0)
            tl.store(front_tokens + following + turn, tl.where(goes, chosen, 0))
            tl.store(front_scores + following + turn, tl.where(goes, most, 0.0))
            tl.store(front_candidates + following + turn, level * W * C + at.to(tl.int64))
            slot = tl.where(level > 0, (level - 1) * W + parent + 1, 0)
            tl.store(front_slots + following + turn, slot.to(tl.int64))
            own = level * W + turn
            for word in tl.static_range(WORDS):
                seen = tl.load(front_masks + (front + parent) * WORDS + word)
                bit = tl.where(own // 64 == word, tl.full((), 1, tl.int64) << (own % 64), 0)
                tl.store(front_masks + (following + turn) * WORDS + word, tl.where(level > 0, seen, 0) | bit)
            found = tl.where(place == at, -1.0, found)


def grow_level(
    tops: Tensor, widths: Tensor, levels: Tensor, front: ExpandedRows, found: Candidates, level: int
) -> None:
    """Make level `level` (from 0) of every image's tree from tops [B, rows, tiles, C] (see `tile_top`).

    widths, levels [B] int64: nodes expanded a level and children of each, and levels, of each image.
    """
    batch, rows, tiles, count = tops.shape
    depth, _, width = front.tokens.shape
    launch(
        grow_level_kernel,
        (batch,),
        8 * tops.numel() + 24 * batch * width * count,
        tops,
        widths,
        levels,
        front.tokens,
        front.candidates,
        front.slots,
        front.scores,
        front.masks,
        found.tokens,
        found.parents,
        found.scores,
        level,
        depth,
        batch,
        rows,
        tiles * count,
        W=width,
        C=count,
        WORDS=front.masks.shape[3],
        LAST=int(level + 1 == depth),
        ROWS=next_power_of_2(max(2, width)),
        COLUMNS=next_power_of_2(max(2, count)),
        HELD=next_power_of_2(max(2, tiles * count)),
    )


@kernel
def rank_kernel(scores, totals, taken, M, ROWS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """One program a (tile, image): whether fewer than `totals` candidates are better (ties: the one found first)."""
    tile, image = tl.program_id(0), tl.program_id(1)
    own = tile * ROWS + tl.arange(0, ROWS)
    score = tl.load(scores + image * M + own, own < M, other=0.0)
    ahead = tl.zeros((ROWS,), tl.int32)
    for start in range(0, M, BLOCK):
        other = start + tl.arange(0, BLOCK)
        theirs = tl.load(scores + image * M + other, other < M, other=-1.0)
        better = (theirs[None, :] > score[:, None]) | (
            (theirs[None, :] == score[:, None]) & (other[None, :] < own[:, None])
        )
        ahead += tl.sum(better.to(tl.int32), axis=1)
    chosen = (score > 0.0) & (ahead < tl.load(totals + image))
    tl.store(taken + image * M + own, chosen.to(tl.int64), own < M)


def mark_best(scores: Tensor, totals: Tensor, taken: Tensor) -> None:
    """Set taken [B, M] int64 to 1 at the totals [B] best of the scores [B, M] float64 above 0, else to 0."""
    batch, count = scores.shape
    rows = min(64, next_power_of_2(count))
    launch(
        rank_kernel,
        (-(-count // rows), batch),
        16 * scores.numel(),
        scores,
        totals,
        taken,
        count,
        ROWS=rows,
        BLOCK=min(128, next_power_of_2(count)),
        warps=8,
    )


@kernel
def assemble_kernel(
    found_tokens,
    found_parents,
    taken,
    places,
    roots,
    tokens,
    parents,
    counts,
    M,
    N,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image: the taken candidates in their order, behind the root."""
    image = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    inside = lane < M
    chosen = tl.load(taken + image * M + lane, inside, other=0)
    place = tl.cumsum(chosen, axis=0)  # the root is node 0
    tl.store(places + image * M + lane, place, inside)
    tl.debug_barrier()
    above = tl.load(found_parents + image * M + lane, inside, other=-1)
    parent = tl.load(places + image * M + above, inside & (above >= 0), other=0)
    goes = inside & (chosen == 1)
    tl.store(tokens + image * N + place, tl.load(found_tokens + image * M + lane, inside, other=0), goes)
    tl.store(parents + image * N + place, parent, goes)
    tl.store(tokens + image * N, tl.load(roots + image))
    tl.store(parents + image * N, tl.full((), -1, tl.int64))
    tl.store(counts + image, 1 + tl.sum(chosen, axis=0))


def take_best(
    found: Candidates, totals: Tensor, roots: Tensor, tokens: Tensor, parents: Tensor, counts: Tensor
) -> None:
    """Fill tokens, parents [B, N] and counts [B] int64 with the trees of the totals [B] int64 best candidates.

    roots [B] int64: the last committed tokens. Every total is below N.
    """
    batch, count = found.scores.shape
    mark_best(found.scores, totals, found.taken)
    launch(
        assemble_kernel,
        (batch,),
        40 * found.scores.numel(),
        found.tokens,
        found.parents,
        found.taken,
        found.places,
        roots,
        tokens,
        parents,
        counts,
        count,
        tokens.shape[1],
        BLOCK=next_power_of_2(count),
    )
