"""Drafts a chain of most likely tokens inside the drafter's graph, in the same pass that reads the root.

A chain of n tokens takes n drafter passes of a fraction of a millisecond; calling the engine for each pass, and moving
distributions and features out and in again, costs as much as the passes. Here a loop inside the graph feeds back each
most likely token with the feature predicted for it. Only the chain sees its own keys and values, and they are dropped.
Where two tokens are nearly equally likely, it may choose another one than single levels do: see `algos.draft.fused`.
"""

from collections.abc import Sequence

import numpy as np

from underpaint.artifacts import decoder_graph as names
from underpaint.export.decoder_layers import (
    DecoderNodes,
    LayerPass,
    Seen,
    SplitAttention,
    add_positions,
    layer,
    norm,
    read_features,
)
from underpaint.export.graph import GraphWriter


def write_chain(graph: GraphWriter, nodes: DecoderNodes) -> str:
    """Add the input `chain_levels` [] and the output `chain_tokens`, both defined in `artifacts.decoder_graph`.

    The chain starts after the last new position, which sees all the others and the cache as its row of `bias` says.
    The most likely token is that of the rows' mixed logits (`export.probabilities`); the token at level i is at the
    i-th cell after that of the last new position. Returns the condition that at most one level is requested.
    """
    levels = graph.input(names.CHAIN_LEVELS, "int64", [])
    graph.output(names.CHAIN_TOKENS, "int64", [names.CHAIN_LEVELS])
    last = graph.constant(np.array(-1))
    past_bias = last_past_bias(graph)
    token = _likeliest(graph, graph.node("Gather", [names.LOGITS, last], axis=1))
    feature = graph.node("Gather", [names.PREDICTED_FEATURES, last], axis=1)
    keys_and_values = [part for index in range(nodes.config.layers) for part in new_columns(graph, index)]
    one = graph.constant(np.array(1))
    more = graph.node("Sub", [levels, one])
    ahead = cells_ahead(graph, more)
    rows = None if nodes.rotary is None else graph.node("Gather", [nodes.rotary[2], ahead])

    def turn(inner: GraphWriter) -> None:
        _turn(inner, nodes, past_bias, ahead, rows)

    (rest,) = graph.loop(more, [token, feature, *keys_and_values], turn, collected=1)
    flat = graph.node("Reshape", [rest, graph.integers(-1)])
    graph.node("Concat", [token, flat], names.CHAIN_TOKENS, axis=0)
    return graph.node("Equal", [levels, one])


def last_past_bias(graph: GraphWriter) -> str:
    """Return the part of the cache that the last new position sees, as a bias [B, 1, 1, S]."""
    last, end = graph.integers(-1), graph.integers(np.iinfo(np.int64).max)
    seen = graph.node("Slice", [names.BIAS, last, end, graph.integers(1)])
    slots = graph.size(names.past_key(0), 3)
    past = graph.node("Slice", [seen, graph.integers(0), slots, graph.integers(2)])
    return graph.node("Unsqueeze", [past, graph.integers(1)])


def new_columns(graph: GraphWriter, index: int) -> tuple[str, str]:
    """Return the keys [B, K, hd, T] and values [B, K, T, hd] of a layer in this pass."""
    return graph.node("Transpose", [names.new_key(index)], perm=[0, 1, 3, 2]), names.new_value(index)


def cells_ahead(graph: GraphWriter, more: str) -> str:
    """For each row the `more` cells after that of the last new position, [more, B]."""
    one = graph.constant(np.array(1))
    last = graph.node("Gather", [names.CELLS, graph.constant(np.array(-1))], axis=1)
    steps = graph.node("Range", [one, graph.node("Add", [more, one]), one])
    return graph.node("Add", [graph.node("Unsqueeze", [steps, graph.integers(1)]), last])


def _likeliest(graph: GraphWriter, logits: str) -> str:
    """Return the token [1] with the largest mixed logit; `logits` [B, V]."""
    return graph.node("ArgMax", [graph.node("MatMul", [names.GUIDANCE_MIX, logits])], axis=1, keepdims=0)


def _turn(graph: GraphWriter, nodes: DecoderNodes, past_bias: str, ahead: str, rows: str | None) -> None:
    config = nodes.config
    heads, width = config.kv_heads, config.head_dim
    number = graph.input("turn", "int64", [])
    going = graph.input("going", "bool", [])
    token = graph.input("token", "int64", [1])
    feature = graph.input("feature", "float32", ["B", config.dim])
    above = [
        (
            graph.input(f"keys_above_{index}", "float32", ["B", heads, width, "N"]),
            graph.input(f"values_above_{index}", "float32", ["B", heads, "N", width]),
        )
        for index in range(config.layers)
    ]
    joined: list[tuple[str, str]] = []

    def attention(index: int, keys: str, values: str) -> Sequence[Seen]:
        above_keys, above_values = above[index]
        joined.append(
            (
                graph.node("Concat", [above_keys, keys], axis=3),
                graph.node("Concat", [above_values, values], axis=2),
            )
        )
        return Seen(names.past_key(index), names.past_value(index), past_bias), Seen(*joined[-1])

    embedded = graph.node("Gather", [nodes.embedding, token])
    if graph.has("positions"):
        cell = graph.node("Unsqueeze", [graph.node("Gather", [ahead, number]), graph.integers(1)])
        rows_wide = graph.node("Expand", [embedded, graph.node("Shape", [feature])])
        embedded = add_positions(graph, nodes, rows_wide, cell)
    hidden = read_features(graph, feature, embedded)
    one = graph.integers(1)
    columns = graph.node(
        "Concat", [graph.size(names.past_key(0), 3), graph.node("Add", [graph.size(above[0][0], 3), one])], axis=0
    )
    layer_pass = LayerPass(
        None if rows is None else graph.node("Gather", [rows, number]),
        graph.integers(-1, 1, config.projected_heads, width),
        SplitAttention(attention, columns),
    )
    for index in range(config.layers):
        hidden, _, _ = layer(graph, nodes, layer_pass, hidden, index)
    features = norm(graph, hidden, "norm", config) if graph.has("norm") else hidden
    next_token = _likeliest(graph, graph.product(features, "head"))
    graph.output(graph.node("Identity", [going]), "bool", [])
    graph.output(next_token, "int64", [1])
    graph.output(features, "float32", ["B", config.dim])
    for keys, values in joined:
        graph.output(keys, "float32", ["B", heads, width, "N+1"])
        graph.output(values, "float32", ["B", heads, "N+1", width])
    graph.output(graph.node("Identity", [next_token]), "int64", [1])
