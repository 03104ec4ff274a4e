"""Second readings of the relaxed rules, one decision at a time in plain Python, to hold rules and mutants to."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.enumeration import enumerate_verdicts
from underpaint.algos.tree import DraftTree, Drawn, Verdict


class Reading(NamedTuple):
    """accept(p, q, x) in [0, 1]; rest(p, q, x): the distribution after a rejection of x, any scale."""

    accept: Callable[[FloatArray, FloatArray, int], float]
    rest: Callable[[FloatArray, FloatArray, int], FloatArray]


def expected_distribution(
    reading: Reading, target: FloatArray, tokens: Sequence[int], drawn: Drawn, draft: FloatArray
) -> FloatArray:
    """The distribution [V] of the token after a node with these children, along the one branch in which each is
    rejected."""
    distribution, reach, residual, tried = np.zeros(target.size), 1.0, target.copy(), set[int]()
    for token in tokens:
        if drawn == "top_k":
            proposal = np.eye(target.size)[token]
        else:
            proposal = np.array([0.0 if code in tried else mass for code, mass in enumerate(draft)])
            proposal /= proposal.sum()
        acceptance = reading.accept(residual, proposal, token)
        distribution[token] += reach * acceptance
        reach *= 1.0 - acceptance
        if reach <= 1e-12:
            return distribution
        residual = reading.rest(residual, proposal, token)
        residual = residual / residual.sum()
        if drawn == "without_replacement":
            tried.add(token)
    return distribution + reach * residual


def nearest(codes: FloatArray, token: int, count: int) -> list[int]:
    """The nearest other codes, ties by index."""
    apart = [(float(((code - codes[token]) ** 2).sum()), place) for place, code in enumerate(codes) if place != token]
    return [place for _, place in sorted(apart)[:count]]


def lantern_reading(codes: FloatArray, k: int, residual: str, limit: Callable[[float], float]) -> Reading:
    """LANTERN, with the limit on the pooled mass as a function of p(x)."""

    def pooled(distribution: FloatArray, token: int) -> list[int]:
        codes_in, mass = list[int](), 0.0
        for code in nearest(codes, token, k):
            mass += float(distribution[code])
            if mass > limit(float(distribution[token])):
                break
            codes_in.append(code)
        return codes_in

    def accept(distribution: FloatArray, draft: FloatArray, token: int) -> float:
        mass = float(distribution[token]) + sum(float(distribution[code]) for code in pooled(distribution, token))
        return min(1.0, mass / float(draft[token]))

    def rest(distribution: FloatArray, draft: FloatArray, token: int) -> FloatArray:
        distribution, draft, codes_in = distribution.copy(), draft.copy(), pooled(distribution, token)
        if residual == "paper":
            distribution[token] += distribution[codes_in].sum()
            distribution[codes_in] = 0.0
        elif residual == "released" and codes_in:
            (distribution if draft[token] == 1.0 else draft)[nearest(codes, token, k + 1)] = 0.0
        excess = np.maximum(distribution - draft, 0.0)
        return excess if excess.any() else np.ones(distribution.size)

    return Reading(accept, rest)


def cool_reading(factor: float) -> Reading:
    """Cool-SD at one level."""
    return Reading(
        lambda distribution, draft, token: min(1.0, factor * float(distribution[token]) / float(draft[token])),
        lambda distribution, draft, token: np.maximum(distribution - np.minimum(draft, factor * distribution), 0.0),
    )


def gsd_reading(codes: FloatArray, group: int, gap: float, distance: float, window: str, residual: str) -> Reading:
    """GSD."""

    def accept(distribution: FloatArray, draft: FloatArray, token: int) -> float:
        sign = 1.0 if window == "released" else -1.0
        order = sorted(range(distribution.size), key=lambda code: (sign * float(distribution[code]), code))
        start = order.index(token) - (group // 2 if window == "released" else (group - 1) // 2)
        alone = start < 0 and window == "released"
        members = [
            code
            for code in ([token] if alone else order[max(0, start) : start + group])
            if code == token
            or (
                abs(distribution[code] - distribution[token]) < gap
                and np.linalg.norm(codes[code] - codes[token]) < distance
            )
        ]
        return min(1.0, float(distribution[members].sum()) / float(draft[members].sum()))

    def rest(distribution: FloatArray, draft: FloatArray, token: int) -> FloatArray:
        removed = draft.copy()
        if residual == "standard":
            removed = np.array([mass and mass * accept(distribution, draft, code) for code, mass in enumerate(draft)])
        excess = np.maximum(distribution - removed, 0.0)
        return excess if excess.any() else distribution

    return Reading(accept, rest)


def decided_distribution(rule: Any, tree: DraftTree, probs: FloatArray) -> FloatArray:
    """The distribution [V] of the first token that `rule` emits."""
    distribution = np.zeros(probs.shape[1])
    for verdict, weight in enumerate_verdicts(rule, tree, probs).items():
        distribution[int(tree.tokens[verdict.path[0]]) if verdict.path else verdict.token] += weight
    return distribution


def longest_path(tree: DraftTree, passes: Callable[[int, int], bool]) -> tuple[int, ...]:
    """The first of the longest paths whose every (parent, child) passes."""
    paths = [tree.path_to(node) for node in range(tree.size)]
    accepted_paths = [path for path in paths if all(passes(int(tree.parents[node]), node) for node in path)]
    return max(accepted_paths, key=len)


def boosted_verdict(
    tree: DraftTree, probs: FloatArray, codes: FloatArray, k: int, limit: Callable[[float], float]
) -> Verdict:
    """Greedy LANTERN: a node passes if its token is the argmax once its pool is added to it."""
    reading = lantern_reading(codes, k, "paper", limit)

    def passes(parent: int, node: int) -> bool:
        distribution, token = probs[parent].copy(), int(tree.tokens[node])
        distribution[token] = reading.accept(distribution, np.ones(distribution.size), token)
        return int(distribution.argmax()) == token

    path = longest_path(tree, passes)
    return Verdict(path, int(probs[path[-1] if path else 0].argmax()))
