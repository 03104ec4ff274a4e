"""The row maths of `algos.rows` as a graph, so that a distribution is made where the logits are."""

import numpy as np

from underpaint.export.graph import GraphWriter

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
