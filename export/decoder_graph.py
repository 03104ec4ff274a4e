"""The decoder graph of any family: one pass of a target or a drafter, and what it makes of its logits.

Its contract is `artifacts.decoder_graph`. A plain graph stops at the pass; a fused one also gives the distributions
that a sampler makes of the logits, and a fused drafter drafts chains and whole trees in the same call.
"""

from collections.abc import Sequence

from underpaint.artifacts import decoder_graph as names
from underpaint.artifacts.decoder_graph import DecoderSizes, pass_inputs, pass_outputs
from underpaint.export.chain import write_chain
from underpaint.export.decoder_layers import (
    DecoderNodes,
    LayerPass,
    Seen,
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
from underpaint.models.decoder_config import DecoderConfig


def sizes_of(config: DecoderConfig, precision: names.Precision) -> DecoderSizes:
    """The sizes of a decoder's graph."""
    return DecoderSizes(
        vocab_size=config.vocab_size,
        dim=config.dim,
        layers=config.layers,
        heads=config.heads,
        head_dim=config.head_dim,
        drafter=config.drafter,
        external_cond_rows=config.condition == "external",
        precision=precision,
    )


def write_decoder(graph: GraphWriter, config: DecoderConfig, rotary: RotaryTable | None, fused: bool) -> None:
    """Add a target's or a drafter's pass to an empty graph, whose weights are named as `decoder_weights` names them.

    rotary: the table of `config`, None where positions are learnt. fused: whether the graph makes probabilities too,
    and a drafter chains and trees.
    """
    sizes = sizes_of(config, graph.precision)
    graph.inputs(pass_inputs(sizes))
    graph.outputs(pass_outputs(sizes))
    nodes = decoder_nodes(graph, config, rotary)
    hidden, given = _embedded(graph, nodes), _cached_pass(graph, nodes)
    for index in range(config.layers):
        new = names.new_key(index), names.new_value(index)
        hidden, _, _ = layer(graph, nodes, given, hidden, index, new)
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
        graph.node("Concat", [shape, graph.integers(3 * config.heads, config.head_dim)], axis=0),
        attention,
        graph.node("Concat", [slots, new], axis=0),
        graph.node("Unsqueeze", [names.BIAS, graph.integers(1)]),
    )


def _embedded(graph: GraphWriter, nodes: DecoderNodes) -> str:
    """Hidden rows [B * T, D] of the tokens."""
    if nodes.config.condition == "external":
        return _external(graph, nodes)
    hidden = embed(graph, nodes, names.TOKENS, names.CELLS)
    if not nodes.config.drafter:
        return hidden
    return read_features(graph, graph.node("Reshape", [names.FEATURES, nodes.flat_shape]), hidden)


def _external(graph: GraphWriter, nodes: DecoderNodes) -> str:
    """Rows of codes, or of the condition that comes from outside, by id; neither table is copied."""
    flat = graph.node("Reshape", [names.TOKENS, graph.integers(-1)])
    first, zero = graph.integers(nodes.config.vocab_size), graph.integers(0)
    beyond = graph.node("GreaterOrEqual", [flat, first])
    own = graph.node("Gather", [nodes.embedding, graph.node("Where", [beyond, zero, flat])])
    row = graph.node("Where", [beyond, graph.node("Sub", [flat, first]), zero])
    other = graph.narrow(graph.node("Gather", [names.EXTERNAL_COND_ROWS, row]))
    tall = graph.node("Unsqueeze", [beyond, graph.integers(1)])
    return add_positions(graph, nodes, graph.node("Where", [tall, other, own]), names.CELLS)


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
    """Add the embedding of a condition to an empty graph: `features` [P, C] to `rows` [2P, D], float32 both.

    Its weights are named as `export.decoder_weights.conditioner_weights` names them.
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
