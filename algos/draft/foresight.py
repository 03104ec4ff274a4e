"""What trees should yield: expected tokens per millisecond, of candidates at hand and of levels not yet drafted."""

from typing import NamedTuple

import numpy as np

from algos.arrays import FloatArray
from algos.draft.costs import Prices


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


def best_imaginable(kept: float, least_ms: list[float]) -> float:
    """A bound on the expected tokens per ms of trees whose every level keeps a token with a chance of at most `kept`.

    least_ms: [D] ms that a tree of so many levels costs at least, from 1 on.
    """
    best, tokens, chance = 0.0, 1.0, 1.0
    for ms in least_ms:
        chance *= kept
        tokens += chance
        best = max(best, tokens / ms)
    return best


def best_choice(scores: FloatArray, prices: Prices, spent_ms: float, most: int) -> Choice:
    """The number of best `scores` [C], at most `most`, of most expected tokens per ms; ties: the fewer.

    prices: of a target pass by drafted nodes, from 0 to `most` at least; spent_ms: what the drafter passes have cost.
    """
    nodes, rate, least = 0, 1.0 / (prices.ms[0] + spent_ms), np.inf
    tokens = 1.0
    for count, score in enumerate(falling(scores, most), start=1):
        if score <= rate * prices.rises[count - 1]:
            break
        tokens += score
        found = tokens / (prices.ms[count] + spent_ms)
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
    verify, spent_ms, most: see `best_choice`. draft_ms: [W] of the level's drafter pass by nodes expanded, from 1 on; W
    are the most that can be.
    """
    frontier = falling(last, len(draft_ms))
    if not frontier:
        return Ahead(0, 0.0)
    coming = np.multiply.outer(frontier, profile)

    def choice(expanded: int) -> Choice:
        foreseen = np.concatenate((scores, coming[:expanded].reshape(-1)))
        return best_choice(foreseen, verify, spent_ms + draft_ms[expanded - 1], most)

    best = choice(len(frontier))
    needed = max(1, sum(score >= best.least for score in frontier))
    return Ahead(needed, (best if needed == len(frontier) else choice(needed)).rate)


def falling(scores: FloatArray, count: int) -> list[float]:
    """The `count` best of the positive `scores`, best first."""
    rising = scores.copy()
    rising.sort()
    best: list[float] = rising[::-1][:count].tolist()
    while best and not best[-1]:
        best.pop()
    return best
