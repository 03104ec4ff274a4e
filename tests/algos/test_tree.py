"""The draft tree's own views, and the errors that a malformed one meets."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from underpaint.algos.tree import NO_TOKEN, DraftTree, root_only
from underpaint.strategies import shapes

UNIFORM = np.full((1, 4), 0.25)
#      0
#     / \
#    1   2
#   / \   \
#  3   5   4
TREE = DraftTree(
    tokens=np.array([9, 0, 1, 2, 3, 1]),
    parents=np.array([-1, 0, 0, 1, 2, 1]),
    drawn="without_replacement",
    draft_probs=UNIFORM,
    draft_rows=np.array([0, 0, 0, -1, -1, -1]),
)


def test_views() -> None:
    TREE.check(4)
    assert TREE.size == 6
    assert TREE.children() == [[1, 2], [3, 5], [4], [], [], []]
    assert TREE.depths().tolist() == [0, 1, 1, 2, 2, 2]
    assert TREE.depth == 2
    assert TREE.path_to(5) == (1, 5)
    assert TREE.path_to(0) == ()
    assert TREE.visible()[5].tolist() == [True, True, False, False, False, True]
    assert np.array_equal(TREE.draft_distribution(2), UNIFORM[0])


@given(shape=shapes(8))
def test_views_agree_on_any_shape(shape: tuple[int, ...]) -> None:
    count = len(shape) + 1
    tree = DraftTree(np.arange(count), np.array([-1, *shape]), "top_k", np.empty((0, 99)), np.full(count, -1))
    tree.check(99)
    visible, depths = tree.visible(), tree.depths()
    for node in range(count):
        path = tree.path_to(node)
        assert len(path) == depths[node]
        assert set(np.flatnonzero(visible[node]).tolist()) == {0, *path, node}
    assert sorted(child for below in tree.children() for child in below) == list(range(1, count))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.array([9, 0])}, "tokens, parents and draft_rows must be"),
        ({"tokens": np.empty(0, dtype=np.int64)}, "tokens, parents and draft_rows must be"),
        ({"draft_rows": np.zeros(5, dtype=np.int64)}, "tokens, parents and draft_rows must be"),
        ({"drawn": "sorted"}, "drawn must be one of iid, without_replacement, top_k"),
        ({"parents": np.array([0, 0, 0, 1, 2, 1])}, "tree.parents: expected"),
        ({"parents": np.array([-1, 0, 0, 4, 2, 1])}, "tree.parents: expected.*sort the nodes"),
        ({"parents": np.array([-1, 0, 2, 1, 2, 1])}, "tree.parents: expected"),
        ({"parents": np.array([-1, -1, 0, 1, 2, 1])}, "tree.parents: expected"),
        ({"tokens": np.array([9, 0, 1, 2, 4, 1])}, "tree.tokens: expected 0 <= token < 4"),
        ({"tokens": np.array([9, 0, -1, 2, 3, 1])}, "tree.tokens: expected 0 <= token < 4"),
        ({"tokens": np.array([9, 0, 1, 1, 3, 1])}, "tree.tokens: .*duplicate siblings"),
        ({"drawn": "top_k", "tokens": np.array([9, 1, 1, 2, 3, 1])}, "tree.tokens: .*duplicate siblings"),
        ({"draft_probs": UNIFORM[0]}, "tree.draft_probs: expected"),
        ({"draft_probs": np.full((1, 5), 0.2)}, "tree.draft_probs: expected"),
        ({"draft_probs": UNIFORM * 2}, "tree.draft_probs: expected rows"),
        ({"draft_probs": UNIFORM * np.nan}, "tree.draft_probs: expected rows"),
        ({"draft_probs": np.array([[1.5, -0.5, 0.0, 0.0]])}, "tree.draft_probs: expected rows"),
        ({"draft_rows": np.array([1, 0, 0, -1, -1, -1])}, "tree.draft_rows: expected rows below 1"),
        ({"draft_rows": np.array([-2, 0, 0, -1, -1, -1])}, "tree.draft_rows: expected rows below 1"),
    ],
)
def test_a_malformed_tree_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TREE, **change).check(4)


def test_independent_siblings_may_repeat() -> None:
    replace(TREE, drawn="iid", tokens=np.array([9, 1, 1, 2, 3, 2])).check(4)


def test_a_distribution_that_was_not_kept_is_missed() -> None:
    with pytest.raises(ValueError, match="node 3 keeps no draft distribution"):
        TREE.draft_distribution(3)


def test_the_tree_without_proposals() -> None:
    tree = root_only(NO_TOKEN, 4)
    tree.check(4)
    assert (tree.size, tree.depth) == (1, 0)
