"""A published tokenizer in the precision asked for: its two graphs, its codebook, and the neighbours of each code."""

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.artifacts.decoder_graph import Precision
from underpaint.artifacts.manifest import Manifest
from underpaint.export.decoder_weights import plain
from underpaint.export.modules import MOST
from underpaint.export.narrow import narrowed
from underpaint.export.parity import Report, compare_module
from underpaint.export.store import Differences, Origin, draft_manifest, store_bytes, store_onnx
from underpaint.export.vision import (
    Decode,
    Encode,
    tokenizer_cases,
    tokenizer_graphs,
    tokenizer_settings,
)
from underpaint.models.vq import VQModel

TOKENIZER_MOST: Final = {"fp32": MOST, "fp16": 0.05, "bf16": MOST}
"""The largest difference from torch in float32 that passes, over max(1, largest expected).

bfloat16 graphs do not run on the CPU: the same graph in float32, with the rounded weights, stands in for them.
"""
HALVES: Final = ("vq_decoder", "vq_encoder")


def export_published_tokenizer(
    model: VQModel, precision: Precision, neighbours: int, folder: Path, origin: Origin
) -> tuple[Manifest, ...]:
    """Write `vq_decoder`, `vq_encoder`, `codebook` and `neighbours` (at most so many a code) into `folder`.

    model: in float32, its weights rounded to `precision` already. Raises ParityError.
    """
    model.eval()
    graphs = tokenizer_graphs(narrowed(model, precision), tokenizer_cases(model.config))
    settings = tokenizer_settings(model.config) | {"precision": precision}
    compared = _comparisons(model, precision)
    written = []
    for name, kind, graph in zip(HALVES, ("image_decoder", "image_encoder"), graphs, strict=True):
        draft = draft_manifest(name, kind, origin, settings)
        written.append(store_onnx(graph, draft, folder, _largest(compared[name]), TOKENIZER_MOST[precision]))
    return (*written, *store_codes(plain(model.quantize.codebook), neighbours, folder, origin))


def compare_tokenizer(model: VQModel, precision: Precision, paths: Mapping[str, Path]) -> dict[str, Report]:
    """Reports on the graphs at `paths` (by name, of `HALVES`) of a tokenizer in float32."""
    compared = _comparisons(model.eval(), precision)
    return {name: compared[name](path) for name, path in paths.items()}


def _comparisons(model: VQModel, precision: Precision) -> dict[str, Callable[[Path], Report]]:
    cases = tokenizer_cases(model.config)
    stand_ins: tuple[onnx.ModelProto | None, ...] = (None, None)
    if precision == "bf16":
        stand_ins = tokenizer_graphs(model, cases)
    parts = (
        (Decode(model).eval(), "codes", "pixels", cases.grids),
        (Encode(model).eval(), "pixels", "scores", cases.pictures),
    )
    named = zip(HALVES, parts, stand_ins, strict=True)
    return {name: partial(_compared, *part, stand_in) for name, part, stand_in in named}


def _compared(
    module: nn.Module, feed: str, result: str, cases: Mapping[str, Tensor], stand_in: onnx.ModelProto | None, path: Path
) -> Report:
    """The report on the graph at `path`, or on the float32 graph that stands in for it."""
    if stand_in is None:
        return compare_module(module, feed, result, cases, path)
    with TemporaryDirectory() as beside:
        held = Path(beside) / path.name
        held.write_bytes(stand_in.SerializeToString())
        return compare_module(module, feed, result, cases, held)


def _largest(compare: Callable[[Path], Report]) -> Callable[[Path], Differences]:
    return lambda path: compare(path).worst()


def store_codes(codebook: NDArray[np.float32], neighbours: int, folder: Path, origin: Origin) -> tuple[Manifest, ...]:
    """Write `codebook` [V, E] and `neighbours`, at most so many nearest codes of each, as compact integers."""
    size, count = codebook.shape[0], min(neighbours, codebook.shape[0] - 1)
    near = nearest_codes(codebook, count).astype(np.uint16 if size <= 1 << 16 else np.uint32)
    written = []
    for name, values, settings in (
        ("codebook", codebook, {"vocab_size": size}),
        ("neighbours", near, {"vocab_size": size, "neighbours": count}),
    ):
        stream = io.BytesIO()
        np.savez(stream, allow_pickle=False, **{name: values})
        draft = draft_manifest(name, name, origin, settings)
        written.append(store_bytes(stream.getvalue(), ".npz", draft, folder, {name: list(values.shape)}))
    return tuple(written)
