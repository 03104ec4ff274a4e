"""Trees grown on the device are the host policy's, from the same distributions and noise, image by image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.grown import MAX_NODES, MOST_LEVELS, by_device, by_host
from tests.runtime.device.trees import UNIFORMS
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Policy
from underpaint.runtime.device.kernels.walk import MOST_TOKENS
from underpaint.strategies import distributions


@st.composite
def planned(draw: st.DrawFn, name: str) -> Policy:
    """Sequoia: costs and chances for which trees of every size are best."""
    chances = st.lists(st.sampled_from([0.0, 0.1, 0.4, 0.8, 0.95]), min_size=1, max_size=3)
    verify = ((1, 1.0), (9, draw(st.sampled_from([1.01, 1.5, 4.0]))))
    return POLICIES[name].make(
        acceptance=tuple(draw(chances)),
        max_depth=draw(st.integers(1, 4)),
        verify_ms=verify,
        draft_ms=draw(st.sampled_from([0.01, 0.3])),
    )


@st.composite
def grown_while(draw: st.DrawFn) -> Policy:
    """OPT-Tree; no sum of a few whole weights comes near these thresholds but 0."""
    return POLICIES["opt"].make(
        total_tokens=draw(st.integers(1, 8)),
        threshold=draw(st.sampled_from([0.0, 0.0517, 0.1613, 0.3517])),
        max_depth=draw(st.integers(1, 4)),
    )


@st.composite
def ranked(draw: st.DrawFn) -> Policy:
    return POLICIES["eagle2"].make(
        depth=draw(st.integers(1, 3)), top_k=draw(st.integers(1, 3)), total_tokens=draw(st.integers(1, 7))
    )


@st.composite
def static(draw: st.DrawFn, name: str) -> Policy:
    return POLICIES[name].make(widths=tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))))


KINDS = {
    "sequoia": planned("sequoia"),
    "sequoia_top_k": planned("sequoia_top_k"),
    "opt": grown_while(),
    "eagle1": static("eagle1"),
    "static_top_k": static("static_top_k"),
    "eagle2": ranked(),
    "delayed": st.builds(POLICIES["delayed"].make, st.integers(1, 3), st.integers(0, 2), st.integers(1, 2)),
}
KINDS |= {
    spec.name: st.just(spec.make())
    for spec in POLICIES
    if spec.device and not spec.make.__module__.startswith("underpaint.")
}
"""Policies from outside with a device form join, as `UNDERPAINT_PLUGINS` names them."""


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=4)
@given(data=st.data())
def test_a_tree_is_the_host_s(name: str, data: st.DataObject) -> None:
    """Three images, the second cycle in buffers that the first has filled."""
    vocab_size = data.draw(st.sampled_from([2, 3, 7]))
    policy = data.draw(KINDS[name])
    rows = np.stack([data.draw(distributions(vocab_size)) for _ in range(5)]).astype(np.float32)
    room = st.lists(st.integers(0, MOST_LEVELS), min_size=3, max_size=3)
    cycles = [data.draw(room), data.draw(room)]
    roots = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=3, max_size=3))
    noise = [[data.draw(UNIFORMS) for _ in range(MAX_NODES)] for _ in range(3)]
    uniforms = np.array(noise)
    trees = by_device(policy, rows, cycles, roots, uniforms)
    for image, tree in enumerate(trees):
        assert tree == by_host(policy, rows, cycles[1][image], roots[image], uniforms[image]), image


def test_siblings_are_drawn_of_the_least_that_others_leave() -> None:
    """Of a row of 1, 1e-20 and 1e-25 the second child is the second token, and the third the third."""
    rows = np.array([[1.0, 1e-20, 0.0, 1e-25]] * 5, dtype=np.float32)
    policy, uniforms = POLICIES["eagle1"].make(widths=(3, 2)), np.full((1, MAX_NODES), 0.5)
    trees = by_device(policy, rows, [[2]], [1], uniforms)
    assert trees == [by_host(policy, rows, 2, 1, uniforms[0])]
    assert trees[0].tokens[1:4] == [0, 1, 3]


def test_siblings_are_drawn_from_every_part_of_the_largest_vocabulary() -> None:
    """The second half of 65,536 codes lies in the last 32 of the 64 parts that a row is drawn by."""
    rows = np.random.default_rng(3).random((5, MOST_TOKENS)).astype(np.float32)
    rows /= rows.sum(axis=1, keepdims=True)
    policy, uniforms = POLICIES["eagle1"].make(widths=(4,)), np.linspace(0.999, 0.55, MAX_NODES)[None]
    trees = by_device(policy, rows, [[1]], [1], uniforms)
    assert trees == [by_host(policy, rows, 1, 1, uniforms[0])]
    assert min(trees[0].tokens[1:5]) > MOST_TOKENS // 2
