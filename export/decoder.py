"""The decoder graphs: a target's and a drafter's pass over T new positions against a cache that it never copies.

Inputs, B rows (2 for a guidance pair, conditional first), S cache slots, T new positions:

    tokens [B, T] int64    codes; condition ids stand behind them (see `weights.Vocabulary`)
    cells  [T] int64       raster cell of each position; -1 on the condition prefix
    bias   [T, S + T]      0 where a position may see a cache slot or a new position, else a large finite negative
    features [B, T, D]     drafters only: the feature of the token before each
    past_key_i [B, H, hd, S], past_value_i [B, H, S, hd]

Outputs: logits [B, T, V], features [B, T, D], and of the new positions only new_key_i, new_value_i [B, H, T, hd].

They also give the distributions that a sampler makes of the logits (`export.probabilities`, for its inputs too).

Drafters go on by themselves (`export.chain`): with levels [] int64 they also give drafted [max(1, levels)] int64,
the likeliest token after the last new position, then the likeliest after that, and so on. Or they grow a whole tree
behind it (`export.growth`).

What makes a one-token pass fast is few nodes and few bytes: one matrix for q, k and v and one for gate and up,
residuals added inside the matrix products, one rotary node for q, k and v together (v turns by nothing, q is
scaled by its table), keys stored with slots last so that neither the cache nor a weight is ever transposed.
"""

from typing import NamedTuple

import numpy as np
import onnx
from torch import Tensor

from underpaint.export.blocks import feed_forward, norm
from underpaint.export.chain import DrafterWeights, Turning, greedy_chain
from underpaint.export.graph import GraphWriter
from underpaint.export.growth import grown_tree
from underpaint.export.probabilities import probability_outputs
from underpaint.export.weights import Layer, Vocabulary, Weights, drafter_input, layer, plain, rotary_rows
from underpaint.models.drafter import BoundDrafter
from underpaint.models.transformer import Transformer, TransformerConfig


class _Shared(NamedTuple):
    """What every layer reads."""

    bias: str
    positions: str
    cosine: str
    sine: str
    rows_of: str
    heads_shape: str
    grid_shape: str
    flat_shape: str
    qkv_sizes: str
    score_sizes: str


def target_graph(transformer: Transformer, vocabulary: Vocabulary, halves: bool) -> onnx.ModelProto:
    """The graph of a target; with `halves`, its weights must be what float16 can hold (`weights.halve`)."""
    config = transformer.config
    graph = GraphWriter("target", halves)
    shared = _inputs(graph, config, transformer.rotary)
    flat = graph.node("Reshape", ["tokens", graph.integers(-1)])
    codes = graph.weight(vocabulary.codes, "codes")
    # Derived by an encoder, so not float16 numbers; few enough to keep whole. Engines join the two when they load.
    table = graph.node("Concat", [codes, graph.constant(vocabulary.conditions, "conditions")], axis=0)
    hidden = graph.node("Gather", [table, flat])
    for index, block in enumerate(transformer.blocks):
        hidden = _layer(graph, hidden, layer(block, config), shared, config, index)
    _head(graph, hidden, plain(transformer.norm.weight), plain(transformer.output.weight), config)
    probability_outputs(graph, config.vocab_size)
    return graph.close()


def drafter_graph(drafter: BoundDrafter, halves: bool, integers: bool) -> onnx.ModelProto:
    """The graph of a drafter; see `target_graph`, and for `integers` `GraphWriter.product`.

    The product with the features stays in floating point: outliers among them would coarsen those beside them.
    """
    config = drafter.drafter.config
    graph = GraphWriter("drafter", halves, integers)
    shared = _inputs(graph, config, drafter.drafter.rotary)
    graph.input("features", "float", ["B", "T", config.dim])
    from_features, from_embeddings, embeddings = drafter_input(drafter)
    # A product of two constants: engines fold it when they load, and a token costs one row instead of a product.
    table = graph.node("MatMul", [graph.weight(embeddings, "embedding"), graph.weight(from_embeddings, "fc_embedding")])
    weights = DrafterWeights(
        table=table,
        from_features=from_features,
        layer=layer(drafter.drafter.block, config),
        norm=plain(drafter.drafter.norm.weight),
        head=plain(drafter.output.weight),
    )
    tokens = graph.node("Gather", [table, graph.node("Reshape", ["tokens", graph.integers(-1)])])
    rows = graph.node("Reshape", ["features", shared.flat_shape])
    hidden = graph.product(rows, from_features, "fc_feature", tokens, floating=True)
    hidden = _layer(graph, hidden, weights.layer, shared, config, 0)
    _head(graph, hidden, weights.norm, weights.head, config, "predicted")
    turning = Turning(shared.cosine, shared.sine, shared.rows_of)
    probability_outputs(graph, config.vocab_size, greedy_chain(graph, weights, config, turning))
    grown_tree(graph, weights, config, turning)
    return graph.close()


def _inputs(graph: GraphWriter, config: TransformerConfig, table: Tensor) -> _Shared:
    """Inputs that every decoder has; `table` [1 + cells, head_dim / 2, 2] is the module's own, the prefix first."""
    turns = np.roll(plain(table), -1, axis=0)
    rotary = rotary_rows(turns[..., 0], turns[..., 1], config.n_head, config.head_dim)
    graph.input("tokens", "int64", ["B", "T"])
    graph.input("cells", "int64", ["T"])
    graph.input("bias", "float", ["T", "S+T"])
    rows = 3 * config.n_head
    shape = graph.node("Shape", ["tokens"])
    rows_of = graph.constant(rotary.rows_of, "rows_of")
    by_cell = graph.node("Gather", [rows_of, "cells"])
    every_row = graph.node("Concat", [shape, graph.integers(rows)], axis=0)
    repeated = graph.node("Expand", [by_cell, every_row])
    length = graph.node("Shape", ["cells"])
    slots = graph.node("Shape", ["past_key_0"], start=3, end=4)
    return _Shared(
        bias="bias",
        positions=graph.node("Reshape", [repeated, graph.integers(-1, rows)]),
        cosine=graph.constant(rotary.cosine, "cosine"),
        sine=graph.constant(rotary.sine, "sine"),
        rows_of=rows_of,
        heads_shape=graph.integers(-1, rows, config.head_dim),
        grid_shape=graph.node("Concat", [shape, graph.integers(rows, config.head_dim)], axis=0),
        flat_shape=graph.integers(-1, config.dim),
        qkv_sizes=graph.integers(config.n_head, config.n_head, config.n_head),
        score_sizes=graph.node("Concat", [slots, length], axis=0),
    )


def _layer(
    graph: GraphWriter, hidden: str, weights: Layer, shared: _Shared, config: TransformerConfig, index: int
) -> str:
    mixed = _attend(graph, hidden, weights, shared, config, index)
    return feed_forward(graph, graph.product(mixed, weights.out, "out", hidden), weights, config)


def _attend(
    graph: GraphWriter, hidden: str, weights: Layer, shared: _Shared, config: TransformerConfig, index: int
) -> str:
    heads, width = config.n_head, config.head_dim
    past_key = graph.input(f"past_key_{index}", "float", ["B", heads, width, "S"])
    past_value = graph.input(f"past_value_{index}", "float", ["B", heads, "S", width])
    normed = norm(graph, hidden, weights.attention_norm, config)
    merged = graph.product(normed, weights.qkv, "qkv")
    by_head = graph.node("Reshape", [merged, shared.heads_shape])
    turned = graph.node("RotaryEmbedding", [by_head, shared.cosine, shared.sine, shared.positions], num_heads=1)
    laid_out = graph.node("Transpose", [graph.node("Reshape", [turned, shared.grid_shape])], perm=[0, 2, 1, 3])
    names = [None, f"new_key_{index}", f"new_value_{index}"]
    query, key, value = graph.split(laid_out, shared.qkv_sizes, 1, names)
    past_scores = graph.node("MatMul", [query, past_key])
    scores = graph.node("MatMul", [query, graph.node("Transpose", [key], perm=[0, 1, 3, 2])])
    joined = graph.node("Add", [graph.node("Concat", [past_scores, scores], axis=-1), shared.bias])
    past_share, share = graph.split(graph.node("Softmax", [joined], axis=-1), shared.score_sizes, -1, [None, None])
    mixed = graph.node("Add", [graph.node("MatMul", [past_share, past_value]), graph.node("MatMul", [share, value])])
    graph.output(key, ["B", heads, "T", width])
    graph.output(value, ["B", heads, "T", width])
    return graph.node("Reshape", [graph.node("Transpose", [mixed], perm=[0, 2, 1, 3]), shared.flat_shape])


def _head(
    graph: GraphWriter, hidden: str, scale: Weights, head: Weights, config: TransformerConfig, name: str = "features"
) -> None:
    normed = norm(graph, hidden, scale, config)
    shape = graph.node("Shape", ["tokens"])
    wide = graph.node("Concat", [shape, graph.integers(config.dim)], axis=0)
    graph.node("Reshape", [normed, wide], name)
    rows = graph.product(normed, np.ascontiguousarray(head.T), "head")
    tall = graph.node("Concat", [shape, graph.integers(config.vocab_size)], axis=0)
    graph.node("Reshape", [rows, tall], "logits")
    graph.output("logits", ["B", "T", config.vocab_size])
    graph.output(name, ["B", "T", config.dim])
