"""Draft trees as plain values, from a policy's trees and from batched ones."""

from collections.abc import Mapping
from typing import TypeAlias

from underpaint.algos.batched.spec import TreeBatch
from underpaint.algos.tree import DraftTree

Children: TypeAlias = Mapping[tuple[int, ...], tuple[int, ...]]
"""By the tokens on the way to a node: the tokens of its children, in sibling order; nodes without any are left out."""


def children_of(tree: DraftTree) -> Children:
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for node, below in enumerate(tree.children()):
        if below:
            above = tuple(tree.tokens[list(tree.path_to(node))].tolist())
            found[above] = tuple(tree.tokens[below].tolist())
    return found


def batched_children(trees: TreeBatch) -> dict[int, Children]:
    """By image."""
    found: dict[int, Children] = {}
    for place, image in enumerate(trees.images.tolist()):
        own: dict[tuple[int, ...], tuple[int, ...]] = {}
        last: dict[int, tuple[int, ...]] = {0: ()}
        for level in trees.levels:
            if place >= level.rows.shape[0]:
                break
            paths = {}
            for node, ranked in enumerate(level.tokens[place].tolist()):
                kept = [rank for rank in range(len(ranked)) if level.in_tree[place, node, rank]]
                if kept:
                    above = last[int(level.above[place, node])]
                    own[above] = tuple(ranked[rank] for rank in kept)
                    paths |= {node * len(ranked) + rank: (*above, ranked[rank]) for rank in kept}
            last = paths
        found[image] = own
    return found
