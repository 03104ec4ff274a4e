"""Lookahead: the expected tokens per millisecond of drafted candidates, and of levels not drafted yet."""

from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.costs import SizeCosts

_MARGIN: Final = 1e-9
"""Tokens by which a tree must fall short to be ruled out, so that rounding cannot rule it out."""


class TreeSize(NamedTuple):
    """How many of the best candidates to verify, and the expected rate."""

    nodes: int
    rate: float
    """Expected tokens per ms of the cycle."""
    least: float
    """The score of the last chosen candidate; infinite if none was chosen."""


class LevelForecast(NamedTuple):
    """How many nodes to expand for another level, and the expected rate."""

    frontier: int
    rate: float
    """Expected tokens per ms, including the level's own cost."""


class LeastCosts(NamedTuple):
    """Lower bounds on the costs of a tree."""

    pass_ms: float
    """ms of a target pass of any size, > 0."""
    node_ms: float
    """Additional ms per draft node, >= 0."""
    level_ms: float
    """ms of a drafter pass, >= 0."""


def may_reach_rate(rate: float, profile: list[float], floor: LeastCosts, levels: int) -> bool:
    """Return whether a tree of at most `levels` levels may exceed `rate` expected tokens per ms; True if unsure.

    Args:
        rate: The rate to exceed, in expected tokens per ms.
        profile: The acceptance probabilities by rank below each node, falling and positive, with a sum of at most 1.
        floor: Lower bounds on the costs of the tree.
        levels: The most levels of the tree.
    """
    node, level = rate * floor.node_ms, rate * floor.level_ms  # the tokens that they have to add
    gain, scores, best, total = 1.0 - rate * floor.pass_ms, 1.0, 1.0, sum(profile)
    for _ in range(levels):
        # Up to this level the scores sum to at most `scores`, and none is higher than `best`.
        gained = scores * sum(chance - node / best for chance in profile if chance * best > node)
        gain += gained - level
        if gain > -_MARGIN:
            return True
        if gained <= level:  # no deeper level is worth more
            return False
        scores, best = scores * total, best * profile[0]
    return False


def best_tree_size(best: list[float], verify: SizeCosts, drafting_ms: float) -> TreeSize:
    """Return how many of the `best` scores (falling, positive) give the most expected tokens per ms; ties: fewer.

    Args:
        best: The scores of the candidates, falling and positive.
        verify: Costs of a target pass by draft nodes, at least from 0 to len(best).
        drafting_ms: ms of the past drafter passes.
    """
    nodes, rate, least = 0, 1.0 / (verify.ms[0] + drafting_ms), np.inf
    tokens = 1.0
    for count, score in enumerate(best, start=1):
        if score <= rate * verify.slopes[count - 1]:
            break
        tokens += score
        tree_rate = tokens / (verify.ms[count] + drafting_ms)
        if tree_rate > rate:
            nodes, rate, least = count, tree_rate, score
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
    """Forecast the next level, assuming that its candidates' scores are the expanded nodes' scores times `profile`.

    It expands the best nodes of the last level, except those that the best forecast tree would not contain: their
    children score no higher.

    Args:
        scores: [C], the scores of all candidates so far.
        last: The scores of the last level.
        profile: [k], acceptance probabilities by rank, at most 1.
        verify: See `best_tree_size`.
        draft_ms: [W], ms of the level's drafter pass by expanded nodes, from 1; at most W nodes can be expanded.
        drafting_ms: See `best_tree_size`.
        most: The most nodes to verify.

    Returns:
        The forecast; its rate is 0 if no candidate of the last level has a positive score.
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
    # If this costs less, no more nodes pay than before, and no child of an omitted node was among those.
    fewer = best[: choice.nodes] if needed_ms <= widest_ms else forecast(needed)
    return LevelForecast(needed, best_tree_size(fewer, verify, needed_ms).rate)


def falling(scores: FloatArray, count: int) -> list[float]:
    """Return the `count` best of the positive `scores`, best first."""
    rising = scores.copy()
    rising.sort()
    best: list[float] = rising[::-1][:count].tolist()
    while best and not best[-1]:
        best.pop()
    return best
