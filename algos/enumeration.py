"""Exact distributions of verdicts, cycles and whole images, for vocabularies small enough to enumerate.

A distribution is a dictionary from outcome to probability. To test whether a rule is exact, compare the distribution of
the emitted token sequences with the target's. The distribution of a single cell is not enough, because cycles emit
different numbers of tokens.
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
    """The output of a decoding run.

    Attributes:
        tokens: In raster order.
        accepted: The number of accepted draft tokens in each cycle.
    """

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]


def enumerate_verdicts(rule: Rule, tree: DraftTree, probs: FloatArray) -> dict[Verdict, float]:
    """Return the exact distribution of `rule`'s verdict on `tree` under the target distributions `probs` [N, V]."""
    return enumerate_outcomes(lambda chance: rule(tree, probs, chance))


@dataclass(slots=True)
class _WeightsOfDraw:
    """One branch of an enumeration that does not enumerate draws, but keeps the weights [V] of the last draw."""

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
    """Return the exact distribution [V] (float64) of the first token that `rule` commits, given the drafted `tree`.

    Flips are enumerated, and the weights of the extra token's draw are used directly, so the work does not grow with V.
    The rule may therefore make no other draw.
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
    """Return the exact distribution of runs with this target, drafter, policy and rule, including random drafts.

    Each branch decodes from the start, and their number grows exponentially: use 2 or 3 tokens and 3 or 4 cells.

    Args:
        target: The target model. Its condition is already set.
        drafter: The drafter; None for plain autoregression.
        policy: Decides the shape of each draft tree.
        rule: Decides which draft tokens are accepted.
        max_nodes: The largest tree that the target can score, including the root.
        cycle_count: The number of cycles to run, including cycle 0 (the prefill); None decodes the whole image.
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
    """Return the exact distribution of the whole image under `target`, one cell at a time, without any rule."""

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
    """Return the distribution of the tokens of `traces`.

    Args:
        traces: The distribution of runs, see `enumerate_decoding`.
        whole: The target's distribution of the whole image, needed if traces stop early: each is then continued with
            the target's conditional distribution. A prefix that the target never emits is kept as it is.
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
    """Return the distribution of `of(outcome)` if the outcome follows `distribution`."""
    parts: dict[tuple[int, ...], list[float]] = {}
    for outcome, weight in distribution.items():
        parts.setdefault(of(outcome), []).append(weight)
    return {value: fsum(weights) for value, weights in parts.items()}


def mean(distribution: Mapping[Outcome, float], of: Callable[[Outcome], float]) -> float:
    """Return the expectation of `of(outcome)` if the outcome follows `distribution`."""
    return fsum(weight * of(outcome) for outcome, weight in distribution.items())


def accepted_per_cycle(traces: Mapping[EnumeratedRun, float], cycle: int) -> float:
    """Return the mean number of accepted draft tokens in cycle `cycle`, over the traces that reach it."""
    reached = {trace: weight for trace, weight in traces.items() if len(trace.accepted) > cycle}
    if not reached:
        raise ValueError(f"accepted_per_cycle: no trace reaches cycle {cycle}")
    return mean(reached, lambda trace: trace.accepted[cycle]) / fsum(reached.values())


def passes(traces: Mapping[EnumeratedRun, float]) -> float:
    """Return the expected number of target passes (NFE), including cycle 0."""
    return mean(traces, lambda trace: len(trace.accepted))


def total_variation(first: Mapping[Outcome, float], second: Mapping[Outcome, float]) -> float:
    """Return half the sum of absolute differences, in [0, 1]: the largest difference in any event's probability."""
    return 0.5 * fsum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in {**first, **second})
