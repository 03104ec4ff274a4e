"""A tokenizer and a judge written node by node: torch's exporter would take a minute for the real architectures."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from underpaint.export.graph import GraphWriter
from underpaint.export.store import Origin, draft_manifest, finish, store_bytes
from underpaint.runtime.evaluation.quality import REFERENCE_KIND, Reference, reference_arrays, reference_name
from underpaint.zoo.textured_prompts import MAIN_ACCURACY, TEXTURED_SLOTS

ORIGIN = Origin("random weights", "a test")
CODES = 32
FEATURES = 6
_TOKENIZER = {"vocab_size": CODES, "stride": 8, "code_width": 4}


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float16).astype(np.float32)


def _store(graph: GraphWriter, name: str, kind: str, settings: dict[str, object], folder: Path) -> None:
    path = folder / f"{name}.onnx"
    graph.write(path)
    finish(draft_manifest(name, kind, ORIGIN, settings), path, {"none": 0.0})


def write_image_decoder(folder: Path) -> None:
    """Every code is a tile of its own; also a codebook."""
    graph = GraphWriter("tiles")
    codes = graph.input("codes", "int64", ("B", "h", "w"))
    tiles = graph.node("Gather", [graph.constant(numbers(CODES, 3 * 64), "tiles"), codes], axis=0)
    graph.node("DepthToSpace", [graph.node("Transpose", [tiles], perm=[0, 3, 1, 2])], "pixels", blocksize=8)
    graph.output("pixels", "float32", ("B", 3, "H", "W"))
    _store(graph, "vq_decoder", "image_decoder", _TOKENIZER, folder)
    stream = BytesIO()
    np.savez(stream, codebook=numbers(CODES, 4))
    store_bytes(stream.getvalue(), ".npz", draft_manifest("codebook", "codebook", ORIGIN, {}), folder, {})


def write_image_encoder(folder: Path) -> None:
    """Every tile is read as the code whose own it is most like."""
    graph = GraphWriter("untile")
    pixels = graph.input("pixels", "float32", ("B", 3, "H", "W"))
    deep = graph.node("SpaceToDepth", [pixels], blocksize=8)
    tiles = graph.node("Transpose", [deep], perm=[0, 2, 3, 1])
    graph.node("MatMul", [tiles, graph.constant(np.sign(numbers(CODES, 3 * 64)).T, "tiles")], "scores")
    graph.output("scores", "float32", ("B", "h", "w", CODES))
    _store(graph, "vq_encoder", "image_encoder", _TOKENIZER, folder)


def write_judge(folder: Path, slots: Mapping[str, Sequence[str]] = TEXTURED_SLOTS) -> None:
    """A linear judge of averaged areas, which reads `slots`."""
    graph = GraphWriter("judge")
    pixels = graph.input("pixels", "float32", ("B", 3, 64, 64))
    areas = graph.node("Flatten", [graph.node("AveragePool", [pixels], kernel_shape=[16, 16], strides=[16, 16])])
    for name, width in (*((slot, len(words)) for slot, words in slots.items()), ("features", FEATURES)):
        graph.node("MatMul", [areas, graph.constant(numbers(48, width), f"of_{name}")], name)
        graph.output(name, "float32", ("B", width))
    _store(graph, "judge", "judge", {"side": 64, "slots": list(slots)}, folder)


def write_real_scenes(folder: Path, sides: tuple[int, ...] = (64, 128), count: int = 20) -> None:
    """What the judge is to have seen of real scenes: random features, and half of every slot read right."""
    halves = [np.random.default_rng(half).standard_normal((count, FEATURES)) for half in range(2)]
    real = Reference(*halves, dict.fromkeys((*TEXTURED_SLOTS, MAIN_ACCURACY), 0.5))
    stream = BytesIO()
    np.savez(stream, **reference_arrays(dict.fromkeys(sides, real)))
    draft = draft_manifest(reference_name(sides[0]), REFERENCE_KIND, ORIGIN, {"sides": list(sides)})
    store_bytes(stream.getvalue(), ".npz", draft, folder, {})
