"""The parts of a decoder layer that every graph has alike."""

from underpaint.export.graph import GraphWriter
from underpaint.export.weights import Layer, Weights
from underpaint.models.transformer import TransformerConfig


def norm(graph: GraphWriter, hidden: str, scale: Weights, config: TransformerConfig) -> str:
    """The root-mean-square norm of `hidden` [R, D]."""
    return graph.node("RMSNormalization", [hidden, graph.weight(scale, "norm")], axis=-1, epsilon=config.norm_eps)


def feed_forward(graph: GraphWriter, hidden: str, weights: Layer, config: TransformerConfig) -> str:
    """`hidden` [R, D] plus the gated layer of its norm."""
    normed = norm(graph, hidden, weights.ffn_norm, config)
    both = graph.product(normed, weights.gate_up, "gate_up")
    wide = config.hidden_dim
    gate, up = graph.split(both, graph.integers(wide, wide), -1, [None, None])
    opened = graph.node("Mul", [gate, graph.node("Sigmoid", [gate])])
    product = graph.node("Mul", [opened, up])
    return graph.product(product, weights.down, "down", hidden)
