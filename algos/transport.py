"""The most that any lossless rule can accept: an optimal transport from the proposals to the target's distribution.

Given proposals that fall in a set S with known probability, and an output that must follow the target's distribution p,
the largest probability that the output is one of the proposals is, by the min-cut of that transport,

    min over sets H of tokens:  p(H) + 1 - P(every proposal lies in H)

arXiv 2310.15141 (SpecTr) poses the transport; arXiv 2502.18779 gives the minimum over sets.
"""

from collections.abc import Mapping
from math import fsum
from typing import TypeAlias

import numpy as np

from underpaint.algos.accept.walk import normalised
from underpaint.algos.arrays import FloatArray
from underpaint.algos.tree import Drawn

ProposalSets: TypeAlias = Mapping[frozenset[int], float]
"""The probability of each set of distinct proposed tokens."""

MOST_TOKENS = 16
"""Sets of tokens are enumerated: 2**V of them."""


def _check_small(vocab_size: int) -> None:
    if vocab_size > MOST_TOKENS:
        raise ValueError(
            f"transport: {vocab_size} tokens have too many subsets to enumerate (at most {MOST_TOKENS}); for "
            "independent proposals use best_acceptance_iid"
        )


def proposal_sets(draft: FloatArray, count: int, drawn: Drawn) -> dict[frozenset[int], float]:
    """The distribution of the set of `count` proposals from `draft` [V].

    Without replacement, a distribution that has run out goes on uniformly over the untried tokens; "top_k" takes the
    likeliest (the first on ties). At most V proposals are distinct.
    Raises ValueError for more than MOST_TOKENS tokens or a negative count.
    """
    _check_small(draft.size)
    if count < 0:
        raise ValueError(f"transport: expected count >= 0, got {count}")
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
    left = distribution.copy()
    left[list(tried)] = 0.0
    if not left.any():
        left[:] = 1.0
        left[list(tried)] = 0.0
    return normalised(left)


def best_acceptance(target: FloatArray, proposals: ProposalSets) -> float:
    """The largest probability that an output of distribution `target` [V] is among the proposals.

    Exact; V at most MOST_TOKENS (ValueError).
    """
    vocab_size = target.size
    _check_small(vocab_size)
    inside = np.zeros(1 << vocab_size)
    for tokens, weight in proposals.items():
        inside[sum(1 << token for token in tokens)] += weight
    mass = np.zeros(1 << vocab_size)
    members = np.arange(1 << vocab_size)
    for token, share in enumerate(normalised(target).tolist()):
        has = (members >> token & 1).astype(np.bool_)
        inside[has] += inside[members[has] ^ (1 << token)]  # sums over subsets, one token at a time
        mass[has] += share
    return float(np.clip((mass + 1.0 - inside).min(), 0.0, 1.0))


def best_acceptance_iid(target: FloatArray, draft: FloatArray, count: int) -> float:
    """`best_acceptance` for `count` independent proposals from `draft` [V], for any V, in V log V.

    P(every proposal lies in H) is draft(H)**count, convex in draft(H), so some best H holds the tokens of largest
    draft / target: the sets to try are the prefixes of that order (arXiv 2502.18779).
    """
    if count < 0:
        raise ValueError(f"transport: expected count >= 0, got {count}")
    probs, draft_probs = normalised(target), normalised(draft)
    ratios = np.divide(probs, draft_probs, out=np.full(probs.size, np.inf), where=draft_probs > 0.0)
    order = np.argsort(ratios, kind="stable")
    mass = np.concatenate([[0.0], np.cumsum(probs[order])])
    inside = np.concatenate([[0.0], np.cumsum(draft_probs[order])]) ** count
    return float(np.clip((mass + 1.0 - inside).min(), 0.0, 1.0))


def overlap(target: FloatArray, draft: FloatArray) -> FloatArray:
    """1 - TV of the distributions in rows [..., V]: the most that any lossless rule can accept of one proposal."""
    shared: FloatArray = np.minimum(target, draft).sum(axis=-1)
    return shared
