"""Writes the decoder graphs of any family: one pass of a target or a drafter, and the use of its logits.

`artifacts.decoder_graph` defines the inputs and outputs. A plain graph ends with the pass. A fused graph also computes
the sampling distributions of the logits, and a fused drafter drafts chains and whole trees in the same call. The device
runtime has separate graphs of the layers and of the head, defined in `artifacts.device_graph`.
"""

from collections.abc import Sequence

from underpaint.artifacts import decoder_graph as names
from underpaint.artifacts import device_graph
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import TensorSpec, pass_inputs, pass_outputs
from underpaint.export.chain import write_chain
from underpaint.export.decoder_layers import (
    DecoderNodes,
    InPlaceAttention,
    LayerPass,
    Seen,
    SplitAttention,
    add_positions,
    decoder_nodes,
    embed,
    layer,
    norm,
    read_features,
    rotary_rows,
)
from underpaint.export.decoder_weights import RotaryTable
from underpaint.export.graph import GraphWriter
from underpaint.export.probabilities import write_probs
from underpaint.export.tree import write_tree


def write_decoder(graph: GraphWriter, config: DecoderConfig, rotary: RotaryTable | None, fused: bool) -> None:
    """Add a target's or a drafter's pass to an empty graph whose weights have the names of `decoder_weights`.

    Args:
        graph: A graph of the precision of `config`.
        config: Sizes and options.
        rotary: The rotary table of `config`; None if positions are learnt.
        fused: Whether the graph also computes probabilities and, for a drafter, chains and trees.
    """
    graph.inputs(pass_inputs(config))
    graph.outputs(pass_outputs(config))
    nodes = decoder_nodes(graph, config, rotary)
    hidden, layer_pass = _embedded(graph, nodes), _cached_pass(graph, nodes)
    for index in range(config.layers):
        new = names.new_key(index), names.new_value(index)
        hidden, _, _ = layer(graph, nodes, layer_pass, hidden, index, new)
    _head(graph, nodes, hidden)
    if not fused:
        return
    if config.drafter:
        one_level = write_chain(graph, nodes)
        write_probs(graph, config.vocab_size, one_level)
        write_tree(graph, nodes)
    else:
        write_probs(graph, config.vocab_size)


def _cached_pass(graph: GraphWriter, nodes: DecoderNodes) -> LayerPass:
    config = nodes.config
    shape = graph.node("Shape", [names.TOKENS])
    slots, new = graph.size(names.past_key(0), 3), graph.size(names.TOKENS, 1)

    def attention(index: int, keys: str, values: str) -> Sequence[Seen]:
        return Seen(names.past_key(index), names.past_value(index)), Seen(keys, values)

    return LayerPass(
        rotary_rows(graph, nodes, names.CELLS),
        graph.node("Concat", [shape, graph.integers(config.projected_heads, config.head_dim)], axis=0),
        SplitAttention(
            attention,
            graph.node("Concat", [slots, new], axis=0),
            graph.node("Unsqueeze", [names.BIAS, graph.integers(1)]),
        ),
    )


def _embedded(graph: GraphWriter, nodes: DecoderNodes) -> str:
    """Embed the tokens as hidden rows [B * T, D]."""
    if nodes.config.condition == "external":
        return _external(graph, nodes)
    hidden = embed(graph, nodes, names.TOKENS, names.CELLS)
    if not nodes.config.drafter:
        return hidden
    return read_features(graph, graph.node("Reshape", [names.FEATURES, nodes.flat_shape]), hidden)


def _external(graph: GraphWriter, nodes: DecoderNodes) -> str:
    """Look up rows of codes, or of the external condition, by id; neither table is copied."""
    flat = graph.node("Reshape", [names.TOKENS, graph.integers(-1)])
    first, zero = graph.integers(nodes.config.vocab_size), graph.integers(0)
    beyond = graph.node("GreaterOrEqual", [flat, first])
    code_rows = graph.node("Gather", [nodes.embedding, graph.node("Where", [beyond, zero, flat])])
    row = graph.node("Where", [beyond, graph.node("Sub", [flat, first]), zero])
    other = graph.narrow(graph.node("Gather", [names.EXTERNAL_COND_ROWS, row]))
    tall = graph.node("Unsqueeze", [beyond, graph.integers(1)])
    return add_positions(graph, nodes, graph.node("Where", [tall, other, code_rows]), names.CELLS)


def _head(graph: GraphWriter, nodes: DecoderNodes, hidden: str) -> None:
    config = nodes.config
    if graph.has("norm"):
        hidden = norm(graph, hidden, "norm", config)
    shape = graph.node("Shape", [names.TOKENS])
    features = names.PREDICTED_FEATURES if config.drafter else names.FEATURES
    wide = graph.node("Concat", [shape, graph.integers(config.dim)], axis=0)
    graph.node("Reshape", [graph.widen(hidden), wide], features)
    rows = graph.wide_product(hidden, "head")
    tall = graph.node("Concat", [shape, graph.integers(config.vocab_size)], axis=0)
    graph.node("Reshape", [rows, tall], names.LOGITS)


def write_conditioner(graph: GraphWriter, prefix: int, width: int, dim: int) -> None:
    """Add the embedding of a condition to an empty graph: `features` [P, C] to `rows` [2P, D], both float32.

    Its weights have the names of `export.decoder_weights.conditioner_weights`.
    """
    graph.input("features", "float32", [prefix, width])
    both = graph.node("Concat", [graph.narrow("features"), graph.weight("absent")], axis=0)
    hidden = graph.product(both, "first")
    if graph.has("second"):
        hidden = graph.product(graph.node("Gelu", [hidden], approximate="tanh"), "second")
    else:
        hidden = graph.node("Add", [hidden, graph.weight("first_bias")])
    graph.node("Identity", [graph.widen(hidden)], "rows")
    graph.output("rows", "float32", [2 * prefix, dim])


def write_layers(
    graph: GraphWriter, config: DecoderConfig, rotary: RotaryTable | None, places: int | None = None
) -> None:
    """Add a pass through a decoder's layers to an empty graph.

    Args:
        graph: A graph of the precision of `config`.
        config: Sizes and options.
        rotary: See `write_decoder`.
        places: Fixed number of cache places, which TensorRT needs; None leaves it free.
    """
    graph.inputs(_with_places(device_graph.layers_inputs(config), places))
    graph.outputs(_with_places(device_graph.layers_outputs(config), places))
    nodes = decoder_nodes(graph, config, rotary, embeds=False)
    hidden = graph.node("Reshape", [device_graph.EMBEDDINGS, nodes.flat_shape])
    hidden = add_positions(graph, nodes, hidden, names.CELLS)
    if config.drafter:
        hidden = read_features(graph, graph.node("Reshape", [names.FEATURES, nodes.flat_shape]), hidden)
    shape = graph.node("Shape", [names.CELLS])
    caches = [(read.name, written.name) for read, written in device_graph.cache_specs(config)]
    layer_pass = LayerPass(
        rotary_rows(graph, nodes, names.CELLS),
        graph.node("Concat", [shape, graph.integers(config.projected_heads, config.head_dim)], axis=0),
        InPlaceAttention(
            device_graph.SEES,
            device_graph.WRITE_AT,
            device_graph.READ_PLACES,
            lambda index: caches[2 * index : 2 * index + 2],
        ),
    )
    for index in range(config.layers):
        hidden, _, _ = layer(graph, nodes, layer_pass, hidden, index)
    if graph.has("norm"):
        hidden = norm(graph, hidden, "norm", config)
    wide = graph.node("Concat", [shape, graph.integers(config.dim)], axis=0)
    graph.node("Reshape", [hidden, wide], device_graph.features_output(config.drafter))


def _with_places(specs: Sequence[TensorSpec], places: int | None) -> list[TensorSpec]:
    if places is None:
        return list(specs)
    return [spec._replace(shape=tuple(places if size == "P" else size for size in spec.shape)) for spec in specs]


def write_head(graph: GraphWriter, config: DecoderConfig) -> None:
    """Add a decoder's head to an empty graph: features to logits, multiplied in float32."""
    graph.inputs(device_graph.head_inputs(config))
    graph.outputs(device_graph.head_outputs(config))
    rows = graph.wide_product(graph.node("Reshape", [names.FEATURES, graph.integers(-1, config.dim)]), "head")
    around = graph.node("Shape", [names.FEATURES], start=0, end=2)
    tall = graph.node("Concat", [around, graph.integers(config.vocab_size)], axis=0)
    graph.node("Reshape", [rows, tall], names.LOGITS)
