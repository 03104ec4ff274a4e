"""Loading of checkpoints that the training recipes wrote."""

import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from underpaint.algos.memory import lacks_memory
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.files import check_regular
from underpaint.models.config import build
from underpaint.models.decoder import Decoder
from underpaint.models.published.files import UNREADABLE, read_checkpoint
from underpaint.models.published.load import load as load_published
from underpaint.models.sampler import SamplerConfig, SuperResolution, SuperResolutionConfig, TokenSampler
from underpaint.models.text import CaptionedTarget, share_ends
from underpaint.models.vq import VQConfig, VQModel

_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "tokenizer": ("vq",),
    "judge": ("judge",),
    "sampler": ("sampler",),
    "superres": ("superres",),
}
"""The kinds with their own training command, and the config keys that building a model of each kind requires."""
MOST_WORDS: Final = 1 << 22
MOST_CAPTION_DIM: Final = 1 << 16
_TRAINED: Final = "network."
"""The prefix of sampler weights in a checkpoint, which may also contain a critic."""
_WORLD: Final = Path("world.json")
"""The file that `training.world` writes next to the stages of a world, by default in a folder of the same name."""


def load_whole(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Read the mapping that a recipe wrote; raise ValueError if the file is not a checkpoint or is truncated."""
    return _whole(_unpickled(path, device), path)


def _unpickled(path: Path, device: str | torch.device = "cpu", mmap: bool = False) -> Any:
    """Load tensors and plain values that torch.save wrote; raise ValueError if the file cannot be read."""
    damaged = f"{path} is no checkpoint of these recipes, or a damaged one"
    check_regular(path)
    if not zipfile.is_zipfile(path):
        raise ValueError(damaged)
    try:
        return torch.load(path, map_location=device, weights_only=True, mmap=mmap)
    except UNREADABLE as error:
        if lacks_memory(error):
            raise MemoryError(f"{path} does not fit in it") from error
        raise ValueError(damaged) from error


def _whole(saved: Any, path: Path) -> dict[str, Any]:
    """Return `saved` after a check that it has 'config' and 'model'; raise ValueError if one is missing."""
    parts = ("config", "model")
    if not isinstance(saved, dict) or not all(isinstance(saved.get(part), dict) for part in parts):
        raise ValueError(f"{path} is not a checkpoint of these recipes: it needs 'config' and 'model'")
    return saved


def take_weights(model: nn.Module, state: Mapping[str, Any], what: str | Path) -> None:
    """Load weights into `model`; raise ValueError, naming `what`, if they do not fit the model or are not finite."""
    for name, expected in model.state_dict().items():
        weight = state.get(name)
        if isinstance(weight, Tensor) and weight.is_floating_point() != expected.is_floating_point():
            raise ValueError(
                f"{what}: expected {expected.dtype} numbers in {name}, got {weight.dtype}; it is damaged or was "
                "edited: train it again, or name another"
            )
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        wrong = " ".join(str(error).split())
        raise ValueError(
            f"{what}: its weights are not those of the widths that it names ({wrong[:160]}); it is damaged or was "
            "edited: train it again, or name another"
        ) from error
    for name, value in model.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError(
                f"{what}: expected finite numbers in {name}, got NaN or infinity; it is damaged or its training went "
                "wrong: train it again, or name another"
            )


def read(path: Path, kind: str) -> dict[str, Any]:
    """Read the mapping of a checkpoint whose config has the kind `kind`.

    Raises:
        FileNotFoundError: There is no such file; the message names the recipe to run.
        ValueError: The file is not a checkpoint of this kind.
    """
    if path.is_dir():
        raise ValueError(
            f"expected a checkpoint of kind {kind!r}, a file that `{_recipe(path, kind)}` wrote, got the folder "
            f"{path}; name the file in it"
        )
    return _of_kind(load_whole(_existing(path, kind)), path, kind)


def _existing(path: Path, kind: str) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}; train one with `{_recipe(path, kind)}`")
    return path


def _of_kind(saved: dict[str, Any], path: Path, kind: str) -> dict[str, Any]:
    """Return `saved`; raise ValueError unless its config has the kind `kind` and the keys that the kind requires."""
    saved_kind = saved["config"].get("kind")
    if saved_kind != kind:
        raise ValueError(f"{path} holds a {saved_kind!r} checkpoint; wanted {kind!r}")
    lacking = [part for part in _NEEDED.get(kind, ()) if part not in saved["config"]]
    if lacking:
        raise ValueError(
            f"{path} is a damaged {kind} checkpoint: its config does not say {', '.join(lacking)}; train it again with "
            f"`{_recipe(path, kind)}`, or name another"
        )
    return saved


def _recipe(path: Path, kind: str) -> str:
    """Return the command that trains a checkpoint: that of a whole world, or that of one recipe."""
    world = path.parent.parent
    if world.name == _WORLD.stem or (world / _WORLD).is_file():
        return f"underpaint train world --hours 12 --out {world}"
    return f"underpaint train {kind}" if kind in _NEEDED else "underpaint train world --hours 12"


def story(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training history of a checkpoint as plain values.

    It has "kind" and, if recorded, "step" (in total), "elapsed_seconds", "validation" and "runs" (`training.history`).
    """
    history: dict[str, Any] = {"kind": saved["config"]["kind"]}
    history |= {name: saved[name] for name in ("step", "elapsed_seconds", "validation", "runs") if name in saved}
    return history


def load_vq(path: Path) -> VQModel:
    """Load a tokenizer in eval mode, from a recipe's checkpoint or one that LlamaGen or Chameleon published."""
    saved = _recipe_tokenizer(path)
    if saved is None:
        return _published_vq(path)
    model = VQModel(build(VQConfig, saved["config"]["vq"]))
    take_weights(model, saved["model"], path)
    return model.eval()


def vq_config(path: Path) -> VQConfig:
    """Return the config of a tokenizer; raise the errors of `load_vq`."""
    saved = _recipe_tokenizer(path)
    return _published_vq(path).config if saved is None else build(VQConfig, saved["config"]["vq"])


def _recipe_tokenizer(path: Path) -> dict[str, Any] | None:
    """Read a recipe's checkpoint; return None for a published one, which has parameters but no config."""
    if _existing(path, "tokenizer").is_dir() or path.suffix == ".safetensors":
        return None
    file = path.stat()
    saved = _last_tokenizer(path, file.st_ino, file.st_mtime_ns)
    if isinstance(saved, dict) and "config" not in saved:
        return None
    return _of_kind(_whole(saved, path), path, "tokenizer")


@lru_cache(maxsize=1)
def _last_tokenizer(path: Path, inode: int, changed_ns: int) -> Any:
    """Load a tokenizer's file, cached until the file changes, as the stages of a world read it dozens of times."""
    return _unpickled(path, mmap=True)


def _published_vq(path: Path) -> VQModel:
    names = read_checkpoint(path).tensors.shapes
    vq = load_published("chameleon-vq" if any("encoder.down." in name for name in names) else "vq", path).vq
    assert vq is not None
    return vq


def target_of(saved: Mapping[str, Any], what: str | Path = "a target's checkpoint") -> CaptionedTarget:
    """Build the target of a checkpoint's mapping; raise ValueError, naming `what`, if there is no valid target."""
    config = saved["config"]
    sizes, width, words = decoder_config(config), config_caption_dim(config), config.get("words")
    if type(words) is not int or not 1 <= words <= MOST_WORDS:
        raise ValueError(
            f"{what}: it does not say its words: expected a number from 1 to {MOST_WORDS}, got {str(words)[:60]}; "
            "it is damaged or was edited: train it again"
        )
    target = CaptionedTarget(sizes, width, words)
    take_weights(target, saved["model"], what)
    return target


def decoder_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read the decoder config of a target's or drafter's checkpoint; raise ValueError if it is missing or invalid."""
    if "decoder" not in config:
        raise ValueError("the checkpoint does not say its widths: no 'decoder' in its config; it is of no recipe")
    return build(DecoderConfig, config["decoder"])


def config_caption_dim(config: Mapping[str, Any]) -> int:
    """Return the width of caption features in a target's checkpoint; raise ValueError if it is missing or invalid."""
    caption_dim = config.get("caption_dim")
    if type(caption_dim) is not int or not 1 <= caption_dim <= MOST_CAPTION_DIM:
        raise ValueError(
            "a target's checkpoint does not say the width of its captions: expected caption_dim from 1 to "
            f"{MOST_CAPTION_DIM}, got {str(caption_dim)[:60]}"
        )
    return caption_dim


def load_target(path: Path) -> CaptionedTarget:
    """Load the target of a checkpoint in eval mode."""
    return target_of(read(path, "target"), path).eval()


def load_drafter(path: Path, target: Decoder) -> Decoder:
    """Load the drafter of a checkpoint in eval mode, with the target's code embedding and head."""
    saved = read(path, "drafter")
    drafter = Decoder(decoder_config(saved["config"]))
    share_ends(drafter, target)
    state = dict(saved["model"])
    for name in ("codes.weight", "head.weight"):
        state[name] = target.state_dict()[name]
    take_weights(drafter, state, path)
    return drafter.eval()


def load_sampler(path: Path) -> TokenSampler:
    """Load the token sampler of a checkpoint in eval mode."""
    saved = read(path, "sampler")
    model = TokenSampler(build(SamplerConfig, saved["config"]["sampler"]))
    take_weights(model, _network(saved), path)
    return model.eval()


def load_super_resolution(path: Path) -> SuperResolution:
    """Load the super-resolution network of a checkpoint in eval mode."""
    saved = read(path, "superres")
    model = SuperResolution(build(SuperResolutionConfig, saved["config"]["superres"]))
    take_weights(model, _network(saved), path)
    return model.eval()


def _network(saved: Mapping[str, Any]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = saved["model"]
    return {name.removeprefix(_TRAINED): value for name, value in state.items() if name.startswith(_TRAINED)}
