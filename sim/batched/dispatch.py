"""From an acceptance rule to its form over many draft trees."""

from collections.abc import Callable

from underpaint.algos.accept.chain import SpeculativeSampling
from underpaint.algos.accept.greedy import GreedyMatch
from underpaint.algos.accept.lantern import Lantern, LanternPP
from underpaint.algos.accept.lantern_greedy import LanternGreedy, LanternPPGreedy
from underpaint.algos.accept.mulo import PooledThreshold
from underpaint.algos.accept.multi_round import MultiRound
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.accept.spec import Rule
from underpaint.algos.accept.without_replacement import WithoutReplacement
from underpaint.algos.arrays import FloatArray
from underpaint.sim.batched.longest import HoldsMass, Longest, Outweighs, is_best
from underpaint.sim.batched.rules import Judge, Pool, Siblings, TryDrawn, TryPooledPoints, Walk, try_points


def judge(rule: Rule, sampled_siblings: bool) -> Judge | None:
    """The rule for a batch of trees with sampled siblings or with point proposals; None where there is none."""
    if isinstance(rule, GreedyMatch):
        return Longest(is_best, first=False, draw=False)
    if isinstance(rule, PointProposals) and not sampled_siblings:
        return Walk(try_points)
    if isinstance(rule, SpeculativeSampling | MultiRound | WithoutReplacement) and sampled_siblings:
        return Walk(TryDrawn())
    if isinstance(rule, Lantern | LanternPP):
        pool = Pool(rule.neighbours, rule.k or rule.neighbours.shape[1], _limit(rule))
        try_all: Siblings = TryDrawn(pool, rule.residual) if sampled_siblings else TryPooledPoints(pool, rule.residual)
        return Walk(try_all)
    if isinstance(rule, LanternGreedy | LanternPPGreedy):
        pool = Pool(rule.neighbours, rule.k or rule.neighbours.shape[1], _limit(rule))
        return Longest(Outweighs(pool), first=rule.choose == "first", draw=False)
    if isinstance(rule, PooledThreshold):
        near = rule.neighbours[:, : rule.k or None]
        return Longest(HoldsMass(near, rule.tau), first=rule.choose == "first", draw=True)
    return None


def _limit(
    rule: Lantern | LanternPP | LanternGreedy | LanternPPGreedy,
) -> Callable[[FloatArray, FloatArray], FloatArray]:
    if isinstance(rule, Lantern | LanternGreedy):
        delta = rule.delta
        return lambda own, total: delta * total
    factor = rule.factor
    return lambda own, total: (factor - 1.0) * own
