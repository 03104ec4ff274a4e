"""Whole trees in one call of a drafter: EAGLE-2's expansion (arXiv 2406.16858, 4.1), and static trees.

Draws are those of `algos.chance.index_of`, to the last bit: sums in float64, in the order of the tokens. Products of
probabilities are in float64 too, so that a tree is what its levels are.
"""

from typing import NamedTuple

import numpy as np

from underpaint.export.chain import DrafterWeights, Turning
from underpaint.export.expansion import SURROUNDINGS, declared, descend, expand, returned, surroundings, unpack
from underpaint.export.graph import GraphWriter
from underpaint.models.transformer import TransformerConfig

GROWN = ("root_tokens", "root_masses", "next_places", "below_tokens", "below_masses", "below_laws")


class _Asked(NamedTuple):
    """Inputs: see `grown_tree`."""

    places: str
    uniforms: str
    ranked: str
    drawn: str


class _Children(NamedTuple):
    """tokens, masses [F, C]; which of them come next, places [F], and the scores [F] of those."""

    tokens: str
    masses: str
    places: str
    scores: str


def grown_tree(graph: GraphWriter, weights: DrafterWeights, config: TransformerConfig, turning: Turning) -> None:
    """Add the inputs that ask for a tree of L levels (0: none), F nodes expanded in each and C children of each.

    places [L, F] int64: places[l] says which candidates of level l level l + 1 expands, row * C + column; the first
    level has one row, and the last row of `places` is not read. ranked [] bool: the F of the largest product of masses
    along their paths instead, in falling order, ties in order of their places.
    drawn [] bool: children are drawn from the drafter's distributions one after another without replacement, by
    uniforms [L, F, C] float64; else they are the likeliest, in falling order, ties in order of the tokens.
    Outputs: root_tokens [1, C] int64, root_masses [1, C] float64, the share of the distribution that each token had
    when it was taken (0: nothing was left); and of the levels below next_places [L - 1, F], what each expands;
    below_tokens, below_masses [L - 1, F, C]; below_distributions [L - 1, F, V].
    """
    asked = _Asked(
        graph.input("places", "int64", ["L", "F"]),
        graph.input("uniforms", "double", ["L", "F", "C"]),
        graph.input("ranked", "bool", []),
        graph.input("drawn", "bool", []),
    )
    none, one = graph.constant(np.array(0)), graph.constant(np.array(1))
    levels = graph.node("Squeeze", [_size(graph, asked.places, 0)])
    more = graph.node("Max", [graph.node("Sub", [levels, one]), none])

    def start(inner: GraphWriter) -> None:
        distribution = inner.node("Gather", ["laws", inner.integers(-1)], axis=0)
        alone = inner.constant(np.ones(1))
        found = _children(inner, asked, distribution, alone, none, inner.integers(0))
        inner.output(found.tokens, ["1", "C"], "int64")
        inner.output(found.masses, ["1", "C"], "double")
        inner.output(found.places, ["F"], "int64")
        inner.output(found.scores, ["F"], "double")
        first = _taken(inner, found.tokens, found.places)
        inner.output(first, ["F"], "int64")
        surroundings(inner, config, turning, more, _size(inner, asked.places, 1), first)

    names = [*GROWN[:2], *[None] * (3 + SURROUNDINGS)]
    begun = graph.where_asked(graph.node("Greater", [levels, none]), start, names)
    given, frontier = unpack(begun[5:], begun[4])

    def turn(inner: GraphWriter) -> None:
        number = inner.input("level_turn", "int64", [])
        inner.input("level_going", "bool", [])
        here = declared(inner, config)
        places, scores = inner.input("here_places", "int64", ["F"]), inner.input("here_scores", "double", ["F"])
        done = expand(inner, weights, config, turning, given, number, here)
        found = _children(inner, asked, done.distributions, scores, inner.node("Add", [number, one]), None)
        parents = inner.node("Div", [found.places, _size(inner, found.tokens, 1)])
        inner.output(inner.node("Identity", ["level_going"]), [], "bool")
        returned(inner, descend(inner, done, here, given, _taken(inner, found.tokens, found.places), parents), config)
        inner.output(found.places, ["F"], "int64")
        inner.output(found.scores, ["F"], "double")
        inner.output(inner.node("Identity", [places]), ["F"], "int64")
        inner.output(found.tokens, ["F", "C"], "int64")
        inner.output(found.masses, ["F", "C"], "double")
        inner.output(done.distributions, ["F", config.vocab_size])

    below = graph.loop(more, [*frontier, *begun[2:4]], turn, collected=4)
    for level, name in zip(below, GROWN[2:], strict=True):
        graph.node("Identity", [level], name)
    first, each = ["1", "C"], ["L-1", "F", "C"]
    shapes: tuple[list[str | int], ...] = (
        [*first],
        [*first],
        ["L-1", "F"],
        [*each],
        [*each],
        ["L-1", "F", config.vocab_size],
    )
    for name, shape, kind in zip(GROWN, shapes, ("int64", "double", "int64", "int64", "double", "float"), strict=True):
        graph.output(name, shape, kind)


def _size(graph: GraphWriter, value: str, axis: int) -> str:
    return graph.node("Shape", [value], start=axis, end=axis + 1)


def _taken(graph: GraphWriter, values: str, places: str) -> str:
    return graph.node("Gather", [graph.node("Reshape", [values, graph.integers(-1)]), places])


def _children(
    graph: GraphWriter, asked: _Asked, distributions: str, scores: str, level: str, row: str | None
) -> _Children:
    """Of the nodes behind whom `distributions` [F, V] are, with `scores` [F], at `level` []; `row`: only it of the
    uniforms."""

    def drawn(inner: GraphWriter) -> None:
        uniforms = inner.node("Gather", [asked.uniforms, level])
        _draw(inner, distributions, uniforms if row is None else inner.node("Gather", [uniforms, row]))

    def likeliest(inner: GraphWriter) -> None:
        masses, tokens = inner.several("TopK", [distributions, _size(inner, asked.uniforms, 2)], 2)
        capped = inner.node("Min", [masses, inner.constant(np.array(1, dtype=np.float32))])
        inner.output(tokens, ["F", "C"], "int64")
        inner.output(inner.widened(capped), ["F", "C"], "double")

    def best(inner: GraphWriter) -> None:
        column = inner.node("Unsqueeze", [scores, inner.integers(1)])
        products = inner.node("Reshape", [inner.node("Mul", [column, masses]), inner.integers(-1)])
        below, places = inner.several("TopK", [products, _size(inner, asked.places, 1)], 2)
        inner.output(places, ["F"], "int64")
        inner.output(below, ["F"], "double")

    def named(inner: GraphWriter) -> None:
        places = inner.node("Gather", [asked.places, level])
        inner.output(places, ["F"], "int64")
        inner.output(inner.widened(places), ["F"], "double")

    tokens, masses = graph.branch(asked.drawn, drawn, likeliest, [None, None])
    places, following = graph.branch(asked.ranked, best, named, [None, None])
    return _Children(tokens, masses, places, following)


def _draw(graph: GraphWriter, distributions: str, uniforms: str) -> None:
    """Declare as outputs tokens [F, C] drawn from `distributions` [F, V] by `uniforms` [F, C], and the masses [F, C] of
    them."""
    by_turn = graph.node("Transpose", [uniforms], perm=[1, 0])
    last, end = graph.integers(-1), graph.integers(np.iinfo(np.int64).max)

    def draw(inner: GraphWriter) -> None:
        number = inner.input("draw_turn", "int64", [])
        inner.input("draw_going", "bool", [])
        left = inner.input("left", "double", ["F", "V"])
        summed = inner.node("CumSum", [left, inner.constant(np.array(1))])
        total = inner.node("Slice", [summed, last, end, inner.integers(1)])
        uniform = inner.node("Unsqueeze", [inner.node("Gather", [by_turn, number]), inner.integers(1)])
        passed = inner.counted(inner.node("LessOrEqual", [summed, inner.node("Mul", [uniform, total])]))
        most = inner.node("Sub", [_size(inner, left, 1), inner.integers(1)])
        token = inner.node("Min", [inner.node("ReduceSum", [passed, inner.integers(1)], keepdims=1), most])
        mass = inner.node("GatherElements", [left, token], axis=1)
        nothing = inner.node("Sub", [mass, mass])
        inner.output(inner.node("Identity", ["draw_going"]), [], "bool")
        inner.output(inner.node("ScatterElements", [left, token, nothing], axis=1), ["F", "V"], "double")
        inner.output(inner.node("Squeeze", [token, inner.integers(1)]), ["F"], "int64")
        inner.output(inner.node("Squeeze", [mass, inner.integers(1)]), ["F"], "double")

    times = graph.node("Squeeze", [_size(graph, by_turn, 0)])
    tokens, masses = graph.loop(times, [graph.widened(distributions)], draw, collected=2)
    graph.output(graph.node("Transpose", [tokens], perm=[1, 0]), ["F", "C"], "int64")
    graph.output(graph.node("Transpose", [masses], perm=[1, 0]), ["F", "C"], "double")
