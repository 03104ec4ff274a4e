"""Weights that are kept in the repository: a checkpoint's averaged weights in 16 and 8 bits, and their manifest.

A matrix of many numbers is stored as int8 with one float16 scale a row (an output channel); all else as float16. What
is read back is the rounded model, in float32: whatever is trained or measured afterwards is of that model. A
checkpoint restored from weights has no optimiser, so a recipe that continues it starts a fresh one.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from torch import Tensor, nn

from underpaint.artifacts import manifest
from underpaint.artifacts.files import replacing
from underpaint.artifacts.manifest import Manifest
from underpaint.artifacts.scaled_rows import SCALE, ScaledRows, scaled_rows
from underpaint.models.checkpoints import load_whole, story
from underpaint.models.config import plain

FOLDER: Final = Path(__file__).resolve().parent / "weights"
"""Where the repository keeps them; in a checkout only, a wheel brings none."""
KIND: Final = "weights"
LICENCE: Final = "Apache-2.0 (weights); trained on pictures under the licences in training/data/LICENCES.md"
_NARROW_ABOVE: Final = 100_000
_LEFT_OUT: Final = ("quantize.codebook_used",)
"""Buffers that nothing reads: the published usage counter of a tokenizer."""

Arrays = dict[str, NDArray[Any]]


def narrowed(state: Mapping[str, Tensor]) -> Arrays:
    """Weights as they are stored; ValueError where one is not finite or too large for float16."""
    found: Arrays = {}
    for name, value in state.items():
        if name in _LEFT_OUT:
            continue
        # Channels last is a layout of memory, which safetensors would store as if it were the shape's order.
        wide = value.detach().float().cpu().contiguous().numpy()
        if not np.all(np.abs(wide) < np.finfo(np.float16).max):
            raise ValueError(f"{name}: expected finite numbers that float16 holds; the training has diverged")
        if value.ndim < 2 or value.numel() < _NARROW_ABOVE or "embedding" in name:
            found[name] = wide.astype(np.float16)
            continue
        rounded = scaled_rows(wide)
        found[name], found[name + SCALE] = rounded.steps, rounded.scale.ravel()
    return found


def widened(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Stored weights as float32 tensors: the rounded model."""
    found = {}
    for name, value in arrays.items():
        if name.endswith(SCALE):
            continue
        wide = value.astype(np.float32)
        if value.dtype == np.int8:
            wide = ScaledRows(value, arrays[name + SCALE].reshape(-1, *[1] * (value.ndim - 1))).widened()
        found[name] = torch.from_numpy(wide)
    return found


@torch.no_grad()
def round_to_stored(module: nn.Module) -> None:
    """Round a module, in place, to what is stored of it: the model that is read back. Raises as `narrowed` does."""
    state = module.state_dict()
    for name, value in widened(narrowed(state)).items():
        state[name].copy_(value)


def store(checkpoint: Path, name: str, recipe: str, folder: Path = FOLDER) -> Manifest:
    """Write `<name>.safetensors` and its manifest from a recipe's checkpoint; the same checkpoint gives the same file.

    Raises FileNotFoundError and ValueError as `models.checkpoints.load_whole` does, and ValueError on weights that
    16 bits do not hold.
    """
    if not checkpoint.exists():
        raise FileNotFoundError(f"no checkpoint at {checkpoint}; train one with `{recipe}`")
    saved = load_whole(checkpoint)
    arrays = narrowed(saved["model"])
    path = folder / f"{name}.safetensors"
    manifest.write_beside(path, save(arrays))
    about = Manifest(
        name=name,
        kind=KIND,
        file=path.name,
        sha256=manifest.digest(path),
        bytes=path.stat().st_size,
        source="trained from random weights by the recipe",
        licence=LICENCE,
        recipe=recipe,
        settings={
            "config": plain(saved["config"]),
            "zeros": {part: list(saved["model"][part].shape) for part in _LEFT_OUT if part in saved["model"]},
        },
        versions={package: importlib.metadata.version(package) for package in ("torch", "numpy", "safetensors")},
        training=plain(story(saved)),
    )
    manifest.write(about, folder)
    return about


def restore(name: str, out: Path, folder: Path = FOLDER) -> Path:
    """Write a recipe's checkpoint, `out/checkpoint.pt`, from stored weights, without an optimiser; return its path.

    Raises ManifestError where the weights are absent, damaged or of another version; FileExistsError where `out` holds
    a checkpoint, which is left as it is.
    """
    path = out / "checkpoint.pt"
    if path.exists():
        raise FileExistsError(f"{path} is there already: nothing is restored over it")
    about = manifest.read(folder / f"{name}.json")
    if about.kind != KIND:
        raise manifest.ManifestError(f"{name}: expected a manifest of {KIND}, got one of {about.kind!r}")
    state = _state(about, folder)
    told = {key: about.training[key] for key in ("step", "elapsed_seconds", "validation", "runs")}
    saved = {"config": about.settings["config"], "model": state, "raw": state} | told
    with replacing(path) as file:
        torch.save(saved, file)
    return path


def is_stored(name: str, checkpoint: Path, folder: Path = FOLDER) -> bool:
    """Whether a checkpoint's averaged weights are the stored ones to the last bit; False where there is none.

    Raises ManifestError as `restore` does.
    """
    if not checkpoint.exists():
        return False
    own, held = load_whole(checkpoint)["model"], _state(manifest.read(folder / f"{name}.json"), folder)
    return own.keys() == held.keys() and all(torch.equal(value, held[part]) for part, value in own.items())


def _state(about: Manifest, folder: Path) -> dict[str, Tensor]:
    zeros = {part: torch.zeros(shape) for part, shape in about.settings["zeros"].items()}
    return widened(load_file(manifest.check(about, folder))) | zeros
