"""Read checkpoints written by the recipes."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from underpaint.models.config import build
from underpaint.models.drafter import BoundDrafter, Drafter
from underpaint.models.published.files import read_checkpoint
from underpaint.models.published.load import load as load_published
from underpaint.models.text import WordEncoder
from underpaint.models.transformer import Transformer, TransformerConfig
from underpaint.models.vq import VQConfig, VQModel


def load_whole(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The mapping that a recipe wrote; ValueError where the file is none, or was cut short."""
    damaged = f"{path} is no checkpoint of these recipes, or a damaged one"
    if not zipfile.is_zipfile(path):
        raise ValueError(damaged)
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise ValueError(damaged) from error
    if not isinstance(saved, dict) or "config" not in saved or "model" not in saved:
        raise ValueError(f"{path} is not a checkpoint of these recipes: it needs 'config' and 'model'")
    return saved


def read(path: Path, kind: str) -> dict[str, Any]:
    """A checkpoint's mapping; its config must carry `kind`.

    Raises:
        FileNotFoundError: with the recipe to run.
        ValueError: when the file is not a checkpoint of that kind.
    """
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}; train one with `underpaint train {kind}`")
    saved = load_whole(path)
    found = saved["config"].get("kind")
    if found != kind:
        raise ValueError(f"{path} holds a {found!r} checkpoint; wanted {kind!r}")
    return saved


def story(saved: Mapping[str, Any]) -> dict[str, Any]:
    """How a checkpoint came to be, in plain values, as far as it says.

    "kind", and "step" (in all), "elapsed_seconds", "validation" and "runs" (see `models.train.history`).
    """
    told: dict[str, Any] = {"kind": saved["config"]["kind"]}
    told |= {name: saved[name] for name in ("step", "elapsed_seconds", "validation", "runs") if name in saved}
    return told


def load_vq(path: Path) -> VQModel:
    """The tokenizer of a checkpoint, of a recipe or as LlamaGen and Chameleon publish theirs, in eval mode."""
    if _is_published(path):
        return _published_vq(path)
    saved = read(path, "tokenizer")
    model = VQModel(build(VQConfig, saved["config"]["vq"]))
    model.load_state_dict(saved["model"])
    return model.eval()


def vq_config(path: Path) -> VQConfig:
    """The widths of a tokenizer; raises as `load_vq` does."""
    if _is_published(path):
        return _published_vq(path).config
    return build(VQConfig, read(path, "tokenizer")["config"]["vq"])


def _is_published(path: Path) -> bool:
    """Whether a file or folder is in a published form: parameters, and no config of a recipe beside them."""
    if path.is_dir() or path.suffix == ".safetensors":
        return path.exists()
    if not zipfile.is_zipfile(path):
        return False
    try:
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError):
        return False
    return isinstance(held, dict) and "config" not in held


def _published_vq(path: Path) -> VQModel:
    names = read_checkpoint(path).tensors.shapes
    found = load_published("chameleon-vq" if any("encoder.down." in name for name in names) else "vq", path).vq
    assert found is not None
    return found


def load_target(path: Path) -> tuple[WordEncoder, Transformer]:
    """The word encoder and the transformer of a target checkpoint, in eval mode."""
    saved = read(path, "target")
    config = build(TransformerConfig, saved["config"]["transformer"])
    words, transformer = WordEncoder(saved["config"]["words"], config.caption_dim), Transformer(config)
    for prefix, part in (("words.", words), ("transformer.", transformer)):
        state = {name.removeprefix(prefix): value for name, value in saved["model"].items() if name.startswith(prefix)}
        part.load_state_dict(state)
    return words.eval(), transformer.eval()


def load_drafter(path: Path, target: Transformer) -> BoundDrafter:
    """The drafter of a checkpoint bound to its target, in eval mode."""
    saved = read(path, "drafter")
    drafter = Drafter(build(TransformerConfig, saved["config"]["transformer"]))
    drafter.load_state_dict(saved["model"])
    return drafter.bind(target).eval()
