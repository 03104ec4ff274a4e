"""Exports a decoder's layers and head for devices: as graphs, and as TensorRT plans without weights.

Graphs for ONNX Runtime refer to the weights file of the decoder's own graph. A TensorRT plan takes its weights as
inputs, so that one plan serves every number of rows and every pass, on memory that contains each weight once.
(TensorRT for RTX 1.7 builds stripped plans, and refits them, only on a machine with a GPU.)
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
from underpaint.artifacts.decoder_graph import POSITION_BUCKETS, TensorSpec
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
from underpaint.artifacts.model_index import read_index
from underpaint.export.decoder_graph import write_head, write_layers
from underpaint.export.decoder_weights import rotary_table
from underpaint.export.graph import IN_PLACE_OPSET, GraphWriter
from underpaint.export.tensorrt_build import EngineBuilder, Profile, decoders_of, position_counts
from underpaint.export.weight_file import Stored
from underpaint.runtime.device.weights import StoredWeights, matrix_depths, stored_weights
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder, load_config_only
from underpaint.runtime.engines.device_memory import host_places
from underpaint.runtime.engines.engine import rows_of
from underpaint.runtime.engines.tensorrt_files import EngineRecord, part_of


class _ExistingWeights:
    """A `WeightStore` for an existing file."""

    def __init__(self, path: Path, stored: StoredWeights) -> None:
        self.path, self._stored = path, stored

    def takes(self, name: str) -> bool:
        return self._stored.place(name) is not None

    def add(self, name: str, values: NDArray[Any]) -> Stored:
        place = self._stored.place(name)
        assert place is not None
        assert place[1] == values.nbytes
        return Stored(*place)


def write_device_graphs(decoder: ConfigOnlyDecoder) -> tuple[Path, Path]:
    """Write the graphs of a decoder's layers and head next to its weights, and return their paths.

    8-bit matrices are written as the numbers that they represent, into the graph itself.
    Raises EngineError if the decoder has no separate weights file.
    """
    manifest, config, stored = decoder.located.manifest, decoder.config, stored_weights(decoder.located)
    assert manifest.weights is not None
    path, sha256 = decoder.located.path.parent / manifest.weights.file, manifest.weights.sha256
    weights = {each: partial(_values, stored, each, config) for each in stored.names()}

    def written(part: str, write: Callable[[GraphWriter], None]) -> Path:
        weight_store = _ExistingWeights(path, stored)
        graph = GraphWriter(f"{manifest.name}_{part}", weights, config.precision, weight_store, opset=IN_PLACE_OPSET)
        write(graph)
        target = graph_file(path.parent, manifest.name, part)
        staged = target.with_name(f".{target.name}.staged")
        graph.write(staged, {WEIGHTS_SHA256: sha256})
        os.replace(staged, target)
        return target

    return (
        written(LAYERS, lambda graph: write_layers(graph, config, rotary_table(config))),
        written(HEAD, lambda graph: write_head(graph, config)),
    )


def bare_graphs(decoder: ConfigOnlyDecoder, places: int | None) -> tuple[bytes, bytes]:
    """Return the layers' graph for a cache of `places`, and the head's graph; weights are inputs, named as in the file.

    Raises EngineError if the decoder has no separate weights file.
    """
    config, stored = decoder.config, stored_weights(decoder.located)
    nothing = np.zeros((), dtype=np.float32)
    shapes = {name: partial(np.broadcast_to, nothing, stored.shape(name, config)) for name in stored.names()}
    layers, head = (
        GraphWriter(f"{decoder.name}_{part}", shapes, config.precision, opset=IN_PLACE_OPSET, bare=True)
        for part in (LAYERS, HEAD)
    )
    write_layers(layers, config, rotary_table(config), places)
    write_head(head, config)
    return layers.content(), head.content()


def _values(stored: StoredWeights, name: str, config: DecoderConfig) -> NDArray[Any]:
    """Return a stored weight in its stored type; 8-bit weights as float32."""
    tensor = stored[name]
    if stored.in_blocks(name):
        return np.ascontiguousarray(tensor[: matrix_depths(config)[name.rsplit(".")[-1]]].numpy())
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())


def build_folder(
    folder: Path,
    builder: EngineBuilder,
    only: tuple[str, ...] = (),
    buckets: tuple[int, ...] = POSITION_BUCKETS,
    rows: tuple[int, ...] = (),
) -> Iterator[tuple[Path, EngineRecord]]:
    """Build the plans of every decoder in `folder` (or of those in `only`), one after another.

    Args:
        folder: The folder of models.
        builder: The package that builds, and its target GPU.
        only: Names of the decoders; empty for all.
        buckets: Numbers of new positions to build for; see `position_counts`.
        rows: Numbers of rows of passes; a plan supports every number from the smallest to the largest. If empty, the
            rows of the sampling that the folder's index names: 1, or 2 if guidance is not 1.

    Yields:
        The path and the record of each plan.

    Raises:
        EngineError: The package rejects a graph; the message has the reason.
        ManifestError: Files are damaged.
    """
    models = decoders_of(folder, only)
    row_counts = rows or (rows_of(read_index(folder).sampling()),)
    for located in models:
        decoder = load_config_only(located.manifest.name, located)
        counts = position_counts(decoder.config, buckets)
        places = host_places(decoder.config, counts)
        passes = DecoderPasses(
            tuple(PassSize(count, count, places) for count in counts),
            tuple(PassSize(count, count, 0) for count in counts),
        )
        names = part_of(decoder.name, LAYERS), part_of(decoder.name, HEAD)
        yield from build_plans(decoder, passes, builder, (min(row_counts), max(row_counts)), names)


def build_plans(
    decoder: ConfigOnlyDecoder,
    passes: DecoderPasses,
    builder: EngineBuilder,
    rows: tuple[int, int],
    names: tuple[str, str],
) -> Iterator[tuple[Path, EngineRecord]]:
    """Build the plans of a decoder's layers and head, and write them next to its graph.

    Args:
        decoder: The decoder, with checked files.
        passes: The passes that the plans must support; all use the largest of their caches.
        builder: The package that builds, and its target GPU.
        rows: Smallest and largest number of rows of a pass, including guidance rows.
        names: Names of the two plans.

    Raises:
        EngineError: An error of the parser or the builder.
    """
    manifest, config = decoder.located.manifest, decoder.config
    places = max(size.places for size in passes.layers)
    read = layers_inputs(config), head_inputs(config)
    for name, graph, inputs, sizes in zip(names, bare_graphs(decoder, places), read, passes, strict=True):
        alone = sorted({size[:2] for size in sizes})
        profiles = [profile(inputs, rows, PassSize(*size, places)) for size in alone]
        record = EngineRecord(
            model=name,
            backend=builder.backend,
            version=builder.module.__version__,
            gpu=builder.gpu,
            onnx_sha256=manifest.sha256,
            engine_sha256="",
            engine_bytes=0,
            precision=config.precision,
            rows=rows,
            places=places,
            passes=tuple(alone),
            version_compatible=builder.version_compatible,
        )
        yield builder.write(decoder.located.path.parent, graph, profiles, record)


def profile(inputs: Sequence[TensorSpec], rows: tuple[int, int], size: PassSize) -> Profile:
    """Input shapes of a pass, optimised for the most rows and positions; a condition may have fewer positions."""

    def shapes(row_count: int, count: int) -> dict[str, tuple[int, ...]]:
        dimensions = {"R": row_count, "T": count, "P": size.places}
        return {
            spec.name: tuple(one if isinstance(one, int) else dimensions[one] for one in spec.shape) for spec in inputs
        }

    least, most = shapes(rows[0], size.least), shapes(rows[1], size.most)
    return {name: (least[name], most[name], most[name]) for name in most}
