"""Static trees: a shape that is fixed before drafting, and the functions that fill it with tokens."""

from functools import lru_cache, partial
from typing import Protocol

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, FromUniforms, Role
from underpaint.algos.draft.fused import FilledTree, children, fill_fused
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.draft.tree_builder import point_tree
from underpaint.algos.protocols import Budget, Expander
from underpaint.algos.tree import DraftTree, Drawn, Shape


class _Pick(Protocol):
    def __call__(self, distributions: FloatArray, counts: list[int], first: int) -> list[list[int]]:
        """Return up to `counts[i]` tokens from each distributions[i]; the first token becomes node `first`."""
        ...


@lru_cache(maxsize=64)
def ranked_shape(widths: tuple[int, ...]) -> Shape:
    """Return the tree with `widths[l]` nodes at level l + 1 whose paths have the smallest sums of ranks.

    A node's rank is its position among its siblings (0 is drawn first). Lower ranks are accepted more often, so they
    get more descendants; ties go to the node whose parent comes first.
    """
    parents = [-1]
    level = [(0, 0)]
    for width in widths:
        room = [(cost + rank, node, rank) for node, cost in level for rank in range(width)]
        nodes = sorted(sorted(room)[:width], key=lambda child: child[1:])
        first = len(parents)
        parents.extend(parent for _, parent, _ in nodes)
        level = [(first + turn, cost) for turn, (cost, _, _) in enumerate(nodes)]
    return tuple(parents)


def chain_shape(length: int) -> Shape:
    """Return the shape of a chain of `length` drafted nodes."""
    return tuple(range(-1, length))


@lru_cache(maxsize=256)
def within(shape: Shape, budget: Budget) -> Shape:
    """Return the part of `shape` that fits `budget`: nodes up to its depth, those with the least depth plus ranks."""
    depths, costs, children = [0], [0], [0] * len(shape)
    for node in range(1, len(shape)):
        above = shape[node]
        depths.append(depths[above] + 1)
        costs.append(costs[above] + 1 + children[above])
        children[above] += 1
    allowed = [node for node in range(len(shape)) if depths[node] <= max(0, budget.max_depth)]
    nodes = sorted(sorted(allowed, key=lambda node: (costs[node], node))[: max(1, budget.max_nodes)])
    place = {node: turn for turn, node in enumerate(nodes)}
    return tuple(place[shape[node]] if node else -1 for node in nodes)


def fill_sampled(
    shape: Shape, drafter: Expander, root: int, chance: Chance, drawn: Drawn = "without_replacement"
) -> DraftTree:
    """Fill `shape` with siblings drawn from the drafter's distributions, with one drafter pass per level.

    Args:
        shape: The parents of the tree's nodes.
        drafter: The drafter that fills the tree.
        root: The token of the root.
        chance: The randomness of the cycle; node i is drawn at `At(Role.DRAFT, i)`.
        drawn: With "without_replacement", a distribution with fewer possible tokens than the shape has children gives
            only that many, and the subtrees of the missing nodes are left out. With "iid", siblings are drawn with
            replacement and may be equal. Without siblings, both are the same.

    Returns:
        The tree, with the distributions that its nodes were drawn from.
    """
    repeats = drawn == "iid" and len(set(shape)) < len(shape)

    def pick(distributions: FloatArray, counts: list[int], first: int) -> list[list[int]]:
        picked: list[list[int]] = []
        for distribution, count in zip(distributions, counts, strict=True):
            picked.append(_draw_siblings(distribution, count, first, chance, repeats))
            first += len(picked[-1])
        return picked

    filled = None
    if isinstance(chance, FromUniforms) and not repeats:  # a drafter's single call draws without replacement
        filled = fill_fused(shape, drafter, root, partial(chance.uniforms, Role.DRAFT))
    tokens, parents, draft_rows, distributions = filled or _fill(shape, drafter, root, pick)
    return DraftTree(
        tokens=tokens,
        parents=parents,
        drawn=drawn,
        draft_probs=np.concatenate(distributions) if distributions else np.empty((0, drafter.vocab_size)),
        draft_rows=draft_rows,
    )


def fill_top_k(shape: Shape, drafter: Expander, root: int) -> DraftTree:
    """Fill `shape` with the likeliest tokens as point proposals, with one drafter pass per level."""

    def pick(distributions: FloatArray, counts: list[int], first: int) -> list[list[int]]:
        likeliest = top(distributions, max(counts))
        rows = zip(likeliest.tokens.tolist(), likeliest.probs.tolist(), counts, strict=True)
        return [
            [token for token, prob in zip(tokens[:count], probs[:count], strict=True) if prob > 0.0]
            for tokens, probs, count in rows
        ]

    tokens, parents, _, _ = fill_fused(shape, drafter, root) or _fill(shape, drafter, root, pick)
    return point_tree(tokens, parents, drafter.vocab_size)


def _draw_siblings(distribution: FloatArray, count: int, first: int, chance: Chance, repeats: bool) -> list[int]:
    """Draw `count` tokens, for the nodes from `first` on; repeats: With replacement."""
    # A distribution cut by top-k has few nonzero entries; drawing from these alone gives the same result faster.
    support = distribution.nonzero()[0]
    weights = distribution[support].astype(np.float64)
    tokens: list[int] = []
    for node in range(first, first + (count if repeats else min(count, support.size))):
        place = chance.draw(weights, At(Role.DRAFT, node))
        if not repeats:
            weights[place] = 0.0
        tokens.append(int(support[place]))
    return tokens


def _fill(shape: Shape, drafter: Expander, root: int, pick: _Pick) -> FilledTree:
    """Fill the shape level by level: expand the nodes that have children, and pick these children."""
    below = children(shape)
    drafted, parents, draft_rows, level_distributions = [root], [-1], [-1], list[FloatArray]()
    rows = 0
    level = [(0, 0)] if below[0] else []  # (node of the tree, node of the shape)
    while level:
        # A drafter numbers nodes in order of expansion, so a node's number is the row of its distribution.
        above = [parents[node] for node, _ in level]
        ids = [draft_rows[node] if node >= 0 else -1 for node in above]
        distributions = drafter.expand(np.array([drafted[node] for node, _ in level]), np.array(ids))
        level_distributions.append(distributions)
        picked = pick(distributions, [len(below[place]) for _, place in level], len(drafted))
        deeper = []
        for (node, place), tokens in zip(level, picked, strict=True):
            draft_rows[node] = rows
            rows += 1
            for token, child in zip(tokens, below[place], strict=False):  # a short distribution fills fewer places
                if below[child]:
                    deeper.append((len(drafted), child))
                drafted.append(token)
                parents.append(node)
                draft_rows.append(-1)
        level = deeper
    return FilledTree(np.array(drafted), np.array(parents), np.array(draft_rows), level_distributions)
