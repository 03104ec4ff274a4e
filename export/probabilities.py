"""The token distributions behind the logits, in the graph itself: row maths stay where the logits are.

Read on the host, a pass over nine positions leaves as much work in softmax and top-k as a drafter's whole level.
"""

import numpy as np

from underpaint.export.graph import GraphWriter


def probability_outputs(graph: GraphWriter, classes: int, asked: str | None = None) -> None:
    """Add the output distributions [T, V], and the inputs that say how logits become distributions. asked: a condition,
    where one is.

    mix [1, B]: how the B rows' logits add up, (s, 1 - s) for guidance s of a pair. sharpness []: 1 / temperature.
    kept [1] int64: k of the top-k; ties with the k-th are kept. lowering []: added to the k-th logit, so that a large
    negative keeps every token. `algos.rows.sampling_probs` is what this computes.
    """
    graph.input("mix", "float", [1, "B"])
    graph.input("sharpness", "float", [])
    graph.input("kept", "int64", [1])
    graph.input("lowering", "float", [])
    graph.output("laws", ["T", classes])
    if asked is None:
        probability_rows(graph, "logits", classes, "laws")
        return

    def body(inner: GraphWriter) -> None:
        inner.output(probability_rows(inner, "logits", classes), ["T", classes])

    graph.where_asked(asked, body, ["laws"])


def probability_rows(graph: GraphWriter, logits: str, classes: int, name: str | None = None) -> str:
    """The distributions [R, V] of `logits` [B, R, V], by the inputs that `distributions` declares."""
    flat = graph.node("MatMul", ["mix", graph.node("Reshape", [logits, graph.integers(0, -1)])])
    rows = graph.node("Mul", [graph.node("Reshape", [flat, graph.integers(-1, classes)]), "sharpness"])
    best, _ = graph.several("TopK", [rows, "kept"], 2)
    last = graph.node("Slice", [best, graph.integers(-1), graph.integers(np.iinfo(np.int64).max), graph.integers(1)])
    cut = graph.node("Less", [rows, graph.node("Add", [last, "lowering"])])
    nothing = graph.constant(np.array(0, dtype=np.float32))
    masses = graph.node("Where", [cut, nothing, graph.node("Softmax", [rows], axis=-1)])
    total = graph.node("ReduceSum", [masses, graph.integers(-1)], keepdims=1)
    return graph.node("Div", [masses, total], name)
