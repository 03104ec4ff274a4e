"""Distributions by quantiles: exact volumes, strips between corners that agree, and what is no decision tree."""

from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underpaint.sim.certify.quantiles import TooManyBoxes, find_boxes

BITS = 20


def shares(decide, dims, bits=BITS, **options):
    boxes = find_boxes(
        lambda items, points: [decide(*point) for point in (points * 2.0**-bits).tolist()], [1.0], dims, bits, **options
    )
    parts = {}
    for box in boxes.boxes:
        parts.setdefault(box.outcome, []).append(box.volume(bits))
    return {outcome: fsum(volumes) for outcome, volumes in parts.items()}, boxes


@st.composite
def decision_trees(draw, dims=3, depth=3):
    """A nested comparison of uniforms with thresholds on a coarse grid."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.integers(0, 3))
    return (
        draw(st.integers(0, dims - 1)),
        draw(st.integers(0, 16)) / 16,
        draw(decision_trees(dims, depth - 1)),
        draw(decision_trees(dims, depth - 1)),
    )


def decide(tree, uniforms):
    while isinstance(tree, tuple):
        dim, threshold, below, above = tree
        tree = below if uniforms[dim] < threshold else above
    return tree


def volumes(tree, low, high):
    if not isinstance(tree, tuple):
        return {tree: float(np.prod(np.subtract(high, low)))}
    dim, threshold, below, above = tree
    cut = min(max(threshold, low[dim]), high[dim])
    parts = {}
    for half, own_low, own_high in ((below, low[dim], cut), (above, cut, high[dim])):
        if own_low < own_high:
            half_volumes = volumes(
                half, (*low[:dim], own_low, *low[dim + 1 :]), (*high[:dim], own_high, *high[dim + 1 :])
            )
            for outcome, volume in half_volumes.items():
                parts[outcome] = parts.get(outcome, 0.0) + volume
    return parts


@settings(max_examples=60, deadline=None)
@given(decision_trees())
def test_decision_trees_are_measured_exactly(tree):
    expected = volumes(tree, (0.0,) * 3, (1.0,) * 3)
    actual, _ = shares(lambda *uniforms: decide(tree, uniforms), 3)
    assert set(actual) == set(expected)
    assert all(abs(actual[outcome] - expected[outcome]) < 1e-12 for outcome in expected)


def test_a_single_uniform_of_zero_is_found():
    actual, _ = shares(lambda one, two: one == 0.0, 2, bits=53)
    assert actual == {True: 2.0**-53, False: 1.0 - 2.0**-53}


def test_the_largest_uniform_below_one_is_found():
    actual, _ = shares(lambda one: one > 1.0 - 2.0**-52, 1, bits=53)
    assert actual[True] == 2.0**-53


def test_a_strip_between_corners_that_agree_is_found():
    actual, _ = shares(lambda one, two: 0.4 <= one < 0.45, 2)
    assert abs(actual[True] - 0.05) < 2**-BITS


def test_what_stays_unseen_is_told():
    _, boxes = shares(lambda one: one < 0.5, 1, checks=1000)
    assert boxes.unseen == pytest.approx(np.log(1000) / 1000)


def test_a_diagonal_is_no_decision_tree():
    with pytest.raises(TooManyBoxes, match="more than one uniform"):
        shares(lambda one, two: one < two, 2, most=3000)


def test_many_uniforms_probe_fewer_corners():
    actual, _ = shares(lambda *uniforms: sum(one < 0.25 for one in uniforms[:2]), 9)
    assert actual == pytest.approx({0: 0.5625, 1: 0.375, 2: 0.0625})
