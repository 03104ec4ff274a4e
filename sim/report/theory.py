"""Closed forms that simulations have to agree with."""

from collections.abc import Sequence

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.fused import Shape


def chain_tokens(acceptance: float, length: int) -> float:
    """Expected tokens per cycle of a chain whose tokens are each kept with probability `acceptance`, independently.

    (1 - a^(length + 1)) / (1 - a), the extra token included (arXiv 2211.17192, equation 1).
    """
    _check_share(acceptance)
    return float(sum(acceptance**step for step in range(length + 1)))


def tree_tokens(shape: Shape, by_rank: Sequence[float]) -> float:
    """Expected tokens per cycle of a tree whose j-th child is the kept one with probability by_rank[j].

    1 plus, over nodes, the product along the path (Sequoia's positional acceptance, arXiv 2402.12374, section 3.1).
    by_rank: non-negative, of sum at most 1, at least as long as the most children of a node.
    """
    if any(share < 0.0 for share in by_rank) or sum(by_rank) > 1.0 + 1e-9:
        raise ValueError(f"tree_tokens: expected shares of sum at most 1, got {list(by_rank)}")
    reached, children = [1.0], [0] * len(shape)
    for parent in shape[1:]:
        rank = children[parent]
        children[parent] += 1
        if rank >= len(by_rank):
            raise ValueError(f"tree_tokens: a node has more than {len(by_rank)} children; give a longer vector")
        reached.append(reached[parent] * by_rank[rank])
    return float(sum(reached))


def speedup(tokens: float, depth: float, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Tokens per cycle over what the cycle costs, in plain steps: verify_cost + depth * draft_cost."""
    return tokens / (verify_cost + depth * draft_cost)


def best_length(acceptance: float, draft_cost: float, most: int = 64) -> int:
    """The chain length of most tokens per time, where a drafter pass costs `draft_cost` plain steps; 0 is plain AR."""
    rates = [speedup(chain_tokens(acceptance, length), length, draft_cost) for length in range(most + 1)]
    return int(np.argmax(rates))


def overlap(target: FloatArray, draft: FloatArray) -> FloatArray:
    """1 - TV of the distributions in rows [..., V]: what one drafted token is kept with, and the most that any rule can
    do."""
    shared: FloatArray = np.minimum(target, draft).sum(axis=-1)
    return shared


def tokens_to_double(draft_cost: float, depth: float, verify_cost: float = 1.0) -> float:
    """Tokens per cycle that a speed-up of 2 takes."""
    return 2.0 * (verify_cost + depth * draft_cost)


def _check_share(acceptance: float) -> None:
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"theory: acceptance must be in [0, 1], got {acceptance!r}")
