"""Writes one level of a drafter's tree, which `export.tree` runs in a loop.

A separate call for each level costs the host as much as the drafter does: distributions and features out, choices and
biases in. Only the tree's own nodes see its keys and values, which are dropped afterwards.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from underpaint.artifacts import decoder_graph as names
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.export.chain import cells_ahead, last_past_bias, new_columns
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
from underpaint.export.probabilities import probability_rows


class SharedByLevels(NamedTuple):
    """The values that every level reads.

    Attributes:
        cells: [L - 1, B, 1], the cells after the last new position.
        past_bias: [B, 1, 1, S], the bias over the cache.
        slots: [1], number of cache slots, S.
        self_bias: [F, F], a bias with which a node sees only itself.
        rows: [1], B.
    """

    cells: str
    past_bias: str
    slots: str
    self_bias: str
    rows: str


class FrontierNodes(NamedTuple):
    """The nodes about to be expanded, and the bias, keys and values of what they see in the tree.

    tokens [F] int64; features [B, F, D], predicted for their parents; seen [F, N], the bias over the last pass's
    positions and the nodes expanded so far; keys [B, K, hd, N] and values [B, K, N, hd] of those, for every layer.
    """

    tokens: str
    features: str
    seen: str
    above: tuple[tuple[str, str], ...]

    def flat(self) -> list[str]:
        """Return the names in the order in which a loop carries them."""
        return [self.tokens, self.features, self.seen, *(part for pair in self.above for part in pair)]


class Expanded(NamedTuple):
    """Distributions [F, V] after the frontier, features [B, F, D] predicted for it, and keys and values with it."""

    probs: str
    features: str
    above: tuple[tuple[str, str], ...]


def common_count(nodes: DecoderNodes) -> int:
    """Return the number of outputs that `declare_common` declares."""
    return len(SharedByLevels._fields) + 2 + 2 * nodes.config.layers


def declare_common(graph: GraphWriter, nodes: DecoderNodes, more: str, width: str) -> None:
    """Declare as outputs what `more` levels below the root's level read; each has `width` [1] nodes."""
    config = nodes.config
    heads, size, one = config.kv_heads, config.head_dim, graph.constant(np.array(1))
    numbers = graph.node("Range", [graph.constant(np.array(0)), graph.node("Squeeze", [width]), one])
    across, down = (graph.node("Unsqueeze", [numbers, graph.integers(axis)]) for axis in (0, 1))
    visible = graph.constant(np.array(0, dtype=np.float32))
    masked = graph.constant(np.array(MASKED_SCORE))
    feature = graph.node("Gather", [names.PREDICTED_FEATURES, graph.integers(-1)], axis=1)
    repeated = graph.node("Concat", [graph.integers(1), width, graph.integers(1)], axis=0)
    every = graph.node("Concat", [width, graph.size(names.TOKENS, 1)], axis=0)
    cells = graph.node("Unsqueeze", [cells_ahead(graph, more), graph.integers(2)])
    graph.output(cells, "int64", ["M", "B", 1])
    graph.output(last_past_bias(graph), "float32", ["B", 1, 1, "S"])
    graph.output(graph.size(names.past_key(0), 3), "int64", [1])
    graph.output(graph.node("Where", [graph.node("Equal", [across, down]), visible, masked]), "float32", ["F", "F"])
    graph.output(graph.size(names.TOKENS, 0), "int64", [1])
    graph.output(graph.node("Expand", [feature, repeated]), "float32", ["B", "F", config.dim])
    graph.output(graph.node("Expand", [visible, every]), "float32", ["F", "T"])
    for index in range(config.layers):
        keys, values = new_columns(graph, index)
        graph.output(keys, "float32", ["B", heads, size, "T"])
        graph.output(graph.node("Identity", [values]), "float32", ["B", heads, "T", size])


def unpack(nodes: DecoderNodes, declared: Sequence[str], tokens: str) -> tuple[SharedByLevels, FrontierNodes]:
    """Return the outputs of `declare_common`, and the first of its frontiers."""
    count = len(SharedByLevels._fields)
    features, seen, *above = declared[count:]
    return SharedByLevels(*declared[:count]), FrontierNodes(tokens, features, seen, _pairs(above))


def _pairs(flat: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def declare_frontier(graph: GraphWriter, nodes: DecoderNodes) -> FrontierNodes:
    """Declare a frontier as inputs of a loop's body."""
    config = nodes.config
    tokens = graph.input("here_tokens", "int64", ["F"])
    features = graph.input("here_features", "float32", ["B", "F", config.dim])
    seen = graph.input("here_seen", "float32", ["F", "N"])
    above = []
    for index in range(config.layers):
        keys = graph.input(f"here_keys_{index}", "float32", ["B", config.kv_heads, config.head_dim, "N"])
        above.append(
            (keys, graph.input(f"here_values_{index}", "float32", ["B", config.kv_heads, "N", config.head_dim]))
        )
    return FrontierNodes(tokens, features, seen, tuple(above))


def expand(
    graph: GraphWriter, nodes: DecoderNodes, common: SharedByLevels, number: str, frontier: FrontierNodes
) -> Expanded:
    """Run one pass over a frontier; `number` [] counts the levels below the root's level."""
    config = nodes.config
    width, dim = config.head_dim, config.dim
    flat = graph.node("Reshape", [frontier.features, graph.integers(-1, dim)])
    across = graph.node("Concat", [common.rows, graph.size(frontier.tokens, 0)], axis=0)
    cells = graph.node("Expand", [graph.node("Gather", [common.cells, number]), across])
    embedded = graph.node("Gather", [nodes.embedding, graph.node("Tile", [frontier.tokens, common.rows])])
    hidden = read_features(graph, flat, add_positions(graph, nodes, embedded, cells))
    joined: list[tuple[str, str]] = []

    def attention(index: int, keys: str, values: str) -> Sequence[Seen]:
        above_keys, above_values = frontier.above[index]
        joined.append(
            (
                graph.node("Concat", [above_keys, keys], axis=3),
                graph.node("Concat", [above_values, values], axis=2),
            )
        )
        return (
            Seen(names.past_key(index), names.past_value(index), common.past_bias),
            Seen(above_keys, above_values, frontier.seen),
            Seen(keys, values, common.self_bias),
        )

    columns = [common.slots, graph.size(frontier.seen, 1), graph.size(frontier.tokens, 0)]
    rows = None
    if nodes.rotary is not None:
        by_cell = graph.node("Gather", [nodes.rotary[2], cells])
        rows = graph.node("Reshape", [by_cell, graph.integers(-1, config.projected_heads)])
    layer_pass = LayerPass(
        rows,
        graph.node("Concat", [common.rows, graph.integers(-1, config.projected_heads, width)], axis=0),
        SplitAttention(attention, graph.node("Concat", columns, axis=0)),
    )
    for index in range(config.layers):
        hidden, _, _ = layer(graph, nodes, layer_pass, hidden, index)
    features = norm(graph, hidden, "norm", config) if graph.has("norm") else hidden
    by_row = [
        graph.node("Concat", [common.rows, graph.integers(-1, size)], axis=0) for size in (dim, config.vocab_size)
    ]
    logits = graph.node("Reshape", [graph.product(features, "head"), by_row[1]])
    probs = probability_rows(graph, logits, config.vocab_size)
    return Expanded(probs, graph.node("Reshape", [features, by_row[0]]), tuple(joined))


def next_frontier(
    graph: GraphWriter, done: Expanded, frontier: FrontierNodes, common: SharedByLevels, tokens: str, parents: str
) -> FrontierNodes:
    """Return the next frontier: `tokens` [F], the children of the nodes `parents` [F] of this one."""
    seen = graph.node("Concat", [frontier.seen, common.self_bias], axis=1)
    return FrontierNodes(
        tokens=tokens,
        features=graph.node("Gather", [done.features, parents], axis=1),
        seen=graph.node("Gather", [seen, parents], axis=0),
        above=done.above,
    )


def return_frontier(graph: GraphWriter, nodes: DecoderNodes, frontier: FrontierNodes) -> None:
    """Declare a frontier as outputs of a loop's body, in the order of `FrontierNodes.flat`."""
    config = nodes.config
    graph.output(frontier.tokens, "int64", ["F"])
    graph.output(frontier.features, "float32", ["B", "F", config.dim])
    graph.output(frontier.seen, "float32", ["F", "N+F"])
    for keys, values in frontier.above:
        graph.output(keys, "float32", ["B", config.kv_heads, config.head_dim, "N+F"])
        graph.output(values, "float32", ["B", config.kv_heads, "N+F", config.head_dim])
