"""Export the picture models, which torch's own exporter writes well: the tokenizer's two halves and the judge."""

import io
import itertools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from export.graph import IR_VERSION
from export.parity import difference
from export.store import Differences, Origin, draft_manifest, store_bytes, store_onnx
from export.weights import halve, plain
from models.judge import JUDGE_SIDE, Judge
from models.vq import VQModel
from runtime.session import SessionSettings, open_session
from zoo.manifest import Manifest
from zoo.prompts import SLOT_VALUES

MOST: Final = 1e-4
"""The largest difference from the torch module that passes, in pixels of [-1, 1] or class scores."""
_OPSET: Final = 20
_BATCH: Final = Dim("B", min=1, max=1024)
_MOST_CELLS: Final = 256
"""Codes along a side of the largest picture."""
_LARGE: Final = 64
"""Weights of fewer numbers stay in float32."""


class _Decode(nn.Module):
    """Codes int64 [B, h, w] to pixels [B, 3, H, W], not clamped."""

    def __init__(self, model: VQModel) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("codebook", model.quantize.codebook.detach().clone())

    def forward(self, codes: Tensor) -> Tensor:
        """See the class."""
        values = functional.embedding(codes, self.codebook)  # type: ignore[arg-type]
        return self.model.decode(values.permute(0, 3, 1, 2))


class _Encode(nn.Module):
    """Pixels [B, 3, H, W] in [-1, 1] to the scores [B, h, w, V] of every code: the largest is the nearest."""

    def __init__(self, model: VQModel) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("codebook", model.quantize.codebook.detach().clone().T.contiguous())

    def forward(self, pixels: Tensor) -> Tensor:
        """See the class."""
        latents = functional.normalize(self.model.latents(pixels).permute(0, 2, 3, 1), dim=-1)
        return latents @ self.codebook  # type: ignore[operator]


class _Judge(nn.Module):
    """Pixels [B, 3, 64, 64] to one score tensor a slot, and features."""

    def __init__(self, model: Judge) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        return tuple(self.model(pixels))


def export_tokenizer(model: VQModel, folder: Path, origin: Origin) -> tuple[Manifest, ...]:
    """Write `vq_decoder`, `vq_encoder` (any grid) and `codebook` into `folder`; weights are rounded in place."""
    model.eval()
    halve(model)
    config = model.config
    settings = {"vocab_size": config.codebook_size, "stride": config.stride, "code_width": config.codebook_embed_dim}
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, config.codebook_size, (2, 3, 4), generator=generator)
    pixels = torch.rand(2, 3, 3 * config.stride, 4 * config.stride, generator=generator) * 2 - 1
    height, width = Dim("h", min=1, max=_MOST_CELLS), Dim("w", min=1, max=_MOST_CELLS)
    sides = {2: config.stride * height, 3: config.stride * width}
    decoder = _export(_Decode(model).eval(), codes, "codes", ("pixels",), {0: _BATCH, 1: height, 2: width})
    encoder = _export(_Encode(model).eval(), pixels, "pixels", ("scores",), {0: _BATCH, **sides})
    flat = torch.zeros(1, 5, 2, dtype=torch.int64)
    grids = {"random": codes, "one_code": flat, "last_code": flat + config.codebook_size - 1}
    pictures = {"random": pixels, "white": torch.ones(1, 3, config.stride, 2 * config.stride)}
    return (
        _store(decoder, "vq_decoder", "image_decoder", settings, folder, origin, _Decode(model).eval(), "codes", grids),
        _store(
            encoder, "vq_encoder", "image_encoder", settings, folder, origin, _Encode(model).eval(), "pixels", pictures
        ),
        _store_codebook(model, folder, origin),
    )


def export_judge(model: Judge, folder: Path, origin: Origin) -> Manifest:
    """Write `judge` into `folder`; batch norms are folded into its convolutions and its weights rounded, in place."""
    model.eval()
    fold_norms(model)
    halve(model)
    pixels = torch.rand(3, 3, JUDGE_SIDE, JUDGE_SIDE, generator=torch.Generator().manual_seed(0)) * 2 - 1
    names = (*SLOT_VALUES, "features")
    graph = _export(_Judge(model).eval(), pixels, "pixels", names, {0: _BATCH})
    settings = {"side": JUDGE_SIDE, "slots": list(SLOT_VALUES)}
    cases = {"random": pixels, "black": -torch.ones(1, 3, JUDGE_SIDE, JUDGE_SIDE), "white": torch.ones_like(pixels[:2])}
    return _store(graph, "judge", "judge", settings, folder, origin, _Judge(model).eval(), "pixels", cases)


def fold_norms(module: nn.Module) -> None:
    """Fold every batch norm into the convolution registered before it, in place: fewer nodes, one rounding."""
    for parent in module.modules():
        parts = list(parent.named_children())
        for (before, conv), (name, norm) in itertools.pairwise(parts):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, before, fuse_conv_bn_eval(conv, norm))
                setattr(parent, name, nn.Identity())


def _store_codebook(model: VQModel, folder: Path, origin: Origin) -> Manifest:
    codebook = plain(model.quantize.codebook)
    stream = io.BytesIO()
    np.savez(stream, codebook=codebook)
    draft = draft_manifest("codebook", "codebook", origin, {"vocab_size": codebook.shape[0]})
    return store_bytes(stream.getvalue(), ".npz", draft, folder, {"codebook": list(codebook.shape)})


def _store(
    graph: onnx.ModelProto,
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    folder: Path,
    origin: Origin,
    module: nn.Module,
    feed: str,
    cases: Mapping[str, Tensor],
) -> Manifest:
    compare = _comparison(module, feed, cases)
    return store_onnx(graph, draft_manifest(name, kind, origin, settings), folder, compare, MOST)


def _comparison(module: nn.Module, feed: str, cases: Mapping[str, Tensor]) -> Callable[[Path], Differences]:
    @torch.no_grad()
    def compare(path: Path) -> Differences:
        session = open_session(path, SessionSettings(threads=1))
        found = {}
        for case, given in cases.items():
            wanted = module(given)
            results = session.run(None, {feed: given.numpy()})
            pairs = zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True)
            found[case] = max(difference(result, expected) for result, expected in pairs)
        return found

    return compare


def _export(
    module: nn.Module, example: Tensor, feed: str, results: Sequence[str], free: Mapping[int, Any]
) -> onnx.ModelProto:
    """An ONNX model whose input dimensions `free` may vary."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # The exporter of torch 2.13 uses what other parts of torch have deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            opset_version=_OPSET,
            input_names=[feed],
            output_names=list(results),
            dynamic_shapes=(dict(free),),
            verbose=False,
            external_data=False,
            optimize=True,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    model = program.model_proto
    model.ir_version = min(model.ir_version, IR_VERSION)
    _strip(model)
    _store_halves(model)
    onnx.checker.check_model(model)
    return model


def _strip(model: onnx.ModelProto) -> None:
    """Drop what the exporter notes about the machine that it ran on."""
    del model.metadata_props[:]
    model.graph.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.initializer, *model.graph.input, *model.graph.output):
        value.doc_string = ""
        if hasattr(value, "metadata_props"):
            del value.metadata_props[:]
    model.producer_name = "underpaint"


def _store_halves(model: onnx.ModelProto) -> None:
    """Store every weight that float16 can hold as float16 with a widening Cast, which engines fold when they load."""
    casts = []
    for weight in list(model.graph.initializer):
        if weight.data_type != TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(weight)
        half = values.astype(np.float16)
        if values.size < _LARGE or not np.array_equal(half.astype(np.float32), values):
            continue
        name = weight.name
        weight.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
