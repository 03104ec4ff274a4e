"""Drafters that grow whole trees in one call: a level's pass, from which `export.growth` makes a loop.

A level called for by itself costs the host as much as the drafter: distributions and features out, choices and biases
in.
What a tree writes is seen by its own nodes alone and leaves no trace.
"""

from typing import Final, NamedTuple

import numpy as np

from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.export.blocks import feed_forward, norm
from underpaint.export.chain import DrafterWeights, Turning
from underpaint.export.graph import GraphWriter
from underpaint.export.probabilities import probability_rows
from underpaint.models.transformer import TransformerConfig


class Ground(NamedTuple):
    """The nodes that every level reads.

    rows: [levels - 1, 3 heads], rows of the rotary table for the cells after the last new position's. past_bias:
    [1, S]. slots: [1]. alone: [F, F] bias under which a node sees none of those beside it. rows_count: [1], B.
    """

    rows: str
    past_bias: str
    slots: str
    alone: str
    rows_count: str


class Frontier(NamedTuple):
    """The nodes about to be expanded, and what they see of the tree.

    tokens [F] int64; features [B, F, D], predicted for their parents; keys [B, H, hd, N] and values [B, H, N, hd] of
    the last pass's positions and of the nodes expanded so far; seen [F, N], the bias over those.
    """

    tokens: str
    features: str
    keys: str
    values: str
    seen: str


class Expanded(NamedTuple):
    """Distributions [F, V] behind the frontier, features [B, F, D] predicted for it, and keys and values with it."""

    distributions: str
    features: str
    keys: str
    values: str


SURROUNDINGS: Final = 9
"""How many outputs `surroundings` declares."""


def surroundings(
    graph: GraphWriter, config: TransformerConfig, turning: Turning, more: str, width: str, tokens: str
) -> None:
    """Declare as outputs what `more` levels below the root's read, of `width` [1] nodes each.

    tokens: those of the first of these levels, children of the root, all below the last new position.
    """
    last, end, one = graph.integers(-1), graph.integers(np.iinfo(np.int64).max), graph.constant(np.array(1))
    slots = graph.node("Shape", ["past_key_0"], start=3, end=4)
    seen = graph.node("Slice", ["bias", last, end, graph.integers(0)])
    start = graph.node("Add", [graph.node("Gather", ["cells", graph.constant(np.array(-1))]), one])
    cells = graph.node("Range", [start, graph.node("Add", [start, more]), one])
    numbers = graph.node("Range", [graph.constant(np.array(0)), graph.node("Squeeze", [width]), one])
    across, down = (graph.node("Unsqueeze", [numbers, graph.integers(axis)]) for axis in (0, 1))
    visible, hidden = (graph.constant(np.array(bias, dtype=np.float32)) for bias in (0.0, MASKED_SCORE))
    feature = graph.node("Gather", ["predicted", graph.integers(-1)], axis=1)
    repeated = graph.node("Concat", [graph.integers(1), width, graph.integers(1)], axis=0)
    every = graph.node("Concat", [width, graph.node("Shape", ["tokens"], start=1, end=2)], axis=0)
    heads, size = config.n_head, config.head_dim
    graph.output(graph.node("Gather", [turning.rows_of, cells]), ["M", 3 * heads], "int64")
    graph.output(graph.node("Slice", [seen, graph.integers(0), slots, graph.integers(1)]), ["1", "S"])
    graph.output(slots, ["1"], "int64")
    graph.output(graph.node("Where", [graph.node("Equal", [across, down]), visible, hidden]), ["F", "F"])
    graph.output(graph.node("Shape", ["tokens"], start=0, end=1), ["1"], "int64")
    graph.output(graph.node("Expand", [feature, repeated]), ["B", "F", config.dim])
    graph.output(graph.node("Transpose", ["new_key_0"], perm=[0, 1, 3, 2]), ["B", heads, size, "T"])
    graph.output(graph.node("Identity", ["new_value_0"]), ["B", heads, "T", size])
    graph.output(graph.node("Expand", [visible, every]), ["F", "T"])


def unpack(around: list[str], tokens: str) -> tuple[Ground, Frontier]:
    """What `surroundings` declared, and the first of its levels."""
    return Ground(*around[:5]), Frontier(tokens, *around[5:])


def declared(graph: GraphWriter, config: TransformerConfig) -> Frontier:
    """A frontier as inputs of a loop's body."""
    heads, width = config.n_head, config.head_dim
    return Frontier(
        tokens=graph.input("here_tokens", "int64", ["F"]),
        features=graph.input("here_features", "float", ["B", "F", config.dim]),
        keys=graph.input("here_keys", "float", ["B", heads, width, "N"]),
        values=graph.input("here_values", "float", ["B", heads, "N", width]),
        seen=graph.input("here_seen", "float", ["F", "N"]),
    )


def expand(
    graph: GraphWriter,
    weights: DrafterWeights,
    config: TransformerConfig,
    turning: Turning,
    given: Ground,
    number: str,
    frontier: Frontier,
) -> Expanded:
    """One pass over a frontier; `number` [] counts the levels below the root's."""
    heads, width, dim = config.n_head, config.head_dim, config.dim
    flat = graph.node("Reshape", [frontier.features, graph.integers(-1, dim)])
    counts = graph.node("Shape", [flat], start=0, end=1)
    embedded = graph.node("Gather", [weights.table, graph.node("Tile", [frontier.tokens, given.rows_count])])
    hidden = graph.product(flat, weights.from_features, "fc_feature", embedded, floating=True)

    merged = graph.product(norm(graph, hidden, weights.layer.attention_norm, config), weights.layer.qkv, "qkv")
    by_head = graph.node("Reshape", [merged, graph.integers(-1, 3 * heads, width)])
    row = graph.node("Gather", [given.rows, number])
    places = graph.node("Expand", [row, graph.node("Concat", [counts, graph.integers(1)], axis=0)])
    turned = graph.node("RotaryEmbedding", [by_head, turning.cosine, turning.sine, places], num_heads=1)
    inner = graph.integers(-1, 3 * heads, width)
    grid = graph.node("Concat", [given.rows_count, inner], axis=0)
    laid_out = graph.node("Transpose", [graph.node("Reshape", [turned, grid])], perm=[0, 2, 1, 3])
    query, key, value = graph.split(laid_out, graph.integers(heads, heads, heads), 1, [None, None, None])
    turned_key = graph.node("Transpose", [key], perm=[0, 1, 3, 2])
    past = graph.node("Add", [graph.node("MatMul", [query, "past_key_0"]), given.past_bias])
    above = graph.node("Add", [graph.node("MatMul", [query, frontier.keys]), frontier.seen])
    own = graph.node("Add", [graph.node("MatMul", [query, turned_key]), given.alone])
    scores = graph.node("Concat", [past, above, own], axis=3)
    sizes = [graph.node("Shape", [keys], start=3, end=4) for keys in (frontier.keys, turned_key)]
    shares = graph.split(
        graph.node("Softmax", [scores], axis=-1),
        graph.node("Concat", [given.slots, *sizes], axis=0),
        3,
        [None, None, None],
    )
    values = ("past_value_0", frontier.values, value)
    seen_parts = [graph.node("MatMul", list(pair)) for pair in zip(shares, values, strict=True)]
    mixed = graph.node("Transpose", [graph.node("Sum", seen_parts)], perm=[0, 2, 1, 3])
    heads_joined = graph.node("Reshape", [mixed, graph.integers(-1, dim)])
    hidden = feed_forward(graph, graph.product(heads_joined, weights.layer.out, "out", hidden), weights.layer, config)

    features = norm(graph, hidden, weights.norm, config)
    by_row = [
        graph.node("Concat", [given.rows_count, graph.integers(-1, size)], axis=0) for size in (dim, config.vocab_size)
    ]
    logits = graph.product(features, np.ascontiguousarray(weights.head.T), "head")
    return Expanded(
        distributions=probability_rows(graph, graph.node("Reshape", [logits, by_row[1]]), config.vocab_size),
        features=graph.node("Reshape", [features, by_row[0]]),
        keys=graph.node("Concat", [frontier.keys, turned_key], axis=3),
        values=graph.node("Concat", [frontier.values, value], axis=2),
    )


def descend(
    graph: GraphWriter, done: Expanded, frontier: Frontier, given: Ground, tokens: str, parents: str
) -> Frontier:
    """The next frontier: `tokens` [F], below the nodes `parents` [F] of this one."""
    seen = graph.node("Concat", [frontier.seen, given.alone], axis=1)
    return Frontier(
        tokens=tokens,
        features=graph.node("Gather", [done.features, parents], axis=1),
        keys=done.keys,
        values=done.values,
        seen=graph.node("Gather", [seen, parents], axis=0),
    )


def returned(graph: GraphWriter, frontier: Frontier, config: TransformerConfig) -> None:
    """Declare a frontier as outputs of a loop's body, in the order of `declared`."""
    heads, width = config.n_head, config.head_dim
    shapes: tuple[list[int | str], ...] = (
        ["F"],
        ["B", "F", config.dim],
        ["B", heads, width, "N+F"],
        ["B", heads, "N+F", width],
        ["F", "N+F"],
    )
    for name, shape in zip(frontier, shapes, strict=True):
        graph.output(name, shape, "int64" if name == frontier.tokens else "float")
