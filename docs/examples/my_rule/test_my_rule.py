from hypothesis import given
from my_rule import keep_one

from underpaint.algos.enumeration import enumerate_verdicts
from underpaint.testing import assert_lossless, draft_trees


def test_lossless():
    assert_lossless(keep_one, drawn="top_k")


@given(draft_trees("top_k"))
def test_probabilities_add_up(made):
    tree, probs = made
    assert abs(sum(enumerate_verdicts(keep_one, tree, probs).values()) - 1.0) < 1e-12
