"""What rules accept and the most that one could: sets of proposals, their bound, the mass that an acceptance keeps."""

from math import fsum

import numpy as np

from underpaint.algos.accept.relaxed import Acceptance
from underpaint.algos.accept.walk import normalised
from underpaint.algos.arrays import FloatArray
from underpaint.algos.tree import Drawn


def proposal_sets(draft: FloatArray, count: int, drawn: Drawn) -> dict[frozenset[int], float]:
    """The distribution of the set of `count` proposals from `draft` [V].

    Without replacement, a distribution that has run out goes on uniformly over the untried tokens; "top_k" takes the
    likeliest (the first on ties). At most V proposals are distinct.
    """
    distribution = normalised(draft)
    if drawn == "top_k":
        return {frozenset(np.argsort(-distribution, kind="stable")[:count].tolist()): 1.0}
    sets: dict[frozenset[int], float] = {frozenset(): 1.0}
    for _ in range(count if drawn == "iid" else min(count, draft.size)):
        grown: dict[frozenset[int], list[float]] = {}
        for tried, weight in sets.items():
            share = distribution if drawn == "iid" else _untried(distribution, tried)
            for token in np.flatnonzero(share).tolist():
                grown.setdefault(tried | {token}, []).append(weight * float(share[token]))
        sets = {tried: fsum(weights) for tried, weights in grown.items()}
    return sets


def _untried(distribution: FloatArray, tried: frozenset[int]) -> FloatArray:
    remaining = distribution.copy()
    remaining[list(tried)] = 0.0
    if not remaining.any():
        remaining[:] = 1.0
        remaining[list(tried)] = 0.0
    return normalised(remaining)


def best_acceptance_iid(target: FloatArray, draft: FloatArray, count: int) -> float:
    """`best_acceptance` for `count` independent proposals from `draft` [V], for any V, in V log V.

    P(every proposal lies in H) is draft(H)**count, convex in draft(H), so some best H holds the tokens of largest
    draft / target: the sets to try are the prefixes of that order (arXiv 2502.18779).
    """
    probs, draft_probs = normalised(target), normalised(draft)
    ratios = np.divide(probs, draft_probs, out=np.full(probs.size, np.inf), where=draft_probs > 0.0)
    order = np.argsort(ratios, kind="stable")
    mass = np.concatenate([[0.0], np.cumsum(probs[order])])
    inside = np.concatenate([[0.0], np.cumsum(draft_probs[order])]) ** count
    return float(np.clip((mass + 1.0 - inside).min(), 0.0, 1.0))


def accepted_mass(acceptance: Acceptance, target: FloatArray, draft: FloatArray, place: int = 0) -> FloatArray:
    """[V]: draft(x) * accept(x), token by token."""
    mass = np.zeros(target.size)
    for token in np.flatnonzero(draft).tolist():
        chance_of, out_of = acceptance.odds(target, draft, token, place)
        if chance_of > 0.0:
            mass[token] = draft[token] * min(1.0, chance_of / out_of)
    return mass
