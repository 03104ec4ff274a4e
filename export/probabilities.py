"""Computes token distributions from logits inside the graph.

On the host, softmax and top-k for a pass over nine positions cost as much as a whole level of the drafter.
"""

import numpy as np

from underpaint.algos.rows import TOP_P_ROUNDING
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


def write_probs(graph: GraphWriter, vocab_size: int, condition: str | None = None) -> None:
    """Add the output `probs`, computed from `logits`, and the sampling inputs.

    The inputs are `artifacts.decoder_graph.SAMPLING_INPUTS`; the graph computes `algos.rows.sampling_probs`.

    Args:
        graph: A graph with `logits`.
        vocab_size: Number of codes, V.
        condition: A bool scalar; if it is false, `probs` is empty. None always computes it.
    """
    graph.inputs(SAMPLING_INPUTS)
    graph.output(PROBS, "float32", ["T", vocab_size])
    if condition is None:
        probability_rows(graph, LOGITS, vocab_size, PROBS)
        return

    def body(inner: GraphWriter) -> None:
        inner.output(probability_rows(inner, LOGITS, vocab_size), "float32", ["T", vocab_size])

    graph.branch_if(condition, body, [PROBS])


def probability_rows(graph: GraphWriter, logits: str, vocab_size: int, name: str | None = None) -> str:
    """Return the distributions [R, V] of `logits` [B, R, V], with the inputs that `write_probs` declares."""
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
    """`probs` [R, V] reduced to the most likely tokens with mass `top_p`, as in `algos.rows`."""
    one = graph.integers(1)
    falling, _ = graph.nodes("TopK", [probs, graph.size(probs, 1)], [None, None])
    before = graph.node("CumSum", [graph.to_double(falling), graph.constant(np.array(1))], exclusive=1)
    limit = graph.node("Sub", [graph.to_double(TOP_P), graph.constant(np.array(TOP_P_ROUNDING))])
    count = graph.node("Max", [_counted(graph, graph.node("Less", [before, limit])), one])
    floor = graph.node("GatherElements", [falling, graph.node("Sub", [count, one])], axis=1)
    above, level = graph.node("Greater", [probs, floor]), graph.node("Equal", [probs, floor])
    room = graph.node("Sub", [count, _counted(graph, above)])
    place = graph.node("CumSum", [graph.to_integer(level), graph.constant(np.array(1))])
    first = graph.node("And", [level, graph.node("LessOrEqual", [place, room])])
    kept_mask = graph.node("Or", [above, first])
    return _normalised(graph, graph.node("Where", [kept_mask, probs, _zero(graph)]))


def _counted(graph: GraphWriter, chosen: str) -> str:
    """Return the number of chosen values in each row, [R, 1]."""
    return graph.node("ReduceSum", [graph.to_integer(chosen), graph.integers(-1)], keepdims=1)


def _normalised(graph: GraphWriter, shares: str) -> str:
    return graph.node("Div", [shares, graph.node("ReduceSum", [shares, graph.integers(-1)], keepdims=1)])


def _last_column(graph: GraphWriter, value: str) -> str:
    end = graph.integers(np.iinfo(np.int64).max)
    return graph.node("Slice", [value, graph.integers(-1), end, graph.integers(1)])


def _zero(graph: GraphWriter) -> str:
    return graph.constant(np.array(0, dtype=np.float32))
