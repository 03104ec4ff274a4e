"""What trees should yield: expected tokens per millisecond, of candidates at hand and of levels not yet drafted."""

from typing import NamedTuple

import numpy as np

from algos.arrays import FloatArray
from algos.draft.calibration import Adjust
from algos.draft.grow import Level, best_first


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


def best_imaginable(kept: float, least_ms: FloatArray) -> float:
    """A bound on the expected tokens per ms of trees whose every level keeps a token with a chance of at most `kept`.

    least_ms: [D] ms that a tree of so many levels costs at least, from 1 on.
    """
    rates = (1.0 + np.add.accumulate(np.power(kept, np.arange(1, least_ms.size + 1)))) / least_ms
    return float(rates.max())


def best_choice(scores: FloatArray, costs: FloatArray, spent_ms: float, most: int) -> Choice:
    """The number of best `scores` [C], at most `most`, of most expected tokens per ms; ties: the fewer.

    costs: [>= most + 1] ms of a target pass by drafted nodes; spent_ms: what the drafter passes have cost.
    """
    rising = scores.copy()
    rising.sort()
    count = min(most, int(np.count_nonzero(rising)))
    expected = np.ones(count + 1)
    expected[1:] = rising[::-1][:count]
    rates = np.add.accumulate(expected) / (costs[: count + 1] + spent_ms)
    nodes = int(rates.argmax())
    return Choice(nodes, float(rates[nodes]), float(rising[-nodes]) if nodes else np.inf)


def foresee(
    scores: FloatArray, last: Level, adjust: Adjust, costs: FloatArray, spent_ms: FloatArray, most: int
) -> Ahead:
    """The next level: its candidates should have the frontier's scores times the mean chances by rank so far.

    The frontier's best nodes are expanded, but for those that the best foreseen tree would not hold themselves: their
    children score no higher. A rate of 0 where no candidate of the last level has a positive score.
    scores: [C] of all candidates so far; last: the last level. spent_ms: [W] what the drafter passes will have cost, by
    nodes expanded; W are the most that can be.
    """
    frontier = last.scores[best_first(last.scores, spent_ms.size)]
    if not frontier.size:
        return Ahead(0, 0.0)
    profile = adjust(np.add.reduce(last.probs, axis=0, keepdims=True) / last.probs.shape[0])
    coming = frontier[:, None] * profile

    def choice(expanded: int) -> Choice:
        foreseen = np.concatenate((scores, coming[:expanded].reshape(-1)))
        return best_choice(foreseen, costs, float(spent_ms[expanded - 1]), most)

    best = choice(frontier.size)
    needed = max(1, int(np.count_nonzero(frontier >= best.least)))
    return Ahead(needed, (best if needed == frontier.size else choice(needed)).rate)
