"""Export what works between two resolutions: token samplers and the super-resolution network."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import Dim

from export.modules import BATCH, store_module, to_onnx
from export.store import Origin
from export.vision import MOST_CELLS
from export.weights import halve, plain
from models.sampler import SuperResolution, TokenSampler, codebook_name
from models.vq import VQModel
from runtime.resamplers import codebook_digest, read_codebook
from zoo.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Between:
    """What a checkpoint was trained between: two grids, and the tokenizer whose `codebook_name` is `codebook`."""

    low: tuple[int, int]
    high: tuple[int, int]
    codebook: str
    losses: Mapping[str, float]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Between":
        """From a checkpoint's config."""
        low, high = ((int(height), int(width)) for height, width in (config["low"], config["high"]))
        return cls(low, high, str(config["codebook"]), dict(config.get("losses", {})))


def export_sampler(
    name: str, model: TokenSampler, between: Between, vq: VQModel, folder: Path, origin: Origin
) -> Manifest:
    """Write a token sampler; its weights are rounded in place.

    The tokenizer `vq` must be the one that it was trained with, and the one that `folder` holds; ValueError otherwise.
    """
    config = model.config
    settings = _settings(name, between, vq, folder) | {"losses": dict(between.losses), "vocab_size": config.vocab_size}
    halve(model.eval())
    step = 1 if config.direction == "up" else config.ratio
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, config.vocab_size, (2, 3 * step, 4 * step), generator=generator)
    height, width = Dim("h", min=1, max=MOST_CELLS), Dim("w", min=1, max=MOST_CELLS)
    graph = to_onnx(model, codes, "codes", ("logits",), {0: BATCH, 1: step * height, 2: step * width})
    last = torch.full((1, 5 * step, 2 * step), config.vocab_size - 1)
    cases = {"random": codes, "one_row": codes[:1, :step], "last_code": last}
    kind = f"{config.direction}sampler"
    return store_module(graph, name, kind, settings, folder, origin, model, "codes", cases)


def export_super_resolution(
    name: str, model: SuperResolution, between: Between, vq: VQModel, folder: Path, origin: Origin
) -> Manifest:
    """Write the super-resolution network; its weights are rounded in place. Raises as `export_sampler` does."""
    settings = _settings(name, between, vq, folder)
    halve(model.eval())
    pixels = torch.rand(2, 3, 24, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    height, width = Dim("h", min=4, max=8 * MOST_CELLS), Dim("w", min=4, max=8 * MOST_CELLS)
    graph = to_onnx(model, pixels, "pixels", ("enlarged",), {0: BATCH, 2: height, 3: width})
    edges: Tensor = torch.ones(1, 3, 16, 8)
    edges[:, :, 7:] = -1
    cases = {"random": pixels, "edge": edges}
    return store_module(graph, name, "superres", settings, folder, origin, model, "pixels", cases)


def _settings(name: str, between: Between, vq: VQModel, folder: Path) -> dict[str, Any]:
    """What every sampler's manifest says, after a look at both tokenizers."""
    if between.codebook != codebook_name(vq):
        raise ValueError(
            f"{name}: trained with the tokenizer {between.codebook[:12]}, the runs hold {codebook_name(vq)[:12]}; "
            "train it again with `underpaint train`"
        )
    held = read_codebook(folder)
    halve(vq)
    expected = plain(vq.quantize.codebook)
    if held.shape != expected.shape or not np.allclose(held, expected, atol=1e-5):
        raise ValueError(f"{name}: {folder} holds another tokenizer's codebook; export the tokenizer first")
    return {
        "low": list(between.low),
        "high": list(between.high),
        "codebook": codebook_digest(held),
        "models": ["vq_encoder", "vq_decoder", "codebook"],
    }
