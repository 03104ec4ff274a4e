"""What trees should yield: expected tokens per millisecond, of candidates at hand and of levels not yet drafted."""

from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.costs import Prices

_SHY: Final = 1e-9
"""Tokens by which a tree must fall short to be ruled out, so that rounding rules out none."""


class Choice(NamedTuple):
    """How many of the best candidates to verify, and what that should yield."""

    nodes: int
    rate: float
    """Expected tokens per ms."""
    least: float
    """The score of the last one chosen; infinite where none is."""


class Ahead(NamedTuple):
    """What another level should yield, and how many nodes to expand for it."""

    frontier: int
    rate: float
    """Expected tokens per ms, the level's own cost included."""


class Floor(NamedTuple):
    """What trees cost at least."""

    pass_ms: float
    """A target pass, whatever its nodes, > 0."""
    node_ms: float
    """More for each drafted node, >= 0."""
    level_ms: float
    """A drafter pass, >= 0."""


def might_yield(rate: float, profile: list[float], floor: Floor, levels: int) -> bool:
    """Whether a tree of at most so many levels might have more than `rate` expected tokens per ms; True where in doubt.

    profile: the chances by rank below every node, falling and positive, of a sum of at most 1.
    """
    node, level = rate * floor.node_ms, rate * floor.level_ms  # in tokens: what they have to bring
    gain, scores, best, total = 1.0 - rate * floor.pass_ms, 1.0, 1.0, sum(profile)
    for _ in range(levels):
        # Above this level the scores add up to at most `scores`, and none is higher than `best`.
        worth = scores * sum(chance - node / best for chance in profile if chance * best > node)
        gain += worth - level
        if gain > -_SHY:
            return True
        if worth <= level:  # no deeper one is worth more
            return False
        scores, best = scores * total, best * profile[0]
    return False


def best_choice(best: list[float], verify: Prices, spent_ms: float) -> Choice:
    """How many of the `best` scores, falling and positive, give most expected tokens per ms; ties: the fewer.

    verify: of a target pass by drafted nodes, from 0 to len(best) at least; spent_ms: what drafter passes have cost.
    """
    nodes, rate, least = 0, 1.0 / (verify.ms[0] + spent_ms), np.inf
    tokens = 1.0
    for count, score in enumerate(best, start=1):
        if score <= rate * verify.rises[count - 1]:
            break
        tokens += score
        found = tokens / (verify.ms[count] + spent_ms)
        if found > rate:
            nodes, rate, least = count, found, score
    return Choice(nodes, rate, least)


def foresee(
    scores: FloatArray,
    last: FloatArray,
    profile: FloatArray,
    verify: Prices,
    draft_ms: list[float],
    spent_ms: float,
    most: int,
) -> Ahead:
    """The next level: its candidates should have the frontier's scores times the chances by rank.

    The frontier's best nodes are expanded, but for those that the best foreseen tree would not hold themselves: their
    children score no higher. A rate of 0 where no candidate of the last level has a positive score.
    scores: [C] of all candidates so far; last: those of the last level; profile: [k] chances by rank, at most 1.
    verify, spent_ms: see `best_choice`; most: nodes that can be verified. draft_ms: [W] of the level's drafter pass by
    nodes expanded, from 1 on; W are the most that can be.
    """
    frontier = falling(last, len(draft_ms))
    if not frontier:
        return Ahead(0, 0.0)
    coming = np.multiply.outer(frontier, profile)

    def foreseen(expanded: int) -> list[float]:
        return falling(np.concatenate((scores, coming[:expanded].reshape(-1))), most)

    widest_ms, best = spent_ms + draft_ms[len(frontier) - 1], foreseen(len(frontier))
    choice = best_choice(best, verify, widest_ms)
    needed = max(1, sum(score >= choice.least for score in frontier))
    if needed == len(frontier):
        return Ahead(needed, choice.rate)
    needed_ms = spent_ms + draft_ms[needed - 1]
    # Where less is spent no more nodes pay than before, and no child of a node that is left out was among those.
    fewer = best[: choice.nodes] if needed_ms <= widest_ms else foreseen(needed)
    return Ahead(needed, best_choice(fewer, verify, needed_ms).rate)


def falling(scores: FloatArray, count: int) -> list[float]:
    """The `count` best of the positive `scores`, best first."""
    rising = scores.copy()
    rising.sort()
    best: list[float] = rising[::-1][:count].tolist()
    while best and not best[-1]:
        best.pop()
    return best
