"""The distributions that a graph makes of logits against those of `algos.rows`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from underpaint.algos.arrays import FloatArray
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.artifacts.decoder_graph import SAMPLING_INPUTS, TOP_P
from underpaint.export import probabilities as exported
from underpaint.export.graph import GraphWriter
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.sampling_inputs import SamplingInputs

VOCAB = 6
LOGITS = st.sampled_from([0.0, 1.0, 1.0 + 2.0**-20, -3.0, 40.0, -90.0])
"""Few values, so that ties with the last kept are common, and probabilities that float32 rounds to 0."""


def graph_of(write: Callable[[GraphWriter, int], None], path: Path) -> Any:
    graph = GraphWriter("probabilities")
    graph.input("logits", "float32", ["B", "T", VOCAB])
    write(graph, VOCAB)
    graph.write(path)
    return open_session(path, EngineContext(threads=1))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return graph_of(exported.write_probs, tmp_path_factory.mktemp("probs") / "distributions.onnx")


def made(session: Any, logits: FloatArray, sampler: SamplingParams) -> FloatArray:
    sampling = SamplingInputs(len(logits), frozenset(each.name for each in session.get_inputs()))
    sampling.set(sampler, VOCAB)
    assert sampling.complete
    found: FloatArray = session.run(None, {"logits": logits, **sampling.arrays})[0]
    return found


def check(session: Any, logits: FloatArray, sampler: SamplingParams) -> None:
    expected, found = sampling_probs(logits, sampler), made(session, logits, sampler)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-6)
    cut = (expected == 0.0) & (sampling_probs(logits.astype(np.float64), sampler) == 0.0)
    np.testing.assert_array_equal(found[cut], 0.0)  # what top-k cuts has no probability, not a small one


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 2),
    values=st.lists(LOGITS, min_size=2 * VOCAB * 2, max_size=2 * VOCAB * 2),
    top_k=st.integers(0, VOCAB + 1),
    temperature=st.sampled_from([0.25, 1.0, 2.0]),
    guidance=st.sampled_from([1.0, 1.5, 3.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
)
def test_a_graph_makes_the_distributions_of_its_sampler(
    session: Any, rows: int, values: list[float], top_k: int, temperature: float, guidance: float, top_p: float
) -> None:
    logits = np.array(values[: rows * 2 * VOCAB], dtype=np.float32).reshape(rows, 2, VOCAB)
    params = SamplingParams(guidance if rows == 2 else 1.0, temperature, top_k, top_p)
    # Where float32 and float64 cut the nucleus at two places, the sum before a token is top-p to the last bit.
    assume(np.array_equal(sampling_probs(logits, params) > 0, sampling_probs(logits.astype(np.float64), params) > 0))
    check(session, logits, params)


TIED = np.array([[[1.0, 0.5, 0.5, -3.0, 0.0, 0.0]]], dtype=np.float32)


@pytest.mark.parametrize(
    ("old", "new"), [("Less", "LessOrEqual"), ("Mul", "Div"), ("Softmax", "Sigmoid")], ids=lambda name: name
)
def test_a_planted_bug_is_seen(
    old: str, new: str, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = GraphWriter.node

    def planted(graph: GraphWriter, kind: str, *inputs: object, **attributes: object) -> str:
        attributes = {} if kind == old == "Softmax" else attributes
        return node(graph, new if kind == old else kind, *inputs, **attributes)  # type: ignore[arg-type]

    sampler = SamplingParams(top_k=2, temperature=0.5)
    check(session, TIED, sampler)
    monkeypatch.setattr(GraphWriter, "node", planted)
    wrong = graph_of(exported.write_probs, tmp_path / "wrong.onnx")
    with pytest.raises(AssertionError):
        check(wrong, TIED, sampler)


def test_what_no_graph_computes_is_left_to_the_host() -> None:
    known = frozenset(spec.name for spec in SAMPLING_INPUTS)
    for params, accepted in (
        (SamplingParams(temperature=0.0), known),
        (SamplingParams(), known - {TOP_P}),
        (SamplingParams(), frozenset()),
    ):
        sampling = SamplingInputs(1, accepted)
        sampling.set(params, VOCAB)
        assert not sampling.complete
        assert bool(sampling.arrays) == (accepted == known)
