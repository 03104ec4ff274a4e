"""The graph of a published decoder, in any precision; its contract is that of `export.decoder`.

What is added to it: condition positions have cells -prefix to -1; models whose condition is made of features read it as
`conditions` [C, D] float32, whose rows are ids V, V + 1, ...; models that are guided by a prompt read `unseen` [B]
int64, how many of the first slots of the cache a row does not see; caches are of the graph's precision. Scores are
added and normalised in float32 whatever the precision, so that a decision on flat logits is not one of rounding.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.export.typed import TypedGraph
from underpaint.export.weights import plain, rotary_rows
from underpaint.models.layers import RMSNorm
from underpaint.models.published.decoder import QK_NORM_EPS, Conditioner, Decoder, DecoderConfig, Layer, turn_table

Array = NDArray[np.float32]


class _Shared(NamedTuple):
    """What every layer reads. bias: [T, S + T], or [B, 1, T, S + T]."""

    bias: str
    turns: tuple[str, str, str] | None
    heads_shape: str
    grid_shape: str
    flat_shape: str
    qkv_sizes: str
    score_sizes: str


def write_decoder(decoder: Decoder, graph: TypedGraph) -> None:
    """Add a target's or a drafter's pass to an empty graph."""
    config = decoder.config
    graph.input("tokens", "int64", ["B", "T"])
    graph.input("cells", "int64", ["T"])
    graph.input("bias", "float", ["T", "S+T"])
    shared = _shared(graph, config)
    hidden = _embedded(graph, decoder, shared)
    for index, part in enumerate(decoder.layers):
        assert isinstance(part, Layer)
        hidden = _layer(graph, hidden, part, shared, config, index)
    if decoder.norm is not None:
        hidden = _norm(graph, hidden, decoder.norm)
    shape = graph.node("Shape", ["tokens"])
    wide = graph.node("Concat", [shape, graph.integers(config.dim)], axis=0)
    name = "predicted" if config.drafter else "features"
    graph.node("Reshape", [graph.widen(hidden), wide], name)
    rows = graph.widen(graph.node("MatMul", [hidden, graph.weight(plain(decoder.head.weight).T, "head")]))
    graph.node("Reshape", [rows, graph.node("Concat", [shape, graph.integers(config.vocab_size)], axis=0)], "logits")
    graph.output("logits", ["B", "T", config.vocab_size])
    graph.output(name, ["B", "T", config.dim])


def write_conditioner(conditioner: Conditioner, graph: TypedGraph) -> None:
    """Add the embedding of a condition: `features` [P, C] to `rows` [2P, D], float32 both."""
    prefix, width = conditioner.absent.shape
    graph.input("features", "float", [prefix, width])
    absent = graph.weight(plain(conditioner.absent), "absent")
    both = graph.node("Concat", [graph.narrow("features"), absent], axis=0)
    hidden = graph.node("MatMul", [both, graph.weight(plain(conditioner.first.weight).T, "first")])
    if conditioner.second is None:
        hidden = graph.node("Add", [hidden, graph.weight(plain(conditioner.first.bias), "first_bias")])
    else:
        opened = graph.node("Gelu", [hidden], approximate="tanh")
        hidden = graph.node("MatMul", [opened, graph.weight(plain(conditioner.second.weight).T, "second")])
    graph.widen(hidden, "rows")
    graph.output("rows", [2 * prefix, conditioner.first.weight.shape[0]])


def _shared(graph: TypedGraph, config: DecoderConfig) -> _Shared:
    heads, rows = config.heads, 3 * config.heads
    shape = graph.node("Shape", ["tokens"])
    slots = graph.node("Shape", ["past_key_0"], start=3, end=4)
    return _Shared(
        bias=_row_bias(graph, config, slots) if config.kept else "bias",
        turns=None if config.rotary == "none" else _turns(graph, config, shape),
        heads_shape=graph.integers(-1, rows, config.head_dim),
        grid_shape=graph.node("Concat", [shape, graph.integers(rows, config.head_dim)], axis=0),
        flat_shape=graph.integers(-1, config.dim),
        qkv_sizes=graph.integers(heads, heads, heads),
        score_sizes=graph.node("Concat", [slots, graph.node("Shape", ["cells"])], axis=0),
    )


def _row_bias(graph: TypedGraph, config: DecoderConfig, slots: str) -> str:
    """The bias of each row: the first slots hidden where `unseen` says so."""
    graph.input("unseen", "int64", ["B"])
    counted = graph.constant(np.arange(config.slots)[None], "slots")
    places = graph.node("Slice", [counted, graph.integers(0), slots, graph.integers(1)])
    hidden = graph.node("Less", [places, graph.node("Unsqueeze", ["unseen", graph.integers(1)])])
    past = graph.node(
        "Where", [hidden, graph.constant(np.array(MASKED_SCORE)), graph.constant(np.array(np.float32(0)))]
    )
    new = graph.node("ConstantOfShape", [graph.node("Shape", ["tokens"])])
    whole = graph.node("Unsqueeze", [graph.node("Concat", [past, new], axis=1), graph.integers(1, 2)])
    return graph.node("Add", [whole, "bias"])


def _turns(graph: TypedGraph, config: DecoderConfig, shape: str) -> tuple[str, str, str]:
    """Cosines, sines, and for every position the rows of its 3 * heads heads: q scaled, k, and v that stays."""
    table, heads = plain(turn_table(config)), config.heads
    rotary = rotary_rows(table[:, 0], table[:, 1], heads, config.head_dim)
    by_cell = graph.node("Gather", [graph.constant(rotary.rows_of, "rows_of"), "cells"])
    every_row = graph.node("Concat", [shape, graph.integers(3 * heads)], axis=0)
    positions = graph.node("Reshape", [graph.node("Expand", [by_cell, every_row]), graph.integers(-1, 3 * heads)])
    return graph.weight(rotary.cosine, "cosine"), graph.weight(rotary.sine, "sine"), positions


def _embedded(graph: TypedGraph, decoder: Decoder, shared: _Shared) -> str:
    """Hidden rows [B * T, D] of the tokens."""
    config = decoder.config
    flat = graph.node("Reshape", ["tokens", graph.integers(-1)])
    codes = plain(decoder.codes.weight)
    if decoder.fc is not None:
        from_features, from_codes = np.split(plain(decoder.fc.weight).T, 2)
        # What the input layer makes of an embedding depends on the token alone: one row instead of a product.
        table = codes @ from_codes + plain(decoder.fc.bias)
        graph.input("features", "float", ["B", "T", config.dim])
        features = graph.node("Reshape", [graph.narrow("features"), shared.flat_shape])
        product = graph.node("MatMul", [features, graph.weight(from_features, "fc_feature")])
        return graph.node("Add", [product, graph.node("Gather", [graph.weight(table, "embedding"), flat])])
    if decoder.conditions is not None:
        table = np.concatenate([codes, plain(decoder.conditions.weight)])
        hidden = graph.node("Gather", [graph.weight(table, "embedding"), flat])
    else:
        hidden = _outside(graph, graph.weight(codes, "embedding"), flat, config)
    if decoder.positions is None:
        return hidden
    own = graph.node("Gather", [graph.weight(plain(decoder.positions.weight), "positions"), "cells"])
    shape = graph.node("Concat", [graph.node("Shape", ["tokens"]), graph.integers(config.dim)], axis=0)
    added = graph.node("Add", [graph.node("Reshape", [hidden, shape]), own])
    return graph.node("Reshape", [added, shared.flat_shape])


def _outside(graph: TypedGraph, table: str, flat: str, config: DecoderConfig) -> str:
    """Rows of codes, or of the `conditions` that come from outside, by id; neither table is copied."""
    graph.input("conditions", "float", ["C", config.dim])
    first, zero = graph.integers(config.vocab_size), graph.integers(0)
    beyond = graph.node("GreaterOrEqual", [flat, first])
    own = graph.node("Gather", [table, graph.node("Where", [beyond, zero, flat])])
    row = graph.node("Where", [beyond, graph.node("Sub", [flat, first]), zero])
    other = graph.narrow(graph.node("Gather", ["conditions", row]))
    tall = graph.node("Unsqueeze", [beyond, graph.integers(1)])
    return graph.node("Where", [tall, other, own])


def _norm(graph: TypedGraph, hidden: str, norm: RMSNorm) -> str:
    scale = graph.weight(plain(norm.weight), "norm")
    return graph.node("RMSNormalization", [hidden, scale], axis=-1, epsilon=norm.eps)


def _add_product(graph: TypedGraph, value: str, matrix: Array, stem: str, hidden: str, norm: RMSNorm | None) -> str:
    """`hidden` plus `value` times `matrix`, with a norm between them where the model has one there."""
    weight = graph.weight(matrix, stem)
    if norm is None:
        return graph.node("Gemm", [value, weight, hidden])
    return graph.node("Add", [hidden, _norm(graph, graph.node("MatMul", [value, weight]), norm)])


def _layer(graph: TypedGraph, hidden: str, layer: Layer, shared: _Shared, config: DecoderConfig, index: int) -> str:
    after = config.post_norm
    norm = layer.attention_norm
    read = hidden if after or norm is None else _norm(graph, hidden, norm)
    mixed = _attend(graph, read, layer, shared, config, index)
    hidden = _add_product(graph, mixed, plain(layer.out.weight).T, "out", hidden, norm if after else None)
    read = hidden if after else _norm(graph, hidden, layer.ffn_norm)
    both = graph.node("MatMul", [read, graph.weight(plain(layer.gate_up.weight).T, "gate_up")])
    gate, up = graph.split(both, graph.integers(config.hidden, config.hidden), -1, [None, None])
    opened = graph.node("Mul", [gate, graph.node("Sigmoid", [gate])])
    fed, down = graph.node("Mul", [opened, up]), plain(layer.down.weight).T
    return _add_product(graph, fed, down, "down", hidden, layer.ffn_norm if after else None)


def _query_key_value(graph: TypedGraph, read: str, layer: Layer, shared: _Shared, config: DecoderConfig) -> str:
    """Heads [B, 3H, T, hd], turned, the query scaled."""
    matrix = plain(layer.qkv.weight).T
    bias = plain(layer.qkv.bias) if config.qkv_bias else None
    if shared.turns is None:  # no table to put the scale into
        scale = np.ones(3 * config.dim, dtype=np.float32)
        scale[: config.dim] = config.head_dim**-0.5
        matrix = matrix * scale
        bias = bias if bias is None else bias * scale
    merged = graph.node("MatMul", [read, graph.weight(matrix, "qkv")])
    if bias is not None:
        merged = graph.node("Add", [merged, graph.weight(bias, "qkv_bias")])
    heads = graph.node("Reshape", [merged, shared.heads_shape])
    if config.qk_norm:
        heads = _norm_heads(graph, heads, layer, shared, config)
    if shared.turns is not None:
        heads = graph.node("RotaryEmbedding", [heads, *shared.turns], num_heads=1)
    return graph.node("Transpose", [graph.node("Reshape", [heads, shared.grid_shape])], perm=[0, 2, 1, 3])


def _norm_heads(graph: TypedGraph, heads: str, layer: Layer, shared: _Shared, config: DecoderConfig) -> str:
    query, key, value = graph.split(heads, shared.qkv_sizes, 1, [None, None, None])
    ones = graph.weight(np.ones(config.head_dim, dtype=np.float32), "ones")
    found = []
    for part, scale, shift in ((query, layer.q_scale, layer.q_shift), (key, layer.k_scale, layer.k_shift)):
        normed = graph.node("LayerNormalization", [part, ones], axis=-1, epsilon=QK_NORM_EPS)
        scaled = graph.node("Mul", [normed, graph.weight(plain(scale), "head_scale")])
        found.append(graph.node("Add", [scaled, graph.weight(plain(shift), "head_shift")]))
    return graph.node("Concat", [*found, value], axis=1)


def _attend(graph: TypedGraph, read: str, layer: Layer, shared: _Shared, config: DecoderConfig, index: int) -> str:
    heads, width = config.heads, config.head_dim
    past_key = graph.feed(f"past_key_{index}", ["B", heads, width, "S"])
    past_value = graph.feed(f"past_value_{index}", ["B", heads, "S", width])
    laid_out = _query_key_value(graph, read, layer, shared, config)
    names = [None, f"new_key_{index}", f"new_value_{index}"]
    query, key, value = graph.split(laid_out, shared.qkv_sizes, 1, names)
    past_scores = graph.node("MatMul", [query, past_key])
    scores = graph.node("MatMul", [query, graph.node("Transpose", [key], perm=[0, 1, 3, 2])])
    joined = graph.widen(graph.node("Concat", [past_scores, scores], axis=-1))
    shares = graph.node("Softmax", [graph.node("Add", [joined, shared.bias])], axis=-1)
    past_share, share = graph.split(graph.narrow(shares), shared.score_sizes, -1, [None, None])
    mixed = graph.node("Add", [graph.node("MatMul", [past_share, past_value]), graph.node("MatMul", [share, value])])
    graph.result(key, ["B", heads, "T", width])
    graph.result(value, ["B", heads, "T", width])
    return graph.node("Reshape", [graph.node("Transpose", [mixed], perm=[0, 2, 1, 3]), shared.flat_shape])
