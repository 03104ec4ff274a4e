"""The distributions that a graph makes of logits against those of `algos.rows`."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from underpaint.algos.arrays import FloatArray
from underpaint.algos.rows import TOP_P_ROUNDING, SamplingParams, sampling_probs
from underpaint.artifacts.decoder_graph import SAMPLING_INPUTS, TOP_P
from underpaint.export import probabilities as exported
from underpaint.export.graph import GraphWriter
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.pass_inputs import SamplingInputs

VOCAB = 6
LOGITS = st.sampled_from([0.0, 1.0, 1.0 + 2.0**-20, -3.0, 40.0, -90.0])
"""Few values, so that ties with the last kept are common, and probabilities that float32 rounds to 0."""


def graph_of(write: Callable[[GraphWriter, int], None], path: Path, vocab_size: int = VOCAB) -> Any:
    graph = GraphWriter("probabilities")
    graph.input("logits", "float32", ["B", "T", vocab_size])
    write(graph, vocab_size)
    graph.write(path)
    return open_session(path, EngineContext(threads=1))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return graph_of(exported.write_probs, tmp_path_factory.mktemp("probs") / "distributions.onnx")


def made(session: Any, logits: FloatArray, sampler: SamplingParams) -> FloatArray:
    sampling = SamplingInputs(len(logits), frozenset(each.name for each in session.get_inputs()))
    sampling.set(sampler, logits.shape[-1])
    assert sampling.complete
    probs: FloatArray = session.run(None, {"logits": logits, **sampling.arrays})[0]
    return probs


def check(session: Any, logits: FloatArray, sampler: SamplingParams) -> None:
    expected, actual = sampling_probs(logits, sampler), made(session, logits, sampler)
    np.testing.assert_allclose(actual, expected, atol=2e-6)
    np.testing.assert_allclose(actual.sum(axis=1), 1.0, atol=1e-6)
    cut = (expected == 0.0) & (sampling_probs(logits.astype(np.float64), sampler) == 0.0)
    np.testing.assert_array_equal(actual[cut], 0.0)  # what top-k cuts has no probability, not a small one


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


EDGES = {
    "a running sum that is top-p": ([0.3, 0.1, 0.1, 0.5, 0.0, 0.0], 0.8, [0, 3]),
    "the same with the tie inside": ([0.3, 0.1, 0.1, 0.5, 0.0, 0.0], 0.85, [0, 1, 3]),
    "ties by token id": ([0.2, 0.2, 0.2, 0.2, 0.2, 0.0], 0.5, [0, 1, 2]),
    "flat": ([1 / 6] * 6, 0.5, [0, 1, 2]),
    "one-hot": ([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], 0.5, [2]),
    "the smallest top-p": ([0.25, 0.25, 0.2, 0.2, 0.1, 0.0], TOP_P_ROUNDING, [0]),
    "nearly all": ([0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125], 0.999, [0, 1, 2, 3, 4, 5]),
}
"""Probabilities, top-p, and the tokens that are kept."""


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("where", ["host", "graph", "device"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_top_p_keeps_the_same_tokens_everywhere(session: Any, edge: str, where: str, dtype: type) -> None:
    probs, top_p, kept_tokens = EDGES[edge]
    logits = np.maximum(np.log(np.maximum(probs, 1e-30)), -60.0).astype(dtype)[None, None]
    params = SamplingParams(top_p=top_p)
    if where == "host":
        filtered_probs = sampling_probs(logits, params)
    elif where == "graph":
        filtered_probs = made(session, logits.astype(np.float32), params)
    else:
        filtered_probs = by_device(logits.astype(np.float32), params)
    assert np.flatnonzero(filtered_probs[0] > 1e-9).tolist() == kept_tokens
    assert filtered_probs[0].sum() == pytest.approx(1.0, abs=1e-3)


def by_device(logits: FloatArray, params: SamplingParams) -> FloatArray:
    """The distributions [N, V] of logits [1, N, V], by the device's kernel."""
    torch = pytest.importorskip("torch")
    kernels = pytest.importorskip("underpaint.runtime.device.kernels.probs")
    rows, vocab_size = logits.shape[1:]
    out = torch.zeros(1, rows, vocab_size)
    support, finite = torch.zeros(1, rows, dtype=torch.int32), torch.ones(1, rows, dtype=torch.int32)
    counts = torch.full((1,), rows)
    kernels.probs(torch.from_numpy(logits)[:, None].contiguous(), out, support, finite, counts, params)
    assert support[0].tolist() == (out[0] > 0).sum(dim=-1).tolist()
    probs: FloatArray = out[0].numpy()
    return probs


@pytest.fixture(scope="module")
def graphs(session: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Graphs of distributions by the size of the vocabulary."""
    folder = tmp_path_factory.mktemp("tiny")
    return {VOCAB: session} | {
        size: graph_of(exported.write_probs, folder / f"{size}.onnx", size) for size in (1, 2, 3)
    }


@st.composite
def whole_weights(draw: st.DrawFn) -> list[int]:
    """Rows of tiny vocabularies: ties and zeros are common, one token alone and equal tokens too."""
    size = draw(st.sampled_from([1, 2, 3, VOCAB]))
    one_hot = st.integers(0, size - 1).map(lambda token: [int(token == place) for place in range(size)])
    mixed = st.lists(st.sampled_from([0, 1, 1, 2, 3, 8]), min_size=size, max_size=size).filter(any)
    return draw(mixed | one_hot | st.just([1] * size))


@settings(max_examples=150, deadline=None)
@given(
    weights=whole_weights(),
    top_k=st.integers(0, VOCAB),
    top_p=st.sampled_from([TOP_P_ROUNDING, 0.05, 0.25, 0.5, 0.75, 0.8, 0.9, 0.999, 1 - 1e-8, 1.0]),
)
def test_what_is_kept_is_what_exact_arithmetic_keeps(
    graphs: dict[int, Any], weights: list[int], top_k: int, top_p: float
) -> None:
    """Weights from the k-th on, ties with it included; of these by weight and id until their sum reaches top-p."""
    vocab_size = len(weights)
    least = sorted(weights)[-top_k] if 0 < top_k < vocab_size else 0
    ranked = sorted(
        (token for token in range(vocab_size) if weights[token] >= max(least, 1)), key=lambda one: -weights[one]
    )
    total, mass, kept_tokens = sum(weights[token] for token in ranked), Fraction(0), list[int]()
    for token in ranked:
        kept_tokens.append(token)
        mass += weights[token]
        if mass >= (Fraction(top_p) - Fraction(TOP_P_ROUNDING)) * total:
            break
    logits = np.array([[[np.log(weight) if weight else -80.0 for weight in weights]]], dtype=np.float32)
    params = SamplingParams(top_k=top_k, top_p=top_p)
    for where, filtered_probs in (
        ("host", sampling_probs(logits, params)),
        ("graph", made(graphs[vocab_size], logits, params)),
        ("device", by_device(logits, params)),
    ):
        assert np.flatnonzero(filtered_probs[0] > 1e-9).tolist() == sorted(kept_tokens), where


@pytest.mark.parametrize("top_p", [1 - 1e-7, 1 - 1e-8, 1 - 2**-53])
def test_a_top_p_that_float32_rounds_to_one_still_filters(session: Any, top_p: float) -> None:
    """A graph is given it in float32, where it would say that nothing is filtered."""
    logits = np.array([[[0.0, -15.0, -16.0, -18.0, -30.0, -60.0]]], dtype=np.float32)
    params = SamplingParams(top_p=top_p)
    for filtered_probs in (sampling_probs(logits, params), made(session, logits, params), by_device(logits, params)):
        assert filtered_probs.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("top_p", [TOP_P_ROUNDING, 0.1, 1 / 3, 0.8, 1 - 1e-8])
def test_host_device_and_graph_stop_at_one_mass(top_p: float) -> None:
    inputs = SamplingInputs(1, frozenset(spec.name for spec in SAMPLING_INPUTS))
    inputs.set(params := SamplingParams(top_p=top_p), VOCAB)
    assert float(inputs.arrays[TOP_P]) - TOP_P_ROUNDING == params.kept_mass
    assert params.kept_mass == pytest.approx(top_p - TOP_P_ROUNDING, abs=6e-8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_half_of_a_flat_row_is_half_of_its_tokens(dtype: type) -> None:
    filtered_probs = sampling_probs(np.zeros((1, 1, 4096), dtype=dtype), SamplingParams(top_p=0.5))
    assert np.flatnonzero(filtered_probs[0]).tolist() == list(range(2048))


@pytest.mark.parametrize("top_p", [1e-46, 1e-8, 0.0, -0.5, 1.0000001, float("nan")])
def test_a_top_p_that_filters_nothing_or_everything_is_refused(top_p: float) -> None:
    with pytest.raises(ValueError, match=r"top_p must be in \[1e-06, 1\]"):
        SamplingParams(top_p=top_p)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transformers_keeps_as_many_tokens_and_all_ties_of_top_k(dtype: type) -> None:
    """What docs/reference/methods.md says of the same rows in transformers."""
    warpers = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    tied = [0.06, 0.1, 0.4, 0.1, 0.24, 0.1]
    for probs, warper, params, ours in (
        ([0.2] * 5, warpers.TopPLogitsWarper(0.5), SamplingParams(top_p=0.5), [0, 1, 2]),
        ([1 / 4096] * 4096, warpers.TopPLogitsWarper(0.5), SamplingParams(top_p=0.5), list(range(2048))),
        (tied, warpers.TopPLogitsWarper(0.7), SamplingParams(top_p=0.7), [1, 2, 4]),
        (tied, warpers.TopKLogitsWarper(3), SamplingParams(top_k=3), [1, 2, 3, 4, 5]),
    ):
        logits = np.log(probs).astype(dtype)[None]
        assert np.flatnonzero(sampling_probs(logits[None], params)).tolist() == ours
        assert int(torch.isfinite(warper(None, torch.from_numpy(logits))).sum()) == len(ours)


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
    input_names = frozenset(spec.name for spec in SAMPLING_INPUTS)
    for params, accepted in (
        (SamplingParams(temperature=0.0), input_names),
        (SamplingParams(), input_names - {TOP_P}),
        (SamplingParams(), frozenset()),
    ):
        sampling = SamplingInputs(1, accepted)
        sampling.set(params, VOCAB)
        assert not sampling.complete
        assert bool(sampling.arrays) == (accepted == input_names)
