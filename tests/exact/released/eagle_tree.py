"""EAGLE's released draft tree, written anew for tests: `depth` counts the passes after the first one."""

import numpy as np

from underpaint.algos.draft.tree_builder import best_first
from underpaint.algos.protocols import Expander


def released_tree(drafter: Expander, root: int, depth: int, top_k: int, total: int) -> list[tuple[int, ...]]:
    """The paths of the nodes of the tree, the root left out, in lexicographic order.

    One pass below the root, then `depth` passes: `depth` + 1 levels in `depth` + 1 passes. The `total` best of all
    candidates are kept. top_k: nodes expanded a level and children of each, at most V.
    """

    def likeliest(rows: np.ndarray) -> np.ndarray:
        return np.argsort(-rows, axis=1, kind="stable")[:, :top_k]

    rows = drafter.expand(np.array([root]), np.array([-1]))
    tokens = likeliest(rows)
    paths, scores = [(int(token),) for token in tokens[0]], list(rows[0, tokens[0]])
    frontier, fed_count, first = list(range(top_k)), 1, [0] * top_k
    for _ in range(depth):
        rows = drafter.expand(np.array([paths[node][-1] for node in frontier]), np.array(first))
        tokens, start = likeliest(rows), len(paths)
        for place, node in enumerate(frontier):
            for token in tokens[place]:
                paths.append((*paths[node], int(token)))
                scores.append(scores[node] * rows[place, token])
        best = best_first(np.array(scores[start:]), top_k)
        frontier, first = [start + int(one) for one in best], [fed_count + int(one) // top_k for one in best]
        fed_count += top_k
    return sorted(paths[int(node)] for node in best_first(np.array(scores), total))
