"""FLy and SJD-SV on the device: what stays of a chain follows from the flips of all its drafts.

As `algos.accept.fly` and `algos.accept.sjd_sv`.
"""

import torch

from underpaint.algos.accept.fly import DeferredMatch, DeferredVerification
from underpaint.algos.accept.sjd_sv import SubsequenceVerification
from underpaint.runtime.device.kernels.proposals import POINTS, kind_of
from underpaint.runtime.device.kernels.row_maths import draw, flip, row_argmax
from underpaint.runtime.device.kernels.walk import (
    Decide,
    Shape,
    conclude,
    drafted_row,
    lane_of,
    noise_of,
    takes_part,
)
from underpaint.runtime.device.kernels.walk_block import MOST_RATIO, chain_odds, chain_walk, store_excess
from underpaint.runtime.device.language import kernel, tl


@kernel
def top_entropy(row, total, top, V, BLOCK: tl.constexpr):
    """-sum p ln p (float64, nats) over the `top` largest weights of a row of sum `total`, equal ones by their place."""
    entropy = tl.full((), 0.0, tl.float64)
    last = tl.full((), float("inf"), tl.float64)
    at = tl.full((), -1, tl.int64)
    for _ in range(0, tl.minimum(top, V)):  # trips: top
        best = tl.full((), -1.0, tl.float64)
        found = tl.full((), 0, tl.int64)
        for start in range(0, V, BLOCK):
            place = start + tl.arange(0, BLOCK)
            weights = tl.load(row + place, place < V, other=-1.0).to(tl.float64)
            after = (weights < last) | ((weights == last) & (place > at))
            weights = tl.where(after, weights, -1.0)
            here = tl.max(weights, axis=0)
            first = tl.min(tl.where(weights == here, place, V), axis=0)
            found = tl.where(here > best, first.to(tl.int64), found)
            best = tl.maximum(best, here)
        last = best
        at = found
        share = best / total
        entropy -= tl.where(share > 0.0, share * tl.log(tl.where(share > 0.0, share, 1.0)), 0.0)
    return entropy


@kernel
def conclude_chain(
    tree, out, image, rest, length, last, token, totals, offers, drafts, lane, V, N, sound,
    KIND: tl.constexpr, ROLES: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Write a verdict of `length` drafts of a chain, and a token of [p - q]_+ behind them; of p behind all `last`."""
    base = image * N
    _accept, residual, bonus = noise_of(tree, image, N, ROLES)
    row = tree.probs + (base + length) * V
    tl.store(out.path + base + lane, lane.to(tl.int64) + 1, lane < length)
    if length == last:
        found = draw(row, V, tl.load(bonus + last), BLOCK)
    else:
        line = tree.draft_probs
        if KIND != POINTS:
            line = drafted_row(tree, image, length, drafts, V, N)
        scale = 1.0 / lane_of(totals, lane, length)
        total = store_excess(row, line, token, rest, scale, 1.0 / lane_of(offers, lane, length), V, KIND, BLOCK)
        if total > 0.0:
            found = draw(rest, V, tl.load(residual + length), BLOCK)
        else:
            found = draw(row, V, tl.load(residual + length), BLOCK)
    conclude(out, image, length, found, V, sound)


@kernel
def walk_deferred_kernel(
    tree,
    out,
    threshold,
    window,
    top,
    sums,
    left,
    V,
    N,
    drafts,
    rows,
    GREEDY: tl.constexpr,
    KIND: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image; threshold: [1] float64."""
    image = tl.program_id(0)
    if takes_part(out.status, out.finite, out.taken, image, rows, ROWS) == 0:
        return
    base = image * N
    lane = tl.arange(0, NODES)
    last = tl.load(tree.counts + image) - 1
    owns, chances, totals, offers, sound = chain_odds(tree, sums, image, drafts, last, V, N, KIND, NODES)
    accept, _residual, _bonus = noise_of(tree, image, N, ROLES)
    drafted = (lane > 0) & (lane <= last)
    if GREEDY:
        best = tl.full((NODES,), -1, tl.int64)
        for node in range(0, last + 1):  # trips: levels
            _largest, likeliest = row_argmax(tree.probs + (base + node) * V, V, BLOCK)
            best = tl.where(lane == node, likeliest, best)
        above = tl.sum(tl.where(lane[None, :] == lane[:, None] - 1, best[None, :], 0), axis=1)
        passed = drafted & (tl.load(tree.tokens + base + lane, drafted, other=-1) == above)
    else:
        passed = drafted & flip(tl.load(accept + lane, drafted, other=1.0), owns, chances)
    length = tl.full((), 0, tl.int64)
    going = tl.full((), 1, tl.int32)
    while (going == 1) & (length < last):  # trips: levels
        node = length + 1
        stays = lane_of(passed.to(tl.int32), lane, node)
        behind = tl.sum((passed & (lane > node) & (lane <= node + window)).to(tl.int32), axis=0)
        if (stays == 0) & (behind == window) & (lane_of(owns, lane, node) > 0.0):
            row = tree.probs + (base + length) * V
            entropy = top_entropy(row, lane_of(totals, lane, length), top, V, BLOCK)
            stays = (entropy >= tl.load(threshold)).to(tl.int32)
        going = stays
        length += stays
    if GREEDY:
        tl.store(out.path + base + lane, lane.to(tl.int64) + 1, lane < length)
        conclude(out, image, length, lane_of(best, lane, length), V, sound)
    else:
        rest = left + image.to(tl.int64) * V
        token = tl.load(tree.tokens + base + length + 1, length < last, other=0)
        conclude_chain(
            tree, out, image, rest, length, last, token, totals, offers, drafts, lane, V, N, sound, KIND, ROLES, BLOCK
        )


@kernel
def walk_runs_kernel(
    tree,
    out,
    share,
    longest,
    sums,
    left,
    V,
    N,
    drafts,
    rows,
    KIND: tl.constexpr,
    ROLES: tl.constexpr,
    NODES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program an image; share: [1] float64."""
    image = tl.program_id(0)
    if takes_part(out.status, out.finite, out.taken, image, rows, ROWS) == 0:
        return
    lane = tl.arange(0, NODES)
    last = tl.load(tree.counts + image) - 1
    owns, chances, totals, offers, sound = chain_odds(tree, sums, image, drafts, last, V, N, KIND, NODES)
    accept, _residual, _bonus = noise_of(tree, image, N, ROLES)
    length = tl.full((), 0, tl.int64)
    going = tl.full((), 1, tl.int32)
    while (going == 1) & (length < last):  # trips: levels
        end = length + 1
        rises = lane_of(owns, lane, end + 1) >= lane_of(owns, lane, end)
        while (end < last) & (end - length < longest) & rises:  # trips: 1
            end += 1
            rises = lane_of(owns, lane, end + 1) >= lane_of(owns, lane, end)
        whole = tl.full((), 0.0, tl.float64)
        for turn in range(0, end - length):  # trips: 1
            whole += lane_of(owns, lane, end - turn)
        first = end
        held = lane_of(owns, lane, end)
        while held < tl.load(share) * whole:  # trips: 1
            first -= 1
            held += lane_of(owns, lane, first)
        ratio = tl.full((), 1.0, tl.float64)
        ratios = tl.full((NODES,), 1.0, tl.float64)
        for node in range(first, end + 1):  # trips: 1
            ratio = tl.minimum(MOST_RATIO, ratio * lane_of(owns, lane, node) / lane_of(chances, lane, node))
            ratios = tl.where(lane == node, ratio, ratios)
        judged = (lane >= first) & (lane <= end)
        passed = judged & flip(tl.load(accept + lane, judged, other=1.0), ratios, 1.0)
        kept = tl.max(tl.where(passed, lane.to(tl.int64), first - 1), axis=0)
        going = (kept == end).to(tl.int32)
        length = kept
    rest = left + image.to(tl.int64) * V
    conclude_chain(
        tree, out, image, rest, length, last, 0, totals, offers, drafts, lane, V, N, sound, KIND, ROLES, BLOCK
    )


def deferred_walk(rule: DeferredVerification | DeferredMatch, shape: Shape, device: torch.device) -> Decide:
    """The device form of rules 'fly' and 'fly_greedy'; of the latter the drafter's rows are not read."""
    threshold = torch.tensor([rule.threshold], dtype=torch.float64, device=device)
    own, greedy = (threshold, rule.window, rule.top), isinstance(rule, DeferredMatch)
    kind = POINTS.value if greedy else kind_of(shape.drawn)
    return chain_walk(walk_deferred_kernel, shape, device, 2 * shape.nodes, *own, GREEDY=int(greedy), KIND=kind)


def runs_walk(rule: SubsequenceVerification, shape: Shape, device: torch.device) -> Decide:
    """The device form of rule 'sjd_sv'."""
    share = torch.tensor([rule.share], dtype=torch.float64, device=device)
    return chain_walk(walk_runs_kernel, shape, device, 2 * shape.nodes, share, rule.longest, warps=4)
