"""The largest acceptance that any lossless rule can reach: an optimal transport from the proposals to the target.

The set S of proposed tokens has a known distribution, and the output must follow the target's distribution p. By the
min-cut of this transport, the largest probability that the output is one of the proposals is

    min over sets H of tokens:  p(H) + 1 - P(every proposal lies in H)

arXiv 2310.15141 (SpecTr) states the transport problem; arXiv 2502.18779 gives the minimum over sets.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from underpaint.algos.accept.walk import normalised
from underpaint.algos.arrays import FloatArray

ProposalSets: TypeAlias = Mapping[frozenset[int], float]
"""The probability of each set of distinct proposed tokens (frozensets of token ids)."""

MOST_TOKENS = 16
"""The largest vocabulary, because all 2**V sets of tokens are enumerated."""


def best_acceptance(target: FloatArray, proposals: ProposalSets) -> float:
    """Return the largest probability that an output with distribution `target` [V] is among the proposals.

    The result is exact. Raises ValueError if V is above MOST_TOKENS.
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
    """Return 1 - TV of the distributions in rows [..., V]: the best lossless acceptance of one proposal."""
    shared: FloatArray = np.minimum(target, draft).sum(axis=-1)
    return shared
