"""Exports a published tokenizer in a requested precision: two graphs, its codebook, and neighbours of each code."""

import copy
import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.artifacts.decoder_config import Precision
from underpaint.artifacts.manifest import Manifest
from underpaint.export.decoder_weights import plain
from underpaint.export.modules import MOST
from underpaint.export.parity import Report, compare_module
from underpaint.export.store import Origin, draft_manifest, store_bytes, store_onnx
from underpaint.export.vision import (
    Decode,
    Encode,
    tokenizer_cases,
    tokenizer_graphs,
    tokenizer_settings,
)
from underpaint.models.published.files import CheckpointError
from underpaint.models.published.load import PRECISIONS
from underpaint.models.published.options import Published
from underpaint.models.typed import call
from underpaint.models.vq import VQModel
from underpaint.models.vq_layers import AttentionBlock
from underpaint.runtime.engines.context import EngineContext
from underpaint.zoo.load import manifest, names, read_codebook

TOKENIZER_MOST: Final = {"fp32": MOST, "fp16": 0.05}
"""Largest accepted difference from torch in float32, over max(1, largest expected)."""
HALVES: Final = ("vq_decoder", "vq_encoder")


def export_published_tokenizer(
    model: VQModel, precision: Precision, neighbours: int, folder: Path, origin: Origin
) -> tuple[Manifest, ...]:
    """Write `vq_decoder`, `vq_encoder`, `codebook` and `neighbours` into `folder`, and return their manifests.

    Args:
        model: The tokenizer in float32, with weights already rounded to `precision`.
        precision: Precision of the graphs.
        neighbours: Number of neighbours per code.
        folder: The folder to write to.
        origin: Origin of the weights.

    Raises:
        ParityError: A graph differs from the tokenizer.
        ValueError: The precision is bfloat16.
    """
    require_runnable(precision)
    model.eval()
    graphs = tokenizer_graphs(narrowed(model, precision), tokenizer_cases(model.config))
    settings = tokenizer_settings(model.config) | {"precision": precision}
    compared = _comparisons(model)
    written = []
    for name, kind, graph in zip(HALVES, ("image_decoder", "image_encoder"), graphs, strict=True):
        draft = draft_manifest(name, kind, origin, settings)
        written.append(store_onnx(graph, draft, folder, compared[name], TOKENIZER_MOST[precision]))
    return (*written, *store_codes(plain(model.quantize.codebook), neighbours, folder, origin))


def compare_tokenizer(
    model: VQModel, precision: Precision, paths: Mapping[str, Path], context: EngineContext | None = None
) -> dict[str, Report]:
    """Compare the graphs at `paths` (by name in `HALVES`) with a float32 tokenizer."""
    require_runnable(precision)
    compared = _comparisons(model.eval())
    return {name: compared[name](path, context) for name, path in paths.items()}


def require_runnable(precision: Precision) -> None:
    """Raise ValueError for a precision in which no engine decodes pictures: ONNX Runtime's CPU has no bfloat16."""
    if precision not in TOKENIZER_MOST:
        raise ValueError(
            f"--precision {precision}: expected {' or '.join(TOKENIZER_MOST)} of a tokenizer, which ONNX Runtime runs "
            "on the CPU whatever its target's precision is; export it with one of them"
        )


def _comparisons(model: VQModel) -> dict[str, partial[Report]]:
    cases = tokenizer_cases(model.config)
    parts = (
        (Decode(model).eval(), "codes", cases.grids),
        (Encode(model).eval(), "pixels", cases.pictures),
    )
    return {name: partial(compare_module, *part) for name, part in zip(HALVES, parts, strict=True)}


def store_codes(codebook: NDArray[np.float32], neighbours: int, folder: Path, origin: Origin) -> tuple[Manifest, ...]:
    """Write `codebook` [V, E] and `neighbours`, the nearest codes of each code as compact integers."""
    size, count = codebook.shape[0], neighbours
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


class _Wide(nn.Module):
    """Runs `part` in float32 between layers of another type."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, hidden: Tensor) -> Tensor:
        """Run the part; the result has the type of `hidden`."""
        return call(self.part, hidden.float()).to(hidden.dtype)


class _Cast(nn.Module):
    """Casts to another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.to(self.dtype)


def narrowed(model: VQModel, precision: Precision) -> VQModel:
    """Return a copy of a float32 tokenizer whose convolutions compute in `precision`; inputs and outputs stay float32.

    Group norms and attention stay in float32, because their sums exceed float16. So do the latents and their products
    with the codebook, because rounding would decide their near-ties.
    """
    dtype = PRECISIONS[precision]
    narrow_model = copy.deepcopy(model)
    if dtype == torch.float32:
        return narrow_model
    _narrow(narrow_model.encoder, dtype)
    _narrow(narrow_model.decoder, dtype)
    for name in ("quant_conv", "post_quant_conv"):
        getattr(narrow_model, name).to(dtype)
    narrow_model.add_module("encoder", nn.Sequential(_Cast(dtype), narrow_model.encoder))
    narrow_model.add_module("quant_conv", nn.Sequential(narrow_model.quant_conv, _Cast(torch.float32)))
    narrow_model.add_module("post_quant_conv", nn.Sequential(_Cast(dtype), narrow_model.post_quant_conv))
    narrow_model.add_module("decoder", nn.Sequential(narrow_model.decoder, _Cast(torch.float32)))
    return narrow_model


def _narrow(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the convolutions below `module` in place, and wrap the parts that must stay in float32."""
    for name, part in module.named_children():
        if isinstance(part, nn.GroupNorm | AttentionBlock):
            setattr(module, name, _Wide(part))
        elif isinstance(part, nn.Conv2d):
            part.to(dtype)
        else:
            _narrow(part, dtype)


CHAMELEON_CODES: Final = "model.vqmodel.quantize.embedding.weight"
"""Name of the codebook in a Chameleon checkpoint, which also contains the language model."""
_ROUNDING: Final = 2.0**-7
"""Largest relative difference of one number in two precisions: two roundings to bfloat16."""
_LEAST: Final = 1e-6
_OTHER: Final = {"chameleon": "vq_decoder", "chameleon-vq": "target"}
"""The model that must have the same codes, by kind."""


def codebook_of(loaded: Published) -> NDArray[np.float32] | None:
    """Return the codebook [V, E] in a checkpoint; None for a target without one.

    Raises CheckpointError if the sizes of a Chameleon's codebook and vocabulary differ.
    """
    if loaded.vq is not None:
        return plain(loaded.vq.quantize.codebook)
    if loaded.kind != "chameleon" or loaded.decoder is None or CHAMELEON_CODES not in loaded.checkpoint.tensors:
        return None
    codebook, vocab_size = plain(loaded.checkpoint.tensors[CHAMELEON_CODES]), loaded.decoder.config.vocab_size
    if codebook.shape[0] != vocab_size:
        raise CheckpointError(
            f"chameleon: {CHAMELEON_CODES} holds {codebook.shape[0]} codes, vocabulary_map {vocab_size}; copy weights "
            "and config.json from one release"
        )
    return codebook


def require_same_codes(loaded: Published, folder: Path) -> None:
    """Raise CheckpointError if the codes of a Chameleon's target and tokenizer differ; one of them is in `folder`.

    Compares the numbers of codes, and the codebooks if both are known: equal up to the rounding of their precisions.
    """
    other = _OTHER.get(loaded.kind)
    model_names = names(folder) if folder.is_dir() else ()
    if other is None or other not in model_names:
        return
    codebook = codebook_of(loaded)
    there = manifest(other, folder).settings["vocab_size"]
    remedy = "a folder holds a target and the tokenizer it was trained with"
    if there != loaded.codes:
        raise CheckpointError(f"{loaded.kind}: {loaded.codes} codes, but '{other}' in {folder} has {there}; {remedy}")
    if codebook is None or "codebook" not in model_names:
        return
    before = read_codebook(folder)
    if before.shape != codebook.shape or not np.allclose(before, codebook, rtol=_ROUNDING, atol=_LEAST):
        raise CheckpointError(f"{loaded.kind}: other codes than those of '{other}' in {folder}; {remedy}")
