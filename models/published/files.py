"""Checkpoint files as their authors publish them: memory-mapped, sharded, and never allowed to run code."""

import argparse
import json
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

_INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLES: Final = ("model.safetensors", "pytorch_model.bin")
_SUFFIXES: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_WRAPPERS: Final = ("model", "module", "state_dict", "sd")
"""Keys under which published files keep their parameters."""
_NAMED: Final = 5


class CheckpointError(ValueError):
    """A checkpoint is damaged, of another kind, or not safe to read."""


class Converted(Mapping[str, Tensor]):
    """Tensors of files, each converted when it is asked for and kept by nobody here."""

    def __init__(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._tensors = tensors
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        found = self._tensors[name]
        return found.to(self._dtype) if found.is_floating_point() else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Checkpoint(NamedTuple):
    """Parameters by name, views of the files; settings found in or beside them; and the files."""

    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    files: tuple[Path, ...]

    def digest(self) -> str:
        """SHA-256 over the files in order of name."""
        found = sha256()
        for file in sorted(self.files):
            with file.open("rb") as stream:
                while block := stream.read(1 << 24):
                    found.update(block)
        return found.hexdigest()


def read_checkpoint(path: Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """The checkpoint at `path`, in `dtype`: a file, or a folder with one file or with shards and their index.

    Settings are those in `config.json` beside the file, over those inside it. Tensors stay on disk until they are used.
    Raises FileNotFoundError, or CheckpointError for what is cut short, is no checkpoint, or wants to run code.
    """
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}; give a file (.safetensors, .pt, .bin) or its folder")
    files = _files(path)
    tensors: dict[str, Tensor] = {}
    settings: dict[str, Any] = {}
    for file in files:
        found = _read(file)
        inside, own = _unwrap(found, file)
        twice = sorted(set(inside) & set(tensors))
        if twice:
            raise CheckpointError(f"{file}: {_some(twice)} is in another shard too; the folder mixes two checkpoints")
        tensors.update(inside)
        settings.update(own)
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if beside.is_file():
        settings.update(_json(beside))
    return Checkpoint(Converted(tensors, dtype), settings, files)


def _files(path: Path) -> tuple[Path, ...]:
    if path.is_file():
        return (path,)
    for name in _INDEXES:
        if (path / name).is_file():
            names = sorted(set(_json(path / name).get("weight_map", {}).values()))
            missing = [shard for shard in names if not (path / shard).is_file()]
            if missing or not names:
                raise CheckpointError(f"{path / name}: expected the shards {_some(missing)} beside it; copy them too")
            return tuple(path / shard for shard in names)
    for name in _SINGLES:
        if (path / name).is_file():
            return (path / name,)
    found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    if len(found) != 1:
        raise CheckpointError(f"{path}: expected one checkpoint file or an index, got {len(found)}; name the file")
    return (found[0],)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: expected JSON, got {error}; copy the file again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def _read(file: Path) -> Any:
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except SafetensorError as error:
            raise CheckpointError(f"{file}: cut short or no safetensors file ({error}); copy it again") from error
    try:
        # A Namespace of training arguments is plain data; nothing else beyond tensors and containers is let in.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return _load(file)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{file}: refused, its pickle asks for more than tensors and plain data ({str(error).splitlines()[0]}); "
            "convert it to safetensors on a machine that you can lose"
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        raise CheckpointError(
            f"{file}: cut short or no PyTorch checkpoint ({str(error).splitlines()[0] if str(error) else 'end of file'}"
            "); copy it again"
        ) from error


def _load(file: Path) -> Any:
    with file.open("rb") as stream:
        zipped = stream.read(2) == b"PK"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected pickle protocol")  # what it cannot read, it refuses
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)


def _unwrap(found: Any, file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The parameters of what a file holds, out of the wrappers of training code, and the settings beside them."""
    settings: dict[str, Any] = {}
    while isinstance(found, Mapping):
        if found and all(isinstance(value, Tensor) for value in found.values()):
            return {name.removeprefix("module."): value for name, value in found.items()}, settings
        settings.update({name: value for name, value in found.items() if not isinstance(value, Tensor | Mapping)})
        if isinstance(found.get("args"), Mapping):
            settings.update(found["args"])
        inner = next((found[key] for key in _WRAPPERS if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = inner
    raise CheckpointError(f"{file}: expected parameters by name, got {type(found).__name__}; is this a checkpoint?")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


SIGNS: Final[Mapping[str, str]] = {
    "cls_embedding.embedding_table.weight": "llamagen-c2i",
    "cls_embedding.cap_proj.fc1.weight": "llamagen-t2i",
    "abs_pe": "tar-dtok",
    "model.layers.0.self_attn.q_norm.weight": "chameleon",
    "model.layers.0.self_attn.q_proj.bias": "tar-lm",
    "fc.weight": "eagle-drafter",
    "quantize.embedding.weight": "vq",
}
"""A parameter that only this kind of checkpoint has."""


def likely_kind(names: Iterable[str]) -> str | None:
    """The kind that parameters of these names belong to; None where nothing tells."""
    known = set(names)
    return next((kind for sign, kind in SIGNS.items() if sign in known), None)


def require(checkpoint: Checkpoint, kind: str, *names: str) -> None:
    """Raise CheckpointError unless all these parameters are there."""
    missing = [name for name in names if name not in checkpoint.tensors]
    if missing:
        raise CheckpointError(f"expected a {kind} checkpoint, {_some(missing)} missing; {_hint(checkpoint, kind)}")


def _hint(checkpoint: Checkpoint, kind: str) -> str:
    found = likely_kind(checkpoint.tensors)
    if found is not None and found != kind:
        return f"its parameters look like kind '{found}': use --kind {found}"
    return "check the file, and the sizes given beside it"


def fill(
    module: nn.Module, tensors: Mapping[str, Tensor], checkpoint: Checkpoint, kind: str, dtype: torch.dtype
) -> None:
    """Give `module`, built on the meta device, its parameters, each converted by itself: one model in memory.

    Raises CheckpointError naming the first that are missing, extra or misshaped.
    """
    wanted = module.state_dict()
    problems = []
    missing, extra = sorted(set(wanted) - set(tensors)), sorted(set(tensors) - set(wanted))
    wrong = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(wanted[name].shape)}"
        for name in sorted(set(wanted) & set(tensors))
        if tensors[name].shape != wanted[name].shape
    ]
    for what, names in (("missing", missing), ("not known", extra), ("of another shape", wrong)):
        if names:
            problems.append(f"{_some(names)} {what}")
    if problems:
        raise CheckpointError(f"expected a {kind} checkpoint: {'; '.join(problems)}; {_hint(checkpoint, kind)}")
    own = {name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()}
    module.load_state_dict(own, assign=True)
