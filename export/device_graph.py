"""The graphs of the device runtime: a decoder's layers and its head, by the weights of a folder that holds it already.

Their contract is `artifacts.device_graph`. Both point into the weights file that the decoder's own graph points into.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.artifacts import device_graph as names
from underpaint.artifacts.decoder_graph import BIAS, CELLS, FEATURES, LOGITS, new_key, new_value, past_key, past_value
from underpaint.export.decoder_graph import sizes_of
from underpaint.export.decoder_layers import (
    DecoderNodes,
    LayerPass,
    Seen,
    add_positions,
    decoder_nodes,
    layer,
    norm,
    read_features,
    rotary_rows,
)
from underpaint.export.decoder_weights import RotaryTable, rotary_table
from underpaint.export.graph import GraphWriter
from underpaint.export.weight_file import Stored
from underpaint.models.decoder_config import DecoderConfig
from underpaint.runtime.device.weights import StoredWeights, config_of
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.shape import DecoderShape
from underpaint.zoo.load import Located

_DEPTH_OF: Final = {"down": "hidden"}
"""Matrices that are not as deep as the model is wide."""


class _KeptWeights:
    """A `WeightStore` over a file that is written already."""

    def __init__(self, path: Path, stored: StoredWeights) -> None:
        self.path, self._stored = path, stored

    def takes(self, name: str) -> bool:
        return self._stored.place(name) is not None

    def add(self, name: str, values: NDArray[Any]) -> Stored:
        place = self._stored.place(name)
        assert place is not None
        assert place[1] == values.nbytes
        return Stored(*place)


def write_device_graphs(located: Located, shape: DecoderShape) -> tuple[Path, Path]:
    """Write a decoder's layers and its head beside its weights; their paths.

    Matrices of 8 bits are written as the numbers that they stand for, into the graph itself.
    Raises EngineError where the decoder has no weights in a file of their own, or they do not say how positions turn.
    """
    name, entry = located.manifest.name, located.manifest.weights
    if entry is None:
        raise EngineError(f"{name}: its graph has no weights in a file of their own; export the model again")
    path = located.path.parent / entry.file
    stored = StoredWeights(path)
    config = config_of(shape, stored, name, drafter="fc_feature" in stored)
    weights = {each: partial(_values, stored, each, config) for each in stored.names()}

    def written(part: str, write: Callable[[GraphWriter], None]) -> Path:
        graph = GraphWriter(f"{name}_{part}", weights, shape.precision, _KeptWeights(path, stored))
        write(graph)
        target = names.graph_file(path.parent, name, part)
        staged = target.with_name(f".{target.name}.staged")
        graph.write(staged, {names.WEIGHTS_SHA256: entry.sha256})
        os.replace(staged, target)
        return target

    return (
        written(names.LAYERS, lambda graph: write_layers(graph, config, rotary_table(config))),
        written(names.HEAD, lambda graph: write_head(graph, config)),
    )


def _values(stored: StoredWeights, name: str, config: DecoderConfig) -> NDArray[Any]:
    """A weight as it is stored; of 8 bits, as float32."""
    found = stored[name]
    if stored.in_blocks(name):
        depth = getattr(config, _DEPTH_OF.get(name.rsplit(".")[-1], "dim"))
        return np.ascontiguousarray(found[:depth].numpy())
    if found.dtype == torch.bfloat16:
        return np.asarray(found.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(found.numpy())


def write_layers(graph: GraphWriter, config: DecoderConfig, rotary: RotaryTable | None) -> None:
    """Add a pass through a decoder's layers to an empty graph; rotary: see `export.decoder_graph.write_decoder`."""
    sizes = sizes_of(config, graph.precision)
    graph.inputs(names.layers_inputs(sizes))
    graph.outputs(names.layers_outputs(sizes))
    nodes = decoder_nodes(graph, config, rotary, embeds=False)
    hidden = graph.node("Reshape", [names.EMBEDDINGS, nodes.flat_shape])
    hidden = add_positions(graph, nodes, hidden, CELLS)
    if config.drafter:
        hidden = read_features(graph, graph.node("Reshape", [FEATURES, nodes.flat_shape]), hidden)
    given = _per_row(graph, nodes)
    for index in range(config.layers):
        hidden, _, _ = layer(graph, nodes, given, hidden, index, (new_key(index), new_value(index)))
    if graph.has("norm"):
        hidden = norm(graph, hidden, "norm", config)
    wide = graph.node("Concat", [graph.node("Shape", [CELLS]), graph.integers(config.dim)], axis=0)
    graph.node("Reshape", [hidden, wide], names.made_features(config.drafter))


def _per_row(graph: GraphWriter, nodes: DecoderNodes) -> LayerPass:
    """A pass over new positions, each row at its own cells, behind caches of the state's own layout."""
    config = nodes.config

    def held(key: str, value: str) -> Seen:
        return Seen(graph.node("Transpose", [key], perm=[0, 1, 3, 2]), value)

    def attention(index: int, keys: str, values: str) -> Sequence[Seen]:
        parts = [held(past_key(index), past_value(index))]
        if config.drafter:
            parts.append(held(names.slot_key(index), names.slot_value(index)))
        return [*parts, Seen(keys, values)]

    seen = [past_key(0), names.slot_key(0)][: 1 + config.drafter]
    counts = [*(graph.size(part, 2) for part in seen), graph.size(CELLS, 1)]
    shape = graph.node("Shape", [CELLS])
    return LayerPass(
        rotary_rows(graph, nodes, CELLS),
        graph.node("Concat", [shape, graph.integers(3 * config.heads, config.head_dim)], axis=0),
        attention,
        graph.node("Concat", counts, axis=0),
        graph.node("Unsqueeze", [BIAS, graph.integers(1)]),
    )


def write_head(graph: GraphWriter, config: DecoderConfig) -> None:
    """Add a decoder's head to an empty graph: features to logits, the product in float32."""
    sizes = sizes_of(config, graph.precision)
    graph.inputs(names.head_inputs(sizes))
    graph.outputs(names.head_outputs(sizes))
    rows = graph.wide_product(graph.node("Reshape", [FEATURES, graph.integers(-1, config.dim)]), "head")
    around = graph.node("Shape", [FEATURES], start=0, end=2)
    tall = graph.node("Concat", [around, graph.integers(config.vocab_size)], axis=0)
    graph.node("Reshape", [rows, tall], LOGITS)
