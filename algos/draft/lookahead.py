"""Lookahead: the expected tokens per millisecond of drafted candidates, and of levels not yet drafted."""

from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.costs import SizeCosts

_MARGIN: Final = 1e-9
"""Tokens by which a tree must fall short to be ruled out, so that rounding rules none out."""


class TreeSize(NamedTuple):
    """How many of the best candidates to verify, and the rate that should give."""

    nodes: int
    rate: float
    """Expected tokens per ms."""
    least: float
    """The score of the last one chosen; infinite where none is."""


class LevelForecast(NamedTuple):
    """How many nodes to expand for another level, and the rate that should give."""

    frontier: int
    rate: float
    """Expected tokens per ms, the level's own cost included."""


class LeastCosts(NamedTuple):
    """Lower bounds of what a tree costs."""

    pass_ms: float
    """A target pass, whatever its nodes, > 0."""
    node_ms: float
    """More for each drafted node, >= 0."""
    level_ms: float
    """A drafter pass, >= 0."""


def may_reach_rate(rate: float, profile: list[float], floor: LeastCosts, levels: int) -> bool:
    """Whether a tree of at most so many levels might have more than `rate` expected tokens per ms; True where in doubt.

    profile: the chances by rank below every node, falling and positive, of a sum of at most 1.
    """
    node, level = rate * floor.node_ms, rate * floor.level_ms  # in tokens: what they have to bring
    gain, scores, best, total = 1.0 - rate * floor.pass_ms, 1.0, 1.0, sum(profile)
    for _ in range(levels):
        # Above this level the scores add up to at most `scores`, and none is higher than `best`.
        gained = scores * sum(chance - node / best for chance in profile if chance * best > node)
        gain += gained - level
        if gain > -_MARGIN:
            return True
        if gained <= level:  # no deeper one is worth more
            return False
        scores, best = scores * total, best * profile[0]
    return False


def best_tree_size(best: list[float], verify: SizeCosts, drafting_ms: float) -> TreeSize:
    """How many of the `best` scores, falling and positive, give most expected tokens per ms; ties: the fewer.

    verify: of a target pass by drafted nodes, from 0 to len(best) at least; drafting_ms: what drafter passes have cost.
    """
    nodes, rate, least = 0, 1.0 / (verify.ms[0] + drafting_ms), np.inf
    tokens = 1.0
    for count, score in enumerate(best, start=1):
        if score <= rate * verify.slopes[count - 1]:
            break
        tokens += score
        found = tokens / (verify.ms[count] + drafting_ms)
        if found > rate:
            nodes, rate, least = count, found, score
    return TreeSize(nodes, rate, least)


def forecast_level(
    scores: FloatArray,
    last: FloatArray,
    profile: FloatArray,
    verify: SizeCosts,
    draft_ms: list[float],
    drafting_ms: float,
    most: int,
) -> LevelForecast:
    """The next level: its candidates should have the scores of the expanded nodes times the profile by rank.

    The last level's best nodes are expanded, except those that the best forecast tree would not hold themselves: their
    children score no higher. The rate is 0 where no candidate of the last level has a positive score.
    scores: [C] of all candidates so far; last: those of the last level; profile: [k] acceptance probabilities by rank,
    at most 1. verify, drafting_ms: see `best_tree_size`; most: nodes that can be verified. draft_ms: [W] ms of the
    level's drafter pass by nodes expanded, from 1 on; W are the most that can be.
    """
    frontier = falling(last, len(draft_ms))
    if not frontier:
        return LevelForecast(0, 0.0)
    coming = np.multiply.outer(frontier, profile)

    def forecast(expanded: int) -> list[float]:
        return falling(np.concatenate((scores, coming[:expanded].reshape(-1))), most)

    widest_ms, best = drafting_ms + draft_ms[len(frontier) - 1], forecast(len(frontier))
    choice = best_tree_size(best, verify, widest_ms)
    needed = max(1, sum(score >= choice.least for score in frontier))
    if needed == len(frontier):
        return LevelForecast(needed, choice.rate)
    needed_ms = drafting_ms + draft_ms[needed - 1]
    # Where less is spent no more nodes pay than before, and no child of a node that is left out was among those.
    fewer = best[: choice.nodes] if needed_ms <= widest_ms else forecast(needed)
    return LevelForecast(needed, best_tree_size(fewer, verify, needed_ms).rate)


def falling(scores: FloatArray, count: int) -> list[float]:
    """The `count` best of the positive `scores`, best first."""
    rising = scores.copy()
    rising.sort()
    best: list[float] = rising[::-1][:count].tolist()
    while best and not best[-1]:
        best.pop()
    return best
