"""The most that any lossless rule can accept: an optimal transport from the proposals to the target's distribution.

Given proposals that fall in a set S with known probability, and an output that must follow the target's distribution p,
the largest probability that the output is one of the proposals is, by the min-cut of that transport,

    min over sets H of tokens:  p(H) + 1 - P(every proposal lies in H)

arXiv 2310.15141 (SpecTr) poses the transport; arXiv 2502.18779 gives the minimum over sets.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from underpaint.algos.accept.walk import normalised
from underpaint.algos.arrays import FloatArray

ProposalSets: TypeAlias = Mapping[frozenset[int], float]
"""The probability of each set of distinct proposed tokens."""

MOST_TOKENS = 16
"""Sets of tokens are enumerated: 2**V of them."""


def best_acceptance(target: FloatArray, proposals: ProposalSets) -> float:
    """The largest probability that an output of distribution `target` [V] is among the proposals.

    Exact; V at most MOST_TOKENS (ValueError).
    """
    vocab_size = target.size
    if vocab_size > MOST_TOKENS:
        raise ValueError(f"transport: {vocab_size} tokens have too many subsets to enumerate (at most {MOST_TOKENS})")
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


def overlap(target: FloatArray, draft: FloatArray) -> FloatArray:
    """1 - TV of the distributions in rows [..., V]: the most that any lossless rule can accept of one proposal."""
    shared: FloatArray = np.minimum(target, draft).sum(axis=-1)
    return shared
