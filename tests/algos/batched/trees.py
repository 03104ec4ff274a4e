"""Draft trees as plain values, from a policy's trees and from batched ones."""

from collections.abc import Mapping
from typing import TypeAlias

from underpaint.algos.batched.spec import TreeBatch
from underpaint.algos.tree import DraftTree

Children: TypeAlias = Mapping[tuple[tuple[int, int], ...], tuple[int, ...]]
"""By the way to a node: the tokens of its children, in sibling order; nodes without any are left out.

A step of the way is a sibling's turn and its token: siblings may be equal."""


def children_of(tree: DraftTree) -> Children:
    child_tokens: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
    children, tokens = tree.children(), tree.tokens.tolist()
    turns = {node: turn for below in children for turn, node in enumerate(below)}
    for node, below in enumerate(children):
        if below:
            above = tuple((turns[one], tokens[one]) for one in tree.path_to(node))
            child_tokens[above] = tuple(tokens[one] for one in below)
    return child_tokens


def batched_children(trees: TreeBatch) -> dict[int, Children]:
    """By image."""
    image_children: dict[int, Children] = {}
    for place, image in enumerate(trees.images.tolist()):
        child_tokens: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
        last: dict[int, tuple[tuple[int, int], ...]] = {0: ()}
        for level in trees.levels:
            if place >= level.rows.shape[0]:
                break
            paths = {}
            for node, ranked in enumerate(level.tokens[place].tolist()):
                ranks = [rank for rank in range(len(ranked)) if level.in_tree[place, node, rank]]
                if ranks:
                    above = last[int(level.above[place, node])]
                    child_tokens[above] = tuple(ranked[rank] for rank in ranks)
                    paths |= {node * len(ranked) + rank: (*above, (rank, ranked[rank])) for rank in ranks}
            last = paths
        image_children[image] = child_tokens
    return image_children
