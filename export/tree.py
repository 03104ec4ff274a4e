"""Drafts whole trees in one call of a drafter: EAGLE-2's expansion (arXiv 2406.16858, 4.1), and static trees.

Draws from a distribution equal those of `algos.chance.index_of` bit for bit: sums in float64, in the order of the
tokens. Products of probabilities are also in float64. So a tree equals one built level by level if the distributions
are equal; see `algos.draft.fused` for how these differ where products round to 8 bits.
"""

from typing import NamedTuple

import numpy as np

from underpaint.artifacts import decoder_graph as names
from underpaint.artifacts.decoder_graph import FUSED_INPUTS, TREE_OUTPUTS, tree_outputs
from underpaint.export.decoder_layers import DecoderNodes
from underpaint.export.graph import GraphWriter
from underpaint.export.tree_level import (
    common_count,
    declare_common,
    declare_frontier,
    expand,
    next_frontier,
    return_frontier,
    unpack,
)


class _Children(NamedTuple):
    """tokens, probs [F, C] of the children; indices frontier [F] of those expanded next, and their scores [F]."""

    tokens: str
    probs: str
    frontier: str
    scores: str


def write_tree(graph: GraphWriter, nodes: DecoderNodes) -> None:
    """Add the inputs that request a tree of L levels (0: none), and its outputs; see `artifacts.decoder_graph`.

    The first level has only the root's row, and the last row of `tree_frontier` is not read. Ranked candidates are in
    descending order with ties by number; the most likely children are in descending order with ties by token.
    """
    vocab_size = nodes.config.vocab_size
    graph.inputs(spec for spec in FUSED_INPUTS if spec.name != names.CHAIN_LEVELS)
    graph.outputs(tree_outputs(vocab_size))
    none, one = graph.constant(np.array(0)), graph.constant(np.array(1))
    levels = graph.node("Squeeze", [graph.size(names.TREE_FRONTIER, 0)])
    more = graph.node("Max", [graph.node("Sub", [levels, one]), none])

    def start(inner: GraphWriter) -> None:
        root = inner.node("Gather", [names.PROBS, inner.integers(-1)], axis=0)
        certain = inner.constant(np.ones(1))
        children = _children(inner, root, certain, none, inner.integers(0))
        inner.output(children.tokens, "int64", ["1", "C"])
        inner.output(children.probs, "float64", ["1", "C"])
        inner.output(children.frontier, "int64", ["F"])
        inner.output(children.scores, "float64", ["F"])
        inner.output(_picked(inner, children.tokens, children.frontier), "int64", ["F"])
        declare_common(inner, nodes, more, inner.size(names.TREE_FRONTIER, 1))

    outputs = [*TREE_OUTPUTS[:2], *[None] * (3 + common_count(nodes))]
    begun = graph.branch_if(graph.node("Greater", [levels, none]), start, outputs)
    common, frontier = unpack(nodes, begun[5:], begun[4])

    def turn(inner: GraphWriter) -> None:
        number = inner.input("level_turn", "int64", [])
        going = inner.input("level_going", "bool", [])
        here = declare_frontier(inner, nodes)
        expanded = inner.input("here_frontier", "int64", ["F"])
        scores = inner.input("here_scores", "float64", ["F"])
        done = expand(inner, nodes, common, number, here)
        children = _children(inner, done.probs, scores, inner.node("Add", [number, one]), None)
        parents = inner.node("Div", [children.frontier, inner.size(children.tokens, 1)])
        inner.output(inner.node("Identity", [going]), "bool", [])
        tokens = _picked(inner, children.tokens, children.frontier)
        return_frontier(inner, nodes, next_frontier(inner, done, here, common, tokens, parents))
        inner.output(children.frontier, "int64", ["F"])
        inner.output(children.scores, "float64", ["F"])
        inner.output(inner.node("Identity", [expanded]), "int64", ["F"])
        inner.output(children.tokens, "int64", ["F", "C"])
        inner.output(children.probs, "float64", ["F", "C"])
        inner.output(done.probs, "float32", ["F", vocab_size])

    below = graph.loop(more, [*frontier.flat(), *begun[2:4]], turn, collected=4)
    for level, name in zip(below, TREE_OUTPUTS[2:], strict=True):
        graph.node("Identity", [level], name)


def _picked(graph: GraphWriter, values: str, places: str) -> str:
    return graph.node("Gather", [graph.node("Reshape", [values, graph.integers(-1)]), places])


def _children(graph: GraphWriter, probs: str, scores: str, level: str, row: str | None) -> _Children:
    """Children of nodes with distributions `probs` [F, V] and `scores` [F], at `level` []; `row`: uniforms index."""

    def drawn(inner: GraphWriter) -> None:
        uniforms = inner.node("Gather", [names.TREE_UNIFORMS, level])
        _draw(inner, probs, uniforms if row is None else inner.node("Gather", [uniforms, row]))

    def likeliest(inner: GraphWriter) -> None:
        count = inner.size(names.TREE_UNIFORMS, 2)
        top_probs, tokens = inner.nodes("TopK", [probs, count], [None, None])
        capped = inner.node("Min", [top_probs, inner.constant(np.array(1, dtype=np.float32))])
        inner.output(tokens, "int64", ["F", "C"])
        inner.output(inner.to_double(capped), "float64", ["F", "C"])

    def best(inner: GraphWriter) -> None:
        column = inner.node("Unsqueeze", [scores, inner.integers(1)])
        products = inner.node("Reshape", [inner.node("Mul", [column, token_probs]), inner.integers(-1)])
        below, places = inner.nodes("TopK", [products, inner.size(names.TREE_FRONTIER, 1)], [None, None])
        inner.output(places, "int64", ["F"])
        inner.output(below, "float64", ["F"])

    def named(inner: GraphWriter) -> None:
        places = inner.node("Gather", [names.TREE_FRONTIER, level])
        inner.output(places, "int64", ["F"])
        inner.output(inner.to_double(places), "float64", ["F"])

    tokens, token_probs = graph.branch(names.TREE_DRAWN, drawn, likeliest, [None, None])
    places, following = graph.branch(names.TREE_RANKED, best, named, [None, None])
    return _Children(tokens, token_probs, places, following)


def _draw(graph: GraphWriter, probs: str, uniforms: str) -> None:
    """Declare as outputs tokens [F, C] drawn from `probs` [F, V] with `uniforms` [F, C], and their probabilities."""
    by_turn = graph.node("Transpose", [uniforms], perm=[1, 0])
    last, end = graph.integers(-1), graph.integers(np.iinfo(np.int64).max)

    def draw(inner: GraphWriter) -> None:
        number = inner.input("draw_turn", "int64", [])
        going = inner.input("draw_going", "bool", [])
        weights = inner.input("left", "float64", ["F", "V"])
        summed = inner.node("CumSum", [weights, inner.constant(np.array(1))])
        total = inner.node("Slice", [summed, last, end, inner.integers(1)])
        uniform = inner.node("Unsqueeze", [inner.node("Gather", [by_turn, number]), inner.integers(1)])
        passed = inner.to_integer(inner.node("LessOrEqual", [summed, inner.node("Mul", [uniform, total])]))
        most = inner.node("Sub", [inner.size(weights, 1), inner.integers(1)])
        token = inner.node("Min", [inner.node("ReduceSum", [passed, inner.integers(1)], keepdims=1), most])
        prob = inner.node("GatherElements", [weights, token], axis=1)
        nothing = inner.node("Sub", [prob, prob])
        inner.output(inner.node("Identity", [going]), "bool", [])
        inner.output(inner.node("ScatterElements", [weights, token, nothing], axis=1), "float64", ["F", "V"])
        inner.output(inner.node("Squeeze", [token, inner.integers(1)]), "int64", ["F"])
        inner.output(inner.node("Squeeze", [prob, inner.integers(1)]), "float64", ["F"])

    times = graph.node("Squeeze", [graph.size(by_turn, 0)])
    tokens, token_probs = graph.loop(times, [graph.to_double(probs)], draw, collected=2)
    graph.output(graph.node("Transpose", [tokens], perm=[1, 0]), "int64", ["F", "C"])
    graph.output(graph.node("Transpose", [token_probs], perm=[1, 0]), "float64", ["F", "C"])
