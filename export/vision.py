"""Exports picture models with torch's own exporter: the two halves of the tokenizer, and the judge."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from underpaint.algos.arrays import FloatArray
from underpaint.artifacts.manifest import Manifest
from underpaint.export.decoder_weights import plain, round_to_half
from underpaint.export.modules import BATCH, store_module, to_onnx
from underpaint.export.store import Origin, draft_manifest, store_bytes
from underpaint.models.judge import JUDGE_SIDE, Judge, to_judge_side
from underpaint.models.vq import VQConfig, VQModel
from underpaint.runtime.evaluation.quality import REFERENCE_KIND, Reference, reference_arrays, reference_name
from underpaint.training.data.batches import numbered_batch
from underpaint.training.data.textured_render import TexturedSheet
from underpaint.training.judge import accuracy
from underpaint.training.pictures import SCENE_SEED, to_pixels
from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS
from underpaint.zoo.textured_prompts import TEXTURED_SLOTS

MOST_CELLS: Final = 256
"""Largest number of codes along a side of a picture."""


class Decode(nn.Module):
    """Decodes codes int64 [B, h, w] to pixels [B, 3, H, W], not clamped."""

    codebook: Tensor

    def __init__(self, model: VQModel) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("codebook", model.quantize.codebook.detach().clone())

    def forward(self, codes: Tensor) -> Tensor:
        values = functional.embedding(codes, self.codebook)
        return self.model.decode(values.permute(0, 3, 1, 2))


class Encode(nn.Module):
    """Encodes pixels [B, 3, H, W] in [-1, 1] to scores [B, h, w, V] of all codes; the nearest code scores highest."""

    codebook: Tensor
    handicap: Tensor | None

    def __init__(self, model: VQModel) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("codebook", model.quantize.codebook.detach().clone().T.contiguous())
        handicap = model.quantize.handicap
        self.register_buffer("handicap", None if handicap is None else handicap.detach())

    def forward(self, pixels: Tensor) -> Tensor:
        latents = self.model.quantize.placed(self.model.latents(pixels).permute(0, 2, 3, 1))
        products = latents @ self.codebook
        return products if self.handicap is None else products - self.handicap


class _Judge(nn.Module):
    """Maps pixels [B, 3, 64, 64] to one score tensor per slot, and features."""

    def __init__(self, model: Judge) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        judgement = self.model(pixels)
        return (*judgement.scores(), judgement.features)


class TokenizerCases(NamedTuple):
    """Inputs to export and compare a tokenizer with: examples `codes` and `pixels`, cases `grids` and `pictures`."""

    codes: Tensor
    pixels: Tensor
    grids: Mapping[str, Tensor]
    pictures: Mapping[str, Tensor]


def tokenizer_cases(config: VQConfig) -> TokenizerCases:
    """Random and constant codes and pictures, on several grids."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, config.codebook_size, (2, 3, 4), generator=generator)
    pixels = torch.rand(2, 3, 3 * config.stride, 4 * config.stride, generator=generator) * 2 - 1
    flat = torch.zeros(1, 5, 2, dtype=torch.int64)
    grids = {"random": codes, "one_code": flat, "last_code": flat + config.codebook_size - 1}
    pictures = {"random": pixels, "white": torch.ones(1, 3, config.stride, 2 * config.stride)}
    return TokenizerCases(codes, pixels, grids, pictures)


def tokenizer_graphs(model: VQModel, cases: TokenizerCases) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the graphs of the decoder and the encoder, for any grid."""
    height, width = Dim("h", min=1, max=MOST_CELLS), Dim("w", min=1, max=MOST_CELLS)
    stride = model.config.stride
    sides = {2: stride * height, 3: stride * width}
    decoder = to_onnx(Decode(model).eval(), cases.codes, "codes", ("pixels",), {0: BATCH, 1: height, 2: width})
    encoder = to_onnx(Encode(model).eval(), cases.pixels, "pixels", ("scores",), {0: BATCH, **sides})
    return decoder, encoder


def tokenizer_settings(config: VQConfig) -> dict[str, Any]:
    """Return the settings of a tokenizer that an engine needs."""
    return {"vocab_size": config.codebook_size, "stride": config.stride, "code_width": config.codebook_embed_dim}


def export_tokenizer(model: VQModel, folder: Path, origin: Origin) -> tuple[Manifest, ...]:
    """Write `vq_decoder`, `vq_encoder` (any grid) and `codebook` into `folder`; weights are rounded in place."""
    model.eval()
    round_to_half(model)
    settings, cases = tokenizer_settings(model.config), tokenizer_cases(model.config)
    (decoder, encoder), (grids, pictures) = tokenizer_graphs(model, cases), cases[2:]
    return (
        store_module(
            decoder, "vq_decoder", "image_decoder", settings, folder, origin, Decode(model).eval(), "codes", grids
        ),
        store_module(
            encoder, "vq_encoder", "image_encoder", settings, folder, origin, Encode(model).eval(), "pixels", pictures
        ),
        store_codebook(model, folder, origin),
    )


def export_judge(model: Judge, folder: Path, origin: Origin) -> Manifest:
    """Write `judge` into `folder`; folds batch norms into its convolutions and rounds its weights, both in place."""
    model.eval()
    fold_norms(model)
    round_to_half(model)
    pixels = torch.rand(3, 3, JUDGE_SIDE, JUDGE_SIDE, generator=torch.Generator().manual_seed(0)) * 2 - 1
    slots = list(TEXTURED_SLOTS)
    graph = to_onnx(_Judge(model).eval(), pixels, "pixels", (*slots, "features"), {0: BATCH})
    settings = {"side": JUDGE_SIDE, "slots": slots}
    cases = {"random": pixels, "black": -torch.ones(1, 3, JUDGE_SIDE, JUDGE_SIDE), "white": torch.ones_like(pixels[:2])}
    return store_module(graph, "judge", "judge", settings, folder, origin, _Judge(model).eval(), "pixels", cases)


def fold_norms(module: nn.Module) -> None:
    """Fold every batch norm into the convolution before it, in place: fewer nodes, and one rounding."""
    for parent in module.modules():
        parts = list(parent.named_children())
        for (before, conv), (name, norm) in itertools.pairwise(parts):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, before, fuse_conv_bn_eval(conv, norm))
                setattr(parent, name, nn.Identity())


def store_codebook(model: VQModel, folder: Path, origin: Origin) -> Manifest:
    """Write the codebook of a tokenizer."""
    codebook = plain(model.quantize.codebook)
    stream = io.BytesIO()
    np.savez(stream, codebook=codebook)
    draft = draft_manifest("codebook", "codebook", origin, {"vocab_size": codebook.shape[0]})
    return store_bytes(stream.getvalue(), ".npz", draft, folder, {"codebook": list(codebook.shape)})


SCENES_PER_HALF: Final = 1000
_BATCH: Final = 100


@torch.no_grad()
def features(judge: Judge, sheet: TexturedSheet, side: int, first: int, count: int) -> FloatArray:
    """Return the judge's features [count, F] of scenes with seen pairs, from number `first` on, drawn at `side` px."""
    feature_batches = []
    for start in range(first, first + count, _BATCH):
        real = numbered_batch(sheet, SCENE_SEED, start, min(_BATCH, first + count - start), "seen", side)
        feature_batches.append(judge(to_judge_side(to_pixels(real.pictures))).features.numpy())
    return np.concatenate(feature_batches)


def real_scenes(judge: Judge, sheet: TexturedSheet, side: int, count: int = SCENES_PER_HALF) -> Reference:
    """Two halves of `count` new scenes with seen pairs, and the judge's own accuracy on the first half."""
    return Reference(
        features(judge, sheet, side, 0, count),
        features(judge, sheet, side, count, count),
        accuracy(judge, sheet, "seen", side, count),
    )


def write_reference(
    judge: Judge,
    sheet: TexturedSheet,
    folder: Path,
    origin: Origin,
    sides: tuple[int, ...] = SHIPPED_RESOLUTIONS,
    count: int = SCENES_PER_HALF,
) -> Manifest:
    """Write the reference of real scenes at `sides`, in one file, and its manifest into `folder`.

    The file is `<runtime.quality.reference_name>.npz`; see `load_reference` there.
    """
    (name,) = {reference_name(side) for side in sides}
    arrays = reference_arrays({side: real_scenes(judge, sheet, side, count) for side in sides})
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    settings = {"sides": list(sides), "scenes_per_half": count, "split": "seen", "scene_seed": SCENE_SEED}
    shapes = {key: list(array.shape) for key, array in arrays.items()}
    return store_bytes(
        packed.getvalue(), ".npz", draft_manifest(name, REFERENCE_KIND, origin, settings), folder, shapes
    )
