"""The token distributions behind the logits, in the graph itself: row maths stay where the logits are.

Read on the host, a pass over nine positions leaves as much work in softmax and top-k as a drafter's whole level.
"""

import numpy as np

from underpaint.artifacts.decoder_graph import (
    GUIDANCE_MIX,
    INVERSE_TEMPERATURE,
    LOGITS,
    PROBS,
    SAMPLING_INPUTS,
    TOP_K,
    TOP_K_OFFSET,
    TOP_P,
)
from underpaint.export.graph import GraphWriter


def write_probs(graph: GraphWriter, vocab_size: int, asked: str | None = None) -> None:
    """Add the output `probs`, made of `logits`, and the inputs that say how. asked: a condition, where one is.

    The inputs are `artifacts.decoder_graph.SAMPLING_INPUTS`; `algos.rows.sampling_probs` is what this computes.
    """
    graph.inputs(SAMPLING_INPUTS)
    graph.output(PROBS, "float32", ["T", vocab_size])
    if asked is None:
        probability_rows(graph, LOGITS, vocab_size, PROBS)
        return

    def body(inner: GraphWriter) -> None:
        inner.output(probability_rows(inner, LOGITS, vocab_size), "float32", ["T", vocab_size])

    graph.where_asked(asked, body, [PROBS])


def probability_rows(graph: GraphWriter, logits: str, vocab_size: int, name: str | None = None) -> str:
    """The distributions [R, V] of `logits` [B, R, V], by the inputs that `write_probs` declares."""
    flat = graph.node("MatMul", [GUIDANCE_MIX, graph.node("Reshape", [logits, graph.integers(0, -1)])])
    rows = graph.node("Mul", [graph.node("Reshape", [flat, graph.integers(-1, vocab_size)]), INVERSE_TEMPERATURE])
    best, _ = graph.nodes("TopK", [rows, TOP_K], [None, None])
    last = _last_column(graph, best)
    cut = graph.node("Less", [rows, graph.node("Add", [last, TOP_K_OFFSET])])
    shares = graph.node("Where", [cut, _zero(graph), graph.node("Softmax", [rows], axis=-1)])

    def whole(inner: GraphWriter) -> None:
        inner.output(_normalised(inner, shares), "float32", ["R", vocab_size])

    def nucleus(inner: GraphWriter) -> None:
        inner.output(_nucleus(inner, _normalised(inner, shares)), "float32", ["R", vocab_size])

    keeps_less = graph.node("Less", [TOP_P, graph.constant(np.array(1, dtype=np.float32))])
    return graph.branch(keeps_less, nucleus, whole, [name])[0]


def _nucleus(graph: GraphWriter, probs: str) -> str:
    """`probs` [R, V] without what lies below the likeliest tokens of mass `top_p`; ties with the last are kept."""
    falling, _ = graph.nodes("TopK", [probs, graph.size(probs, 1)], [None, None])
    before = graph.node("Sub", [graph.node("CumSum", [falling, graph.constant(np.array(1))]), falling])
    inside = graph.to_integer(graph.node("Less", [before, TOP_P]))
    count = graph.node("ReduceSum", [inside, graph.integers(-1)], keepdims=1)
    last = graph.node("Sub", [count, graph.constant(np.array(1))])
    floor = graph.node("GatherElements", [falling, last], axis=1)
    return _normalised(graph, graph.node("Where", [graph.node("Less", [probs, floor]), _zero(graph), probs]))


def _normalised(graph: GraphWriter, shares: str) -> str:
    return graph.node("Div", [shares, graph.node("ReduceSum", [shares, graph.integers(-1)], keepdims=1)])


def _last_column(graph: GraphWriter, value: str) -> str:
    end = graph.integers(np.iinfo(np.int64).max)
    return graph.node("Slice", [value, graph.integers(-1), end, graph.integers(1)])


def _zero(graph: GraphWriter) -> str:
    return graph.constant(np.array(0, dtype=np.float32))


MOST_KEPT = 3840
"""The most tokens that TensorRT's TopK keeps."""


def write_sampler(graph: GraphWriter, vocab_size: int, top_k: int) -> None:
    """Add `logits` [B, N, V], `guidance` [1] and `temperature` [1] (above 0) to `probs` [N, V], all float32.

    B is 1, or 2 for the guidance pair. top_k: tokens kept, ties with the last included; 0 keeps all.
    Raises ValueError where an engine could not keep so many.
    """
    if not 0 <= top_k <= min(MOST_KEPT, vocab_size):
        raise ValueError(f"--top-k: expected 0 to {min(MOST_KEPT, vocab_size)}, got {top_k}; 0 keeps every token")
    graph.input("logits", "float32", ["B", "N", vocab_size])
    graph.input("guidance", "float32", [1])
    graph.input("temperature", "float32", [1])
    first, last, end, axis = (graph.integers(value) for value in (0, -1, np.iinfo(np.int64).max, 0))
    given = graph.node("Slice", ["logits", first, graph.integers(1), axis])
    absent = graph.node("Slice", ["logits", last, end, axis])
    pushed = graph.node("Mul", [graph.node("Sub", [given, absent]), "guidance"])
    rows = graph.node("Squeeze", [graph.node("Add", [absent, pushed]), graph.integers(0)])
    if top_k:
        best = graph.node("ReduceMin", [_largest(graph, rows, top_k), graph.integers(-1)], keepdims=1)
        low = graph.constant(np.array(-1e30, dtype=np.float32))
        rows = graph.node("Where", [graph.node("Less", [rows, best]), low, rows])
    graph.node("Softmax", [graph.node("Div", [rows, "temperature"])], "probs", axis=-1)
    graph.output("probs", "float32", ["N", vocab_size])


def _largest(graph: GraphWriter, rows: str, count: int) -> str:
    values, _ = graph.nodes("TopK", [rows, graph.integers(count)], [None, None], axis=-1)
    return values
