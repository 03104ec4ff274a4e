"""A drafter that goes on by itself: a chain of its likeliest tokens in the pass that reads the root.

A chain of n tokens takes n passes of a fraction of a millisecond; calling the engine for each, and moving distributions
and features out and in again, costs as much as the passes. Here a loop inside the graph feeds each likeliest token and
the feature predicted beside it back. What the chain writes is seen by the chain alone and leaves no trace.
"""

from typing import NamedTuple

import numpy as np

from underpaint.export.blocks import feed_forward, norm
from underpaint.export.graph import GraphWriter
from underpaint.export.weights import Layer, Weights
from underpaint.models.transformer import TransformerConfig


class DrafterWeights(NamedTuple):
    """What a drafter's pass multiplies by. table: the node that holds the embeddings after the input layer."""

    table: str
    from_features: Weights
    layer: Layer
    norm: Weights
    head: Weights


class Turning(NamedTuple):
    """The nodes that hold the rotary table, and the rows of it for each cell."""

    cosine: str
    sine: str
    rows_of: str


def greedy_chain(graph: GraphWriter, weights: DrafterWeights, config: TransformerConfig, turning: Turning) -> str:
    """Add the input levels [] int64 and the output drafted [max(1, levels)] int64.

    The chain starts behind the last new position, which sees all the others and the cache as its row of `bias` says.
    The likeliest token is that of the rows' mixed logits (`export.probabilities`); one at level i stands in the i-th
    cell after the last new position's. Returns the condition that no more than one level is asked for.
    """
    levels = graph.input("levels", "int64", [])
    last, end = graph.integers(-1), graph.integers(np.iinfo(np.int64).max)
    slots = graph.node("Shape", ["past_key_0"], start=3, end=4)
    seen = graph.node("Slice", ["bias", last, end, graph.integers(0)])
    past_bias = graph.node("Slice", [seen, graph.integers(0), slots, graph.integers(1)])
    final = graph.node("Gather", ["logits", graph.constant(np.array(-1))], axis=1)
    token = _likeliest(graph, final)
    feature = graph.node("Gather", ["predicted", graph.constant(np.array(-1))], axis=1)
    keys = graph.node("Transpose", ["new_key_0"], perm=[0, 1, 3, 2])
    one = graph.constant(np.array(1))
    more = graph.node("Sub", [levels, one])
    ahead = _ahead(graph, more, turning.rows_of)

    def turn(inner: GraphWriter) -> None:
        _turn(inner, weights, config, turning, ahead, past_bias, slots)

    (rest,) = graph.loop(more, [token, feature, keys, "new_value_0"], turn, collected=1)
    flat = graph.node("Reshape", [rest, graph.integers(-1)])
    graph.node("Concat", [token, flat], "drafted", axis=0)
    graph.output("drafted", ["levels"], "int64")
    return graph.node("Equal", [levels, one])


def _ahead(graph: GraphWriter, more: str, rows_of: str) -> str:
    """[more, B, 3 heads]: the rows of the rotary table for each of the `more` cells after the last new position's."""
    one = graph.constant(np.array(1))
    start = graph.node("Add", [graph.node("Gather", ["cells", graph.constant(np.array(-1))]), one])
    cells = graph.node("Range", [start, graph.node("Add", [start, more]), one])
    by_cell = graph.node("Unsqueeze", [graph.node("Gather", [rows_of, cells]), graph.integers(1)])
    rows = graph.node("Shape", ["tokens"], start=0, end=1)
    return graph.node("Expand", [by_cell, graph.node("Concat", [graph.integers(1), rows, graph.integers(1)], axis=0)])


def _likeliest(graph: GraphWriter, logits: str) -> str:
    """The token [1] of the largest mixed logit; `logits` [B, V]."""
    return graph.node("ArgMax", [graph.node("MatMul", ["mix", logits])], axis=1, keepdims=0)


def _turn(
    graph: GraphWriter,
    weights: DrafterWeights,
    config: TransformerConfig,
    turning: Turning,
    ahead: str,
    past_bias: str,
    slots: str,
) -> None:
    heads, width = config.n_head, config.head_dim
    number = graph.input("turn", "int64", [])
    graph.input("going", "bool", [])
    token = graph.input("token", "int64", [1])
    feature = graph.input("feature", "float", ["B", config.dim])
    seen_keys = graph.input("seen_keys", "float", ["B", heads, width, "N"])
    seen_values = graph.input("seen_values", "float", ["B", heads, "N", width])
    embedded = graph.node("Gather", [weights.table, token])
    hidden = graph.product(feature, weights.from_features, "fc_feature", embedded, floating=True)

    normed = norm(graph, hidden, weights.layer.attention_norm, config)
    merged = graph.product(normed, weights.layer.qkv, "qkv")
    by_head = graph.node("Reshape", [merged, graph.integers(-1, 3 * heads, width)])
    places = graph.node("Gather", [ahead, number])
    turned = graph.node("RotaryEmbedding", [by_head, turning.cosine, turning.sine, places], num_heads=1)
    query, key, value = graph.split(turned, graph.integers(heads, heads, heads), 1, [None, None, None])
    fourth = graph.integers(0, heads, 1, width)
    query, value = (graph.node("Reshape", [part, fourth]) for part in (query, value))
    keys = [seen_keys, graph.node("Reshape", [key, graph.integers(0, heads, width, 1)])]
    all_keys = graph.node("Concat", keys, "all_keys", axis=3)
    all_values = graph.node("Concat", [seen_values, value], "all_values", axis=2)
    past = graph.node("Add", [graph.node("MatMul", [query, "past_key_0"]), past_bias])
    scores = graph.node("Concat", [past, graph.node("MatMul", [query, all_keys])], axis=3)
    sizes = graph.node("Concat", [slots, graph.node("Shape", [all_keys], start=3, end=4)], axis=0)
    on_past, on_new = graph.split(graph.node("Softmax", [scores], axis=-1), sizes, 3, [None, None])
    mixed = graph.node(
        "Add", [graph.node("MatMul", [on_past, "past_value_0"]), graph.node("MatMul", [on_new, all_values])]
    )
    flat = graph.node("Reshape", [mixed, graph.integers(-1, config.dim)])
    hidden = feed_forward(graph, graph.product(flat, weights.layer.out, "out", hidden), weights.layer, config)

    graph.node("Identity", ["going"], "still_going")
    features = norm(graph, hidden, weights.norm, config)
    logits = graph.product(features, np.ascontiguousarray(weights.head.T), "head")
    found = _likeliest(graph, logits)
    graph.output("still_going", [], "bool")
    graph.output(found, [1], "int64")
    graph.output(features, ["B", config.dim])
    graph.output(all_keys, ["B", heads, width, "N+1"])
    graph.output(all_values, ["B", heads, "N+1", width])
    graph.output(graph.node("Identity", [found]), [1], "int64")
