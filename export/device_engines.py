"""What engines of the device runtime run: a decoder's layers and its head, as graphs and as TensorRT engines.

Both graphs point into the weights file that the decoder's own graph points into.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import TensorSpec
from underpaint.artifacts.device_graph import (
    HEAD,
    LAYERS,
    WEIGHTS_SHA256,
    DecoderPasses,
    PassSize,
    graph_file,
    head_inputs,
    layers_inputs,
)
from underpaint.export.decoder_graph import write_head, write_layers
from underpaint.export.decoder_weights import rotary_table
from underpaint.export.graph import GraphWriter
from underpaint.export.tensorrt_build import EngineBuilder
from underpaint.export.weight_file import Stored
from underpaint.runtime.device.weights import StoredWeights, matrix_depths, stored_weights
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder
from underpaint.runtime.engines.tensorrt_files import EngineRecord, Profile, part_of


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


def write_device_graphs(decoder: ElsewhereDecoder) -> tuple[Path, Path]:
    """Write a decoder's layers and its head beside its weights; their paths.

    Matrices of 8 bits are written as the numbers that they stand for, into the graph itself.
    Raises EngineError where the decoder has no weights in a file of their own.
    """
    found, config, stored = decoder.located.manifest, decoder.config, stored_weights(decoder.located)
    assert found.weights is not None
    path, sha256 = decoder.located.path.parent / found.weights.file, found.weights.sha256
    weights = {each: partial(_values, stored, each, config) for each in stored.names()}

    def written(part: str, write: Callable[[GraphWriter], None]) -> Path:
        graph = GraphWriter(f"{found.name}_{part}", weights, config.precision, _KeptWeights(path, stored))
        write(graph)
        target = graph_file(path.parent, found.name, part)
        staged = target.with_name(f".{target.name}.staged")
        graph.write(staged, {WEIGHTS_SHA256: sha256})
        os.replace(staged, target)
        return target

    return (
        written(LAYERS, lambda graph: write_layers(graph, config, rotary_table(config))),
        written(HEAD, lambda graph: write_head(graph, config)),
    )


def _values(stored: StoredWeights, name: str, config: DecoderConfig) -> NDArray[Any]:
    """A weight as it is stored; of 8 bits, as float32."""
    found = stored[name]
    if stored.in_blocks(name):
        return np.ascontiguousarray(found[: matrix_depths(config)[name.rsplit(".")[-1]]].numpy())
    if found.dtype == torch.bfloat16:
        return np.asarray(found.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(found.numpy())


def build_device_engines(
    decoder: ElsewhereDecoder, passes: DecoderPasses, builder: EngineBuilder, rows: int
) -> Iterator[tuple[Path, EngineRecord]]:
    """Write a decoder's graphs, and build engines of both for these passes of `rows` rows, guidance rows counted.

    Raises EngineError with what the parser or the builder said.
    """
    found, config = decoder.located.manifest, decoder.config
    graphs = write_device_graphs(decoder)
    read = layers_inputs(config), head_inputs(config)
    for part, graph, inputs, taken in zip((LAYERS, HEAD), graphs, read, passes, strict=True):
        profiles = [profile(inputs, rows, size) for size in taken]
        yield builder.write(graph, part_of(found.name, part), found, config.precision, profiles, rows, passes=taken)


def profile(inputs: Sequence[TensorSpec], rows: int, size: PassSize) -> Profile:
    """Shapes of a pass: fixed, but for the condition's, which may have fewer positions."""

    def shape(spec: TensorSpec, count: int) -> tuple[int, ...]:
        known = {"R": rows, "T": count, "S": size.committed, "M": size.slots, "N": size.committed + size.slots + count}
        return tuple(one if isinstance(one, int) else known[one] for one in spec.shape)

    least, most = ({spec.name: shape(spec, count) for spec in inputs} for count in (size.least, size.most))
    return Profile({name: (least[name], most[name], most[name]) for name in most})
