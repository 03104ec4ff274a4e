"""Published weights that metrics need: which file, under which licence, where. Nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from underpaint.algos.memory import lacks_memory
from underpaint.artifacts.files import other_kind


class PublishedWeights(NamedTuple):
    """A file or folder that a metric needs, its licence as its publisher states it, and where it is published."""

    what: str
    file: str
    licence: str
    published: str


PUBLISHED: Final[dict[str, PublishedWeights]] = {
    "inception": PublishedWeights(
        "FID, IS, KID, precision and recall",
        "weights-inception-2015-12-05-6726825d.pth",
        "Apache-2.0",
        "the releases of github.com/toshas/torch-fidelity, v0.2.0",
    ),
    "clip": PublishedWeights(
        "the CLIP score and the aesthetic score",
        "a folder in the format of transformers: config.json, weights and tokenizer of clip-vit-large-patch14",
        "MIT",
        "huggingface.co/openai/clip-vit-large-patch14",
    ),
    "hps": PublishedWeights(
        "HPSv2",
        "HPS_v2.1_compressed.pt, beside a CLIP ViT-H-14 folder for its shape and tokenizer",
        "Apache-2.0",
        "huggingface.co/xswu/HPSv2 (the folder: huggingface.co/laion/CLIP-ViT-H-14-laion2B-s32B-b79K, MIT)",
    ),
    "aesthetic": PublishedWeights(
        "the aesthetic score",
        "sac+logos+ava1-l14-linearMSE.pth, for the features of CLIP ViT-L-14",
        "Apache-2.0",
        "github.com/christophschuhmann/improved-aesthetic-predictor",
    ),
    "adm": PublishedWeights(
        "FID as LlamaGen reports it",
        "VIRTUAL_imagenet256_labeled.npz or another of ADM's reference batches",
        "MIT for the code; the pictures are ImageNet's",
        "evaluations/README.md of github.com/openai/guided-diffusion",
    ),
}


def missing_weights(path: Path | None, kind: str) -> ValueError:
    """The refusal of a metric whose file is not there: what it needs, under which licence, and where it is."""
    one = PUBLISHED[kind]
    given = "no file was named" if path is None else f"there is nothing at {path}"
    return ValueError(
        f"for {one.what}: expected {one.file} ({one.licence}), published at {one.published}; {given}. Nothing is "
        "downloaded: fetch it yourself and name it"
    )


def check_weights(path: Path | None, kind: str) -> Path:
    """The path, if something is there; else ValueError as `missing_weights` says it."""
    if path is None or not path.exists():
        raise missing_weights(path, kind)
    found = other_kind(path)
    if found not in (None, "a folder"):
        raise ValueError(f"{path}: expected {PUBLISHED[kind].file}, got {found}; name the file itself")
    return path


def load_weights(path: Path, kind: str) -> dict[str, Tensor]:
    """The tensors of a file of PyTorch's, without running code out of it; ValueError where it is none."""
    check_weights(path, kind)
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises what its readers do
        if lacks_memory(error):
            raise MemoryError(f"{path} does not fit in it") from error
        raise ValueError(f"{path}: expected a state dict of PyTorch ({type(error).__name__}: {error})") from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not found or not all(isinstance(one, Tensor) for one in found.values()):
        raise ValueError(f"{path}: expected a state dict of PyTorch, names with tensors")
    return found
