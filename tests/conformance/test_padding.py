"""A pass in buffers made for more positions computes what a pass in buffers of its own size does."""

import numpy as np
import pytest

from tests.conformance.families import Family
from tests.conformance.test_engine import TOKENS, feed_one_by_one, open_drafter, open_target
from underpaint.algos.step import Scored
from underpaint.artifacts.decoder_graph import (
    CHAIN_LEVELS,
    EXTERNAL_COND_ROWS,
    FEATURES,
    PREDICTED_FEATURES,
    TREE_DRAWN,
    TREE_FRONTIER,
    TREE_RANKED,
    TREE_UNIFORMS,
)
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.pass_inputs import PassInputs, causal, fill

COUNT, SIZE, DRAWN = 3, 7, 4


def buffers_of(engine: object, rows: int) -> dict[str, np.ndarray]:
    """Full of what a pass before left behind."""
    shape, slots = engine.config, engine.cache.slots  # type: ignore[attr-defined]
    buffers = {
        "tokens": np.full((rows, SIZE), 5, dtype=np.int64),
        "cells": np.full((rows, SIZE), 2, dtype=np.int64),
        "bias": np.zeros((rows, SIZE, slots + SIZE), dtype=np.float32),
    }
    named = {each.name for each in engine._buffers._session.get_inputs()}  # type: ignore[attr-defined]
    if "features" in named:
        buffers["features"] = np.full((rows, SIZE, shape.dim), 3, dtype=np.float32)
    return buffers


def check(engine: object, features: np.ndarray | None) -> None:
    """`engine.run` against the same graph on padded buffers."""
    cells, tokens = np.arange(DRAWN, DRAWN + COUNT), TOKENS[DRAWN : DRAWN + COUNT]
    memory = engine.memory  # type: ignore[attr-defined]
    plain = engine.run(tokens, cells, causal(COUNT), features=features)  # type: ignore[attr-defined]
    buffers = buffers_of(engine, plain.logits.shape[0])
    fill(buffers, PassInputs(tokens, cells, causal(COUNT), engine.cache.past_bias, features))  # type: ignore[attr-defined]
    for index in range(len(memory.keys)):
        buffers[f"past_key_{index}"], buffers[f"past_value_{index}"] = memory.keys[index], memory.values[index]
    session = engine._buffers._session  # type: ignore[attr-defined]
    named = {each.name for each in session.get_inputs()}
    plain_pass = {  # a chain of one level, and no tree
        CHAIN_LEVELS: np.array(1),
        TREE_FRONTIER: np.zeros((0, 1), dtype=np.int64),
        TREE_UNIFORMS: np.zeros((0, 1, 1)),
        TREE_RANKED: np.array(False),
        TREE_DRAWN: np.array(False),
    }
    extra_inputs = {EXTERNAL_COND_ROWS: engine._cond_rows, **plain_pass, **engine._sampling.arrays}  # type: ignore[attr-defined]
    buffers |= {name: array for name, array in extra_inputs.items() if name in named}
    names = [each.name for each in session.get_outputs()]
    padded = dict(zip(names, session.run(None, buffers), strict=True))
    assert padded["logits"].shape[1] == SIZE
    np.testing.assert_allclose(padded["logits"][:, :COUNT], plain.logits, atol=1e-5)
    padded_features = padded[PREDICTED_FEATURES if PREDICTED_FEATURES in padded else FEATURES]
    np.testing.assert_allclose(padded_features[:, :COUNT], plain.features, atol=1e-5)
    for index in range(len(memory.keys)):
        np.testing.assert_allclose(padded[f"new_key_{index}"][:, :, :COUNT], memory.new_keys[index], atol=1e-5)
        np.testing.assert_allclose(padded[f"new_value_{index}"][:, :, :COUNT], memory.new_values[index], atol=1e-5)
    assert all(np.isfinite(each).all() for each in padded.values())


def test_padding_leaves_no_trace(family: Family) -> None:
    target = open_target(family)
    target.begin()
    feed_one_by_one(target, TOKENS[:DRAWN])
    check(target.engine, None)


def test_a_drafters_padding_leaves_no_trace(family: Family) -> None:
    target, drafter = open_target(family), open_drafter(family)
    start = target.begin()
    assert start.features is not None
    drafter.begin(Scored(start.probs[-1:], start.features[:, -1:]))
    width = drafter.engine.config.dim
    features = np.random.default_rng(1).standard_normal((2, COUNT, width)).astype(np.float32)
    check(drafter.engine, features)
    with pytest.raises(EngineError, match="reads features, got none"):
        fill(
            buffers_of(drafter.engine, 2),
            PassInputs(TOKENS[:1], np.array([0]), causal(1), drafter.engine.cache.past_bias, None),
        )
