"""Writes one decoder layer as graph nodes, for all kinds of passes: cached passes, chain steps and tree levels.

A one-token pass is fast if it has few nodes and reads few bytes. So q, k and v share one matrix, as do gate and up;
residuals are added inside the matrix products; one rotary node turns q, k and v together (v by zero; q is scaled by
its table); keys are stored with slots last, so that neither the cache nor a weight is ever transposed. In every
precision, the rotary tables are float32, and attention scores are computed, summed and normalised in float32, so that
rounding does not decide between nearly equal logits.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.device_graph import cached_width
from underpaint.export.decoder_weights import RotaryTable
from underpaint.export.graph import ARRAYS, GraphWriter
from underpaint.models.layers import QK_NORM_EPS


class Seen(NamedTuple):
    """A part that positions attend to: keys [B, K, hd, N], values [B, K, N, hd], and an optional bias of its own."""

    keys: str
    values: str
    bias: str | None = None


Attention: TypeAlias = Callable[[int, str, str], Sequence[Seen]]
"""Returns the parts that layer i attends to, from i and the new keys [B, K, hd, T] and values [B, K, T, hd]."""


class DecoderNodes(NamedTuple):
    """The nodes and sizes that all layers share.

    Attributes:
        config: Sizes and options of the decoder.
        embedding: [V + conditions, D], after the input layer of a drafter; "" if the pass looks up no tokens.
        rotary: Cosines, sines, and table rows by cell; None if positions are learnt.
        heads_shape: [3]: -1, H + 2K, hd.
        flat_shape: [2]: -1, D.
        qkv_sizes: [3]: numbers of heads of queries, keys and values.
    """

    config: DecoderConfig
    embedding: str
    rotary: tuple[str, str, str] | None
    heads_shape: str
    flat_shape: str
    qkv_sizes: str


class SplitAttention(NamedTuple):
    """Attention to a cache and to new positions stored apart: a product with each part, and one softmax over all.

    Attributes:
        seen: The parts that each layer sees.
        sizes: Number of columns of each part, [parts].
        bias: Added to the scores of all parts, [B, 1, T, N]; None adds nothing.
    """

    seen: Attention
    sizes: str
    bias: str | None = None

    def mix(self, graph: GraphWriter, config: DecoderConfig, index: int, query: str, new: tuple[str, str]) -> str:
        """The mixed values [B, H, T, hd] for `query` [B, H, T, hd] in layer `index`; new: its keys and values."""
        key, value = new
        turned = graph.node("Transpose", [key], perm=[0, 1, 3, 2])
        return _attend(graph, config, query, self.seen(index, turned, value), self)


class InPlaceAttention(NamedTuple):
    """Attention to a cache [B, K, P, W] that the new positions are first written into; one fused node.

    Attributes:
        sees: [B, 1, T, P] bool; see `artifacts.device_graph`.
        write_at: [B] int64; see `artifacts.device_graph`.
        read_places: [B] int64; see `artifacts.device_graph`.
        names: Returns the names under which a layer's keys and values are read and written.
    """

    sees: str
    write_at: str
    read_places: str
    names: Callable[[int], Sequence[tuple[str, str]]]

    def mix(self, graph: GraphWriter, config: DecoderConfig, index: int, query: str, new: tuple[str, str]) -> str:
        """See `SplitAttention.mix`."""
        more = cached_width(config) - config.head_dim
        if more:
            ends = graph.integers(*[0] * 7, more)
            query, *new_padded = (graph.node("Pad", [part, ends]) for part in (query, *new))
            new = (new_padded[0], new_padded[1])
        key, value = (
            graph.node("TensorScatter", [read, part, self.write_at], written, axis=2)
            for part, (read, written) in zip(new, self.names(index), strict=True)
        )
        # NVIDIA's parser documents no such input; `tensorrt_build` sets the lengths after parsing.
        lengths = [] if graph.bare else ["", "", self.read_places]
        seen = [query, key, value, self.sees, *lengths]
        mixed = graph.node("Attention", seen, scale=1.0)  # queries are scaled when they turn
        return graph.split(mixed, graph.integers(config.head_dim, more), 3, [None, None])[0] if more else mixed


class LayerPass(NamedTuple):
    """The inputs that one pass gives to all layers.

    Attributes:
        positions: [R, H + 2K] rows of the rotary table; None if positions are learnt.
        grid_shape: [4]: B, T, H + 2K, hd.
        attention: The attention of every layer.
    """

    positions: str | None
    grid_shape: str
    attention: SplitAttention | InPlaceAttention


def decoder_nodes(
    graph: GraphWriter, config: DecoderConfig, rotary: RotaryTable | None, embeds: bool = True
) -> DecoderNodes:
    """Write the nodes that every pass reads; embeds: whether the pass looks up tokens."""
    tables = None
    if rotary is not None:
        tables = (
            graph.constant(rotary.cosine, "cosine"),
            graph.constant(rotary.sine, "sine"),
            graph.constant(rotary.rows_of, "rows_of"),
        )
    return DecoderNodes(
        config,
        _embedding(graph) if embeds else "",
        tables,
        graph.integers(-1, config.projected_heads, config.head_dim),
        graph.integers(-1, config.dim),
        graph.integers(config.heads, config.kv_heads, config.kv_heads),
    )


def _embedding(graph: GraphWriter) -> str:
    """Return the token embedding table."""
    table = graph.weight("embedding")
    if graph.has("fc_embedding"):
        # A product of two constants, which engines fold at load time: a token then costs one row instead of a product.
        return graph.node("MatMul", [table, graph.weight("fc_embedding")])
    if graph.has("conditions"):
        # Stored separately if their type differs from that of the codes. Engines join them at load time.
        return graph.node("Concat", [table, graph.weight("conditions")], axis=0)
    return table


def read_features(graph: GraphWriter, features: str, embedded: str) -> str:
    """A drafter's input [R, D]: `features` [R, D] float32 times their half of the input layer, plus `embedded`."""
    return graph.node("Gemm", [graph.narrow(features), graph.weight("fc_feature"), embedded])


def layer(
    graph: GraphWriter,
    nodes: DecoderNodes,
    layer_pass: LayerPass,
    hidden: str,
    index: int,
    names: tuple[str | None, str | None] = (None, None),
) -> tuple[str, str, str]:
    """Hidden rows [R, D] after layer `index`, and its new keys and values [B, K, T, hd], optionally under `names`."""
    config = nodes.config
    stem, after = f"layers.{index}.", config.post_norm
    normed = graph.has(f"{stem}attention_norm")
    read = norm(graph, hidden, f"{stem}attention_norm", config) if normed and not after else hidden
    query, key, value = _query_key_value(graph, nodes, layer_pass, read, stem, names)
    mixed = layer_pass.attention.mix(graph, config, index, query, (key, value))
    heads_wide = graph.integers(-1, config.heads * config.head_dim)
    flat = graph.node("Reshape", [graph.node("Transpose", [mixed], perm=[0, 2, 1, 3]), heads_wide])
    out_norm = f"{stem}attention_norm" if after and normed else None
    hidden = _add_product(graph, flat, f"{stem}out", hidden, out_norm, config)
    read = hidden if after else norm(graph, hidden, f"{stem}ffn_norm", config)
    both = graph.product(read, f"{stem}gate_up")
    gate, up = graph.split(both, graph.integers(config.hidden, config.hidden), -1, [None, None])
    fed = graph.node("Mul", [graph.node("Mul", [gate, graph.node("Sigmoid", [gate])]), up])
    hidden = _add_product(graph, fed, f"{stem}down", hidden, f"{stem}ffn_norm" if after else None, config)
    return hidden, key, value


def norm(graph: GraphWriter, hidden: str, scale: str, config: DecoderConfig) -> str:
    """Return the root-mean-square norm of `hidden` [R, D]."""
    return graph.node("RMSNormalization", [hidden, graph.weight(scale)], axis=-1, epsilon=config.norm_eps)


def _add_product(
    graph: GraphWriter, value: str, name: str, hidden: str, after: str | None, config: DecoderConfig
) -> str:
    """Add `value` times the matrix `name` to `hidden`, with a norm in between if the model has one there."""
    if after is None:
        return graph.product(value, name, hidden)
    return graph.node("Add", [hidden, norm(graph, graph.product(value, name), after, config)])


def _query_key_value(
    graph: GraphWriter,
    nodes: DecoderNodes,
    layer_pass: LayerPass,
    read: str,
    stem: str,
    names: tuple[str | None, str | None],
) -> tuple[str, str, str]:
    """Query [B, H, T, hd], key and value [B, K, T, hd], after the rotary turn; the query is scaled."""
    merged = graph.product(read, f"{stem}qkv")
    if graph.has(f"{stem}qkv_bias"):
        merged = graph.node("Add", [merged, graph.weight(f"{stem}qkv_bias")])
    heads = graph.node("Reshape", [merged, nodes.heads_shape])
    if nodes.config.qk_norm:
        heads = _norm_heads(graph, nodes, heads, stem)
    if nodes.rotary is not None and layer_pass.positions is not None:
        turned = graph.node(
            "RotaryEmbedding", [graph.widen(heads), *nodes.rotary[:2], layer_pass.positions], num_heads=1
        )
        heads = graph.narrow(turned)
    laid_out = graph.node("Transpose", [graph.node("Reshape", [heads, layer_pass.grid_shape])], perm=[0, 2, 1, 3])
    query, key, value = graph.split(laid_out, nodes.qkv_sizes, 1, [None, *names])
    return query, key, value


def _norm_heads(graph: GraphWriter, nodes: DecoderNodes, heads: str, stem: str) -> str:
    query, key, value = graph.split(heads, nodes.qkv_sizes, 1, [None, None, None])
    ones = graph.constant(np.ones(nodes.config.head_dim, dtype=ARRAYS[graph.precision]), "ones")
    normed_heads = []
    for part, which in ((query, "q"), (key, "k")):
        normed = graph.node("LayerNormalization", [part, ones], axis=-1, epsilon=QK_NORM_EPS)
        scaled = graph.node("Mul", [normed, graph.weight(f"{stem}{which}_scale")])
        normed_heads.append(graph.node("Add", [scaled, graph.weight(f"{stem}{which}_shift")]))
    return graph.node("Concat", [*normed_heads, value], axis=1)


def _attend(
    graph: GraphWriter, config: DecoderConfig, query: str, seen: Sequence[Seen], attention: SplitAttention
) -> str:
    """Mix values [B, H, T, hd] with one softmax over all parts.

    Query heads that share keys are stacked in the products, so the cache is not repeated.
    """

    def stacked(value: str) -> str:
        return value if config.kv_heads == config.heads else _reshaped(graph, value, config.kv_heads)

    def apart(value: str) -> str:
        return value if config.kv_heads == config.heads else _reshaped(graph, value, config.heads)

    query = stacked(graph.widen(query))
    scores = [apart(graph.node("MatMul", [query, graph.widen(part.keys)])) for part in seen]
    biased = [
        score if part.bias is None else graph.node("Add", [score, part.bias])
        for score, part in zip(scores, seen, strict=True)
    ]
    joined = graph.node("Concat", biased, axis=3)
    if attention.bias is not None:
        joined = graph.node("Add", [joined, attention.bias])
    shares = graph.narrow(graph.node("Softmax", [joined], axis=-1))
    parts = graph.split(shares, attention.sizes, 3, [None] * len(seen))
    mixed = [graph.node("MatMul", [stacked(share), part.values]) for share, part in zip(parts, seen, strict=True)]
    return apart(graph.node("Add" if len(mixed) == 2 else "Sum", mixed))


def _reshaped(graph: GraphWriter, value: str, heads: int) -> str:
    """Reshape [B, H, T, N] so that its second dimension is `heads`."""
    return graph.node("Reshape", [value, graph.integers(0, heads, -1, 0)])


def rotary_rows(graph: GraphWriter, nodes: DecoderNodes, cells: str) -> str | None:
    """Return the rows [B * T, H + 2K] of the rotary table for `cells` [B, T]."""
    if nodes.rotary is None:
        return None
    by_cell = graph.node("Gather", [nodes.rotary[2], cells])
    return graph.node("Reshape", [by_cell, graph.integers(-1, nodes.config.projected_heads)])


def embed(graph: GraphWriter, nodes: DecoderNodes, tokens: str, cells: str) -> str:
    """Hidden rows [B * T, D] of `tokens` [B, T] at `cells` [B, T], before a drafter's features."""
    embeddings = graph.node("Gather", [nodes.embedding, graph.node("Reshape", [tokens, graph.integers(-1)])])
    return add_positions(graph, nodes, embeddings, cells)


def add_positions(graph: GraphWriter, nodes: DecoderNodes, hidden: str, cells: str) -> str:
    """`hidden` [B * T, D] plus the learnt vectors of `cells` [B, T], if positions are learnt."""
    if not graph.has("positions"):
        return hidden
    position_vectors = graph.node("Gather", [graph.weight("positions"), cells])
    return graph.node("Add", [hidden, graph.node("Reshape", [position_vectors, nodes.flat_shape])])
