"""A published tokenizer in the precision asked for: its two graphs, its codebook, and the neighbours of each code."""

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.artifacts.manifest import Manifest
from underpaint.export.differences import errors
from underpaint.export.modules import MOST
from underpaint.export.narrow import narrowed
from underpaint.export.published_check import Report
from underpaint.export.store import Differences, Origin, draft_manifest, store_bytes, store_onnx
from underpaint.export.vision import (
    Decode,
    Encode,
    tokenizer_cases,
    tokenizer_graphs,
    tokenizer_settings,
)
from underpaint.export.weights import plain
from underpaint.models.published.decoder import Conditioner
from underpaint.models.vq import VQModel
from underpaint.runtime.engines.context import EngineContext, open_session

TOKENIZER_MOST: Final = {"fp32": MOST, "fp16": 0.05, "bf16": MOST}
"""The largest difference from torch in float32 that passes, over max(1, largest expected).

bfloat16 graphs do not run on the CPU: the same graph in float32, with the rounded weights, stands in for them.
"""
HALVES: Final = ("vq_decoder", "vq_encoder")


def export_published_tokenizer(
    model: VQModel, precision: str, neighbours: int, folder: Path, origin: Origin
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


def compare_tokenizer(model: VQModel, precision: str, paths: Mapping[str, Path]) -> dict[str, Report]:
    """Reports on the graphs at `paths` (by name, of `HALVES`) of a tokenizer in float32."""
    compared = _comparisons(model.eval(), precision)
    return {name: compared[name](path) for name, path in paths.items()}


def _comparisons(model: VQModel, precision: str) -> dict[str, Callable[[Path], Report]]:
    cases = tokenizer_cases(model.config)
    twins: tuple[onnx.ModelProto | None, ...] = (None, None)
    if precision == "bf16":
        twins = tokenizer_graphs(model, cases)
    parts = (
        (Decode(model).eval(), "codes", "pixels", cases.grids),
        (Encode(model).eval(), "pixels", "scores", cases.pictures),
    )
    return {name: partial(compare_module, *part, twin) for name, part, twin in zip(HALVES, parts, twins, strict=True)}


@torch.no_grad()
def compare_module(
    module: nn.Module, feed: str, result: str, cases: Mapping[str, Tensor], twin: onnx.ModelProto | None, path: Path
) -> Report:
    """The graph at `path`, or the `twin` that stands in for it, against its module in float32."""
    with TemporaryDirectory() as beside:
        if twin is not None:
            path = Path(beside) / path.name
            path.write_bytes(twin.SerializeToString())
        session = open_session(path, EngineContext())
        found = {
            case: {result: errors(session.run(None, {feed: given.numpy()})[0], module(given))}
            for case, given in cases.items()
        }
    return Report(found, None)


def compare_conditioner(conditioner: Conditioner, path: Path, seed: int = 0) -> Report:
    """A report on the graph at `path` that embeds a condition: random, absent and large features."""
    random = torch.randn(*conditioner.absent.shape, generator=torch.Generator().manual_seed(seed))
    cases = {"random": random, "absent": torch.zeros_like(random), "large": 3 * random}
    return compare_module(conditioner, "features", "rows", cases, None, path)


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
