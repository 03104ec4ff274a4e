"""Exact distributions of what is decided: of a verdict, of cycles, of a whole image, on a vocabulary that can be
enumerated.

A distribution is a dictionary from outcome to probability. What must equal the target's is the distribution of the
emitted tokens as a
sequence: cycles differ in how many tokens they emit, so no single cell's distribution tells whether a rule is exact.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import fsum
from typing import NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Enumerating, Role, enumerate_outcomes
from underpaint.algos.protocols import Policy, Rule
from underpaint.algos.step import Drafter, Target, cycles
from underpaint.algos.tree import DraftTree, Verdict, emitted, root_only

Outcome = TypeVar("Outcome", bound=Hashable)
TokenDistribution: TypeAlias = dict[tuple[int, ...], float]


class EnumeratedRun(NamedTuple):
    """What a decoding run emitted. tokens: in raster order; accepted: drafted tokens kept in each cycle."""

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]


def enumerate_verdicts(rule: Rule, tree: DraftTree, probs: FloatArray) -> dict[Verdict, float]:
    """The exact distribution of `rule`'s verdict on `tree` under the target distributions `probs` [N, V]."""
    return enumerate_outcomes(lambda chance: rule(tree, probs, chance))


@dataclass(slots=True)
class _WeightsOfDraw:
    """A branch of an enumeration in which draws are not enumerated: the weights [V] of the last one are noted."""

    chance: Enumerating
    weights: FloatArray | None = None

    def cycle(self, index: int) -> Self:
        return type(self)(self.chance.cycle(index), self.weights)

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        return self.chance.flip(chance_of, at, out_of)

    def draw(self, weights: FloatArray, at: At) -> int:
        self.weights = weights
        return int(np.argmax(weights))


def next_token_distribution(rule: Rule, tree: DraftTree, probs: FloatArray) -> FloatArray:
    """The exact distribution [V] (float64) of the first token that `rule` commits, given the drafted `tree`.

    Flips are enumerated and the extra token's draw is taken as it stands, so the work does not grow with V: a rule may
    draw nothing but its extra token.
    """
    distribution = np.zeros(probs.shape[1])
    branch: Enumerating | None = Enumerating()
    while branch is not None:
        seen = _WeightsOfDraw(branch)
        verdict = rule(tree, probs, seen)
        if verdict.path:
            distribution[tree.tokens[verdict.path[0]]] += branch.weight()
        elif seen.weights is None:
            distribution[verdict.token] += branch.weight()
        else:
            weights = seen.weights.astype(np.float64)
            distribution += branch.weight() * weights / weights.sum()
        branch = branch.next_branch()
    return distribution


def enumerate_decoding(
    target: Target,
    drafter: Drafter | None,
    policy: Policy,
    rule: Rule,
    max_nodes: int = 64,
    cycle_count: int | None = None,
) -> dict[EnumeratedRun, float]:
    """The exact distribution of decoding with this target, drafter, policy and rule, the draft's own draws included.

    cycle_count: stop after that many cycles, cycle 0 (the condition alone) included; None decodes the whole image.
    Every branch decodes anew, and the branches multiply: a vocabulary of 2 or 3 and 3 or 4 cells are what is meant.
    """

    def program(chance: Chance) -> EnumeratedRun:
        tokens: list[int] = []
        accepted: list[int] = []
        for cycle in islice(cycles(target, drafter, policy, rule, chance, max_nodes), cycle_count):
            tokens.extend(emitted(cycle.tree, cycle.verdict))
            accepted.append(len(cycle.verdict.path))
        return EnumeratedRun(tuple(tokens), tuple(accepted))

    return enumerate_outcomes(program)


def target_distribution(target: Target) -> TokenDistribution:
    """The exact distribution of the whole image under `target`, one cell at a time, with no rule involved."""

    def program(chance: Chance) -> tuple[int, ...]:
        probs = target.begin().probs
        tokens = [chance.draw(probs[0], At(Role.BONUS, 0))]
        for cell in range(1, target.grid.cells):
            tree = root_only(tokens[-1], target.vocab_size)
            probs = target.score(tree).probs
            tokens.append(chance.cycle(cell).draw(probs[0], At(Role.BONUS, 0)))
            target.commit(tree, Verdict((), tokens[-1]))
        return tuple(tokens)

    return enumerate_outcomes(program)


def tokens_distribution(
    traces: Mapping[EnumeratedRun, float], whole: TokenDistribution | None = None
) -> TokenDistribution:
    """The distribution of the tokens of `traces`.

    whole: the target's distribution of the image, needed where traces stop early: each is then continued by the
    target's distribution given what it emitted. What the target never emits cannot be continued and stays as it is.
    """
    starts = marginal(traces, lambda trace: trace.tokens)
    if whole is None:
        return starts
    parts: dict[tuple[int, ...], list[float]] = {}
    for start, weight in starts.items():
        goes_on = {image: share for image, share in whole.items() if image[: len(start)] == start} or {start: 1.0}
        mass = fsum(goes_on.values())
        for image, share in goes_on.items():
            parts.setdefault(image, []).append(weight * share / mass)
    return {image: fsum(shares) for image, shares in parts.items()}


def marginal(distribution: Mapping[Outcome, float], of: Callable[[Outcome], tuple[int, ...]]) -> TokenDistribution:
    """The distribution of `of(outcome)` where the outcome follows `distribution`."""
    parts: dict[tuple[int, ...], list[float]] = {}
    for outcome, weight in distribution.items():
        parts.setdefault(of(outcome), []).append(weight)
    return {value: fsum(weights) for value, weights in parts.items()}


def mean(distribution: Mapping[Outcome, float], of: Callable[[Outcome], float]) -> float:
    """The expectation of `of(outcome)` where the outcome follows `distribution`."""
    return fsum(weight * of(outcome) for outcome, weight in distribution.items())


def accepted_per_cycle(traces: Mapping[EnumeratedRun, float], cycle: int) -> float:
    """The expected number of drafted tokens kept in cycle `cycle`, over the traces that reach it."""
    reached = {trace: weight for trace, weight in traces.items() if len(trace.accepted) > cycle}
    if not reached:
        raise ValueError(f"accepted_per_cycle: no trace reaches cycle {cycle}")
    return mean(reached, lambda trace: trace.accepted[cycle]) / fsum(reached.values())


def passes(traces: Mapping[EnumeratedRun, float]) -> float:
    """The expected number of target passes (NFE), cycle 0 included."""
    return mean(traces, lambda trace: len(trace.accepted))


def total_variation(first: Mapping[Outcome, float], second: Mapping[Outcome, float]) -> float:
    """Half the sum of absolute differences: the largest gap in probability that any event shows, in [0, 1]."""
    return 0.5 * fsum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in {**first, **second})
