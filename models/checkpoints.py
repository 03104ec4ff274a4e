"""Read checkpoints written by the recipes."""

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
"""The kinds that have a command of their own, and what the config of each says, without which nothing can be built."""
MOST_WORDS: Final = 1 << 22
MOST_CAPTION_DIM: Final = 1 << 16
_TRAINED: Final = "network."
"""What the weights of samplers are called in a checkpoint, which may hold a critic too."""
_WORLD: Final = Path("world.json")
"""What `training.world` writes beside the stages of a world, in a folder that is named alike unless it is told."""


def load_whole(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The mapping that a recipe wrote; ValueError where the file is none, or was cut short."""
    return _whole(_unpickled(path, device), path)


def _unpickled(path: Path, device: str | torch.device = "cpu", mmap: bool = False) -> Any:
    """What torch.save wrote, tensors and plain values alone; ValueError where it cannot be read."""
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
    """What was unpickled, with its two parts; ValueError where one is missing."""
    parts = ("config", "model")
    if not isinstance(saved, dict) or not all(isinstance(saved.get(part), dict) for part in parts):
        raise ValueError(f"{path} is not a checkpoint of these recipes: it needs 'config' and 'model'")
    return saved


def take_weights(model: nn.Module, state: Mapping[str, Any], what: str | Path) -> None:
    """`model.load_state_dict`; ValueError, naming `what` they are of, where they are not the model's or not finite."""
    for name, own in model.state_dict().items():
        given = state.get(name)
        if isinstance(given, Tensor) and given.is_floating_point() != own.is_floating_point():
            raise ValueError(
                f"{what}: expected {own.dtype} numbers in {name}, got {given.dtype}; it is damaged or was edited: "
                "train it again, or name another"
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
    """A checkpoint's mapping; its config must carry `kind`.

    Raises:
        FileNotFoundError: with the recipe to run.
        ValueError: when the file is not a checkpoint of that kind.
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
    """`saved`, whose config carries `kind` and what that kind cannot be built without; else ValueError."""
    found = saved["config"].get("kind")
    if found != kind:
        raise ValueError(f"{path} holds a {found!r} checkpoint; wanted {kind!r}")
    lacking = [part for part in _NEEDED.get(kind, ()) if part not in saved["config"]]
    if lacking:
        raise ValueError(
            f"{path} is a damaged {kind} checkpoint: its config does not say {', '.join(lacking)}; train it again with "
            f"`{_recipe(path, kind)}`, or name another"
        )
    return saved


def _recipe(path: Path, kind: str) -> str:
    """The command that makes a checkpoint: of a world, whose stages lie beside each other, or of one recipe."""
    world = path.parent.parent
    if world.name == _WORLD.stem or (world / _WORLD).is_file():
        return f"underpaint train world --hours 12 --out {world}"
    return f"underpaint train {kind}" if kind in _NEEDED else "underpaint train world --hours 12"


def story(saved: Mapping[str, Any]) -> dict[str, Any]:
    """How a checkpoint came to be, in plain values, as far as it says.

    "kind", and "step" (in all), "elapsed_seconds", "validation" and "runs" (see `training.history`).
    """
    told: dict[str, Any] = {"kind": saved["config"]["kind"]}
    told |= {name: saved[name] for name in ("step", "elapsed_seconds", "validation", "runs") if name in saved}
    return told


def load_vq(path: Path) -> VQModel:
    """The tokenizer of a checkpoint, of a recipe or as LlamaGen and Chameleon publish theirs, in eval mode."""
    saved = _recipe_tokenizer(path)
    if saved is None:
        return _published_vq(path)
    model = VQModel(build(VQConfig, saved["config"]["vq"]))
    take_weights(model, saved["model"], path)
    return model.eval()


def vq_config(path: Path) -> VQConfig:
    """The widths of a tokenizer; raises as `load_vq` does."""
    saved = _recipe_tokenizer(path)
    return _published_vq(path).config if saved is None else build(VQConfig, saved["config"]["vq"])


def _recipe_tokenizer(path: Path) -> dict[str, Any] | None:
    """A recipe's checkpoint; None for a file or folder in a published form: parameters, and no config beside them."""
    if _existing(path, "tokenizer").is_dir() or path.suffix == ".safetensors":
        return None
    file = path.stat()
    saved = _last_tokenizer(path, file.st_ino, file.st_mtime_ns)
    if isinstance(saved, dict) and "config" not in saved:
        return None
    return _of_kind(_whole(saved, path), path, "tokenizer")


@lru_cache(maxsize=1)
def _last_tokenizer(path: Path, inode: int, changed_ns: int) -> Any:
    """A tokenizer's file, which the stages of a world ask for dozens of times; read again once it is another."""
    return _unpickled(path, mmap=True)


def _published_vq(path: Path) -> VQModel:
    names = read_checkpoint(path).tensors.shapes
    found = load_published("chameleon-vq" if any("encoder.down." in name for name in names) else "vq", path).vq
    assert found is not None
    return found


def target_of(saved: Mapping[str, Any], what: str | Path = "a target's checkpoint") -> CaptionedTarget:
    """The target in a checkpoint's mapping, which `what` names in errors; ValueError where it does not hold one."""
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
    """The sizes in a target's or a drafter's checkpoint. ValueError where it does not say, or says what is unknown."""
    if "decoder" not in config:
        raise ValueError("the checkpoint does not say its widths: no 'decoder' in its config; it is of no recipe")
    return build(DecoderConfig, config["decoder"])


def config_caption_dim(config: Mapping[str, Any]) -> int:
    """The width of caption features in a target's checkpoint; ValueError where it does not say."""
    found = config.get("caption_dim")
    if type(found) is not int or not 1 <= found <= MOST_CAPTION_DIM:
        raise ValueError(
            "a target's checkpoint does not say the width of its captions: expected caption_dim from 1 to "
            f"{MOST_CAPTION_DIM}, got {str(found)[:60]}"
        )
    return found


def load_target(path: Path) -> CaptionedTarget:
    """The target of a checkpoint, in eval mode."""
    return target_of(read(path, "target"), path).eval()


def load_drafter(path: Path, target: Decoder) -> Decoder:
    """The drafter of a checkpoint with its target's codes and head, in eval mode."""
    saved = read(path, "drafter")
    drafter = Decoder(decoder_config(saved["config"]))
    share_ends(drafter, target)
    own = dict(saved["model"])
    for name in ("codes.weight", "head.weight"):
        own[name] = target.state_dict()[name]
    take_weights(drafter, own, path)
    return drafter.eval()


def load_sampler(path: Path) -> TokenSampler:
    """The token sampler of a checkpoint, in eval mode."""
    saved = read(path, "sampler")
    model = TokenSampler(build(SamplerConfig, saved["config"]["sampler"]))
    take_weights(model, _network(saved), path)
    return model.eval()


def load_super_resolution(path: Path) -> SuperResolution:
    """The super-resolution network of a checkpoint, in eval mode."""
    saved = read(path, "superres")
    model = SuperResolution(build(SuperResolutionConfig, saved["config"]["superres"]))
    take_weights(model, _network(saved), path)
    return model.eval()


def _network(saved: Mapping[str, Any]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = saved["model"]
    return {name.removeprefix(_TRAINED): value for name, value in state.items() if name.startswith(_TRAINED)}
