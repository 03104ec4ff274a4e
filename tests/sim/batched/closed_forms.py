"""Closed forms that simulations have to agree with."""

from collections.abc import Sequence

from underpaint.algos.tree import Shape


def chain_tokens(acceptance: float, length: int) -> float:
    """Expected tokens per cycle of a chain whose tokens are each kept with probability `acceptance`, independently.

    (1 - a^(length + 1)) / (1 - a), the extra token included (arXiv 2211.17192, equation 1).
    """
    return float(sum(acceptance**step for step in range(length + 1)))


def tree_tokens(shape: Shape, by_rank: Sequence[float]) -> float:
    """Expected tokens per cycle of a tree whose j-th child is the kept one with probability by_rank[j].

    1 plus, over nodes, the product along the path (Sequoia's positional acceptance, arXiv 2402.12374, section 3.1).
    """
    reached, children = [1.0], [0] * len(shape)
    for parent in shape[1:]:
        reached.append(reached[parent] * by_rank[children[parent]])
        children[parent] += 1
    return float(sum(reached))
