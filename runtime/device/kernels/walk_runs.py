"""FLy and SJD-SV, which judge a chain by the flips of all its drafts: `algos.accept.fly`, `algos.accept.sjd_sv`."""

import torch

from underpaint.algos.accept.fly import DeferredMatch, DeferredVerification
from underpaint.algos.accept.sjd_sv import SubsequenceVerification
from underpaint.runtime.device.kernels.proposals import POINTS, kind_of
from underpaint.runtime.device.kernels.residuals import draw_left, left_sum
from underpaint.runtime.device.kernels.row_maths import flip, row_argmax
from underpaint.runtime.device.kernels.walk import (
    Decide,
    Shape,
    conclude,
    drafted_row,
    lane_of,
    noise_of,
    takes_part,
)
from underpaint.runtime.device.kernels.walk_block import MOST_RATIO, chain_odds, chain_walk
from underpaint.runtime.device.launch import kernel, tl, wait_for_earlier_kernels


@kernel
def conclude_chain(
    tree, out, image, length, last, token, totals, offers, drafts, lane, V, N, sound,
    KIND: tl.constexpr, ROLES: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Write a verdict of `length` accepted drafts, and a token drawn from [p - q]_+, or from p after all `last` drafts.

    token: the draft after the accepted ones, if it is a point proposal.
    """
    base = image * N
    _accept, residual, bonus = noise_of(tree, image, N, ROLES)
    row = tree.probs + (base + length) * V
    tl.store(out.path + base + lane, lane.to(tl.int64) + 1, lane < length)
    taken, refused = tl.full((), 0.0, tl.float64), tl.full((2,), -1, tl.int64)
    factor = 1.0 / lane_of(totals, lane, length)
    if KIND == POINTS:
        line = row
        rest = 1.0 - tl.load(row + token).to(tl.float64) * factor
        refused = tl.where((length < last) & (rest > 0.0), token, refused)
        factor, rest = tl.full((), 1.0, tl.float64), tl.full((), 1.0, tl.float64)
    else:
        line = drafted_row(tree, image, length, drafts, V, N)
        taken = tl.where(length < last, 1.0 / lane_of(offers, lane, length), 0.0)
        rest = left_sum(row, line, factor, taken, 0.0, V, BLOCK)
        whole = (length == last) | (rest <= 0.0)
        factor, taken, rest = tl.where(whole, 1.0, factor), tl.where(whole, 0.0, taken), tl.where(whole, 1.0, rest)
    uniform = tl.load(tl.where(length == last, bonus, residual) + length)
    drawn = draw_left(row, line, refused, factor, taken, 0.0, rest, V, uniform, KIND != POINTS, 2, BLOCK)
    conclude(out, image, length, drawn, V, sound)


@kernel
def walk_deferred_kernel(
    tree,
    out,
    threshold,
    window,
    sums,
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
    """FLy, one program per image. threshold: [1] float64."""
    wait_for_earlier_kernels()
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
            _largest, likeliest = row_argmax(tree.probs + (base + node).to(tl.int64) * V, V, BLOCK)
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
            stays = (tl.load(sums + 3 * (base + length) + 2) >= tl.load(threshold)).to(tl.int32)
        going = stays
        length += stays
    if GREEDY:
        tl.store(out.path + base + lane, lane.to(tl.int64) + 1, lane < length)
        conclude(out, image, length, lane_of(best, lane, length), V, sound)
    else:
        token = tl.load(tree.tokens + base + length + 1, length < last, other=0)
        conclude_chain(
            tree, out, image, length, last, token, totals, offers, drafts, lane, V, N, sound, KIND, ROLES, BLOCK
        )


@kernel
def walk_runs_kernel(
    tree,
    out,
    share,
    longest,
    sums,
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
    """SJD-SV, one program per image. share: [1] float64."""
    wait_for_earlier_kernels()
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
        tail_mass = lane_of(owns, lane, end)
        while tail_mass < tl.load(share) * whole:  # trips: 1
            first -= 1
            tail_mass += lane_of(owns, lane, first)
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
    conclude_chain(tree, out, image, length, last, 0, totals, offers, drafts, lane, V, N, sound, KIND, ROLES, BLOCK)


def deferred_walk(rule: DeferredVerification | DeferredMatch, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rules 'fly' and 'fly_greedy'; the latter does not read the drafter's rows."""
    threshold = torch.tensor([rule.threshold], dtype=torch.float64, device=device)
    greedy = isinstance(rule, DeferredMatch)
    kind, own = POINTS.value if greedy else kind_of(shape.drawn), (threshold, rule.window)
    return chain_walk(walk_deferred_kernel, shape, device, *own, top=rule.top, GREEDY=int(greedy), KIND=kind)


def runs_walk(rule: SubsequenceVerification, shape: Shape, device: torch.device) -> Decide:
    """Return the device form of rule 'sjd_sv'."""
    share = torch.tensor([rule.share], dtype=torch.float64, device=device)
    return chain_walk(walk_runs_kernel, shape, device, share, rule.longest, warps=4)
