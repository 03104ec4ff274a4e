"""Reading of published checkpoint files: memory-mapped, with shards, and without running code from them."""

import argparse
import pickle
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from underpaint.algos.memory import lacks_memory
from underpaint.artifacts.files import check_regular
from underpaint.artifacts.strict_json import read_object
from underpaint.models.published.mapped import TensorFile, Tensors

_INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLES: Final = ("model.safetensors", "pytorch_model.bin")
_SUFFIXES: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_WRAPPERS: Final = ("model", "module", "state_dict", "sd")
"""Keys under which published files store their parameters."""
_FOLLOWING: Final = ("freqs_cis", "causal_mask", "rotary_emb.inv_freq")
"""Name endings of buffers in some releases that can be computed from the sizes."""
_NAMED: Final = 5
_NEVER_CONSTANT: Final = (
    *("codes.weight", "head.weight", "conditions.weight", "first.weight", "second.weight"),
    *("quantize.embedding.weight", "encoder.conv_in.weight", "decoder.conv_in.weight"),
)
"""Matrices that are never constant in a trained model. Inside layers, a matrix of zeros can be intended."""
_NORM: Final = "norm.weight"
"""The norm of the last hidden states, which zeros would erase."""


Recipe: TypeAlias = Callable[[], Tensor]
"""A function that makes one parameter from those of a checkpoint."""


UNREADABLE: Final = (pickle.UnpicklingError, RuntimeError, EOFError, IndexError, KeyError, TypeError, AttributeError)
"""The exceptions of PyTorch's unpickler on files that are not checkpoints; which one depends on the bytes."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, of another kind, or unsafe to read."""


class Checkpoint(NamedTuple):
    """The parameters of a checkpoint by name, read on access; its settings; and its files."""

    tensors: Tensors
    settings: Mapping[str, Any]
    files: tuple[Path, ...]

    def digest(self) -> str:
        """Return the SHA-256 of the files' contents, in order of their names."""
        hasher = sha256()
        for file in sorted(self.files):
            with file.open("rb") as stream:
                while block := stream.read(1 << 24):
                    hasher.update(block)
        return hasher.hexdigest()


def read_checkpoint(path: Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Open the checkpoint at `path`, in `dtype`: a file, or a folder with one file or with shards and their index.

    Settings in a `config.json` next to the file override those in the file. Tensors are read from disk on access.
    Raises FileNotFoundError, or CheckpointError if a file is truncated, is not a checkpoint, or would run code.
    """
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}; give a file (.safetensors, .pt, .bin) or its folder")
    if not path.is_dir():
        check_regular(path)
    files = _files(path)
    seen_names: set[str] = set()
    opened: list[TensorFile] = []
    settings: dict[str, Any] = {}
    for file in files:
        inside, file_settings = _unwrap(_read(file), file)
        twice = sorted(seen_names & set(inside))
        if twice:
            raise CheckpointError(f"{file}: {_some(twice)} is in another shard too; the folder mixes two checkpoints")
        empty = sorted(name for name, value in inside.items() if not value.numel() and not name.endswith(_FOLLOWING))
        if empty:
            raise CheckpointError(
                f"{file}: expected numbers in every parameter, {_some(empty)} has none; copy it again"
            )
        strange = sorted(
            name
            for name, value in inside.items()
            if value.layout != torch.strided or value.is_meta or value.is_quantized
        )
        if strange:
            raise CheckpointError(
                f"{file}: expected plain dense tensors, {_some(strange)} is sparse, quantised or without numbers; "
                "save it as a dense tensor"
            )
        seen_names |= set(inside)
        opened.append(TensorFile(inside, _again(file) if _mapped(file) else None))
        settings.update(file_settings)
    beside = (path if path.is_dir() else path.parent) / "config.json"
    if beside.is_file():
        settings.update(_json(beside))
    return Checkpoint(Tensors(tuple(opened), dtype), settings, files)


def _files(path: Path) -> tuple[Path, ...]:
    if path.is_file():
        return (path,)
    for name in _INDEXES:
        if (path / name).is_file():
            listed = _json(path / name).get("weight_map")
            names = sorted({str(shard) for shard in listed.values()}) if isinstance(listed, dict) else []
            outside = [shard for shard in names if _leads_outside(shard)]
            if outside:
                raise CheckpointError(
                    f"{path / name}: expected shards in its own folder, got {_some(outside)}: a checkpoint that names "
                    "other files is not to be trusted; get it from its authors again"
                )
            missing = [shard for shard in names if not (path / shard).is_file()]
            if missing or not names:
                expected = (
                    f"the shards {_some(missing)} beside it; copy them too" if names else "the shards by name, got none"
                )
                raise CheckpointError(f"{path / name}: expected {expected}")
            return tuple(path / shard for shard in names)
    for name in _SINGLES:
        if (path / name).is_file():
            return (path / name,)
    candidates = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    if len(candidates) != 1:
        raise CheckpointError(f"{path}: expected one checkpoint file or an index, got {len(candidates)}; name the file")
    return (candidates[0],)


def _leads_outside(shard: str) -> bool:
    """Return whether a shard's name leads out of the index's folder. Symbolic links out of it, as on hubs, are fine."""
    place = PurePosixPath(shard)
    return place.is_absolute() or ".." in place.parts or "\\" in shard or "\0" in shard or shard in ("", ".")


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; copy the file again") from error


def _read(file: Path) -> Any:
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except SafetensorError as error:
            raise CheckpointError(f"{file}: cut short or no safetensors file ({error}); copy it again") from error
    try:
        # A Namespace of training arguments is plain data; apart from it, only tensors and containers are allowed.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return _load(file)
    except pickle.UnpicklingError as error:
        if not _is_pickle(file):
            raise CheckpointError(
                f"{file}: no PyTorch checkpoint, its first bytes are none; name another file"
            ) from error
        raise CheckpointError(
            f"{file}: refused, its pickle asks for more than tensors and plain data ({_request(error)}); convert it "
            "to safetensors on a machine that you can lose"
        ) from error
    except (*UNREADABLE, OSError) as error:
        if lacks_memory(error):
            raise MemoryError(f"{file} does not fit in it") from error
        raise CheckpointError(
            f"{file}: cut short or no PyTorch checkpoint ({str(error).splitlines()[0] if str(error) else 'end of file'}"
            "); copy it again"
        ) from error


def _is_pickle(file: Path) -> bool:
    """Return whether a file begins like PyTorch's: as a zip archive, or as a pickle of protocol 2 or later."""
    with file.open("rb") as stream:
        start = stream.read(2)
    return start == b"PK" or (start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"))


def _request(error: Exception) -> str:
    """Return the line of PyTorch's error that names the request, without its advice to load the file unsafely."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    request_lines = [line for line in lines if "GLOBAL" in line or "Unsupported" in line]
    return (request_lines or lines or [type(error).__name__])[0][:160]


def _mapped(file: Path) -> bool:
    """Return whether the file can be memory-mapped; PyTorch's oldest format cannot and is read completely."""
    with file.open("rb") as stream:
        return file.suffix == ".safetensors" or stream.read(2) == b"PK"


def _again(file: Path) -> Callable[[], dict[str, Tensor]]:
    return lambda: _unwrap(_read(file), file)[0]


def _load(file: Path) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected pickle protocol")  # unreadable protocols raise an error anyway
        return torch.load(file, map_location="cpu", weights_only=True, mmap=_mapped(file))


def _unwrap(content: Any, file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the parameters in a file's content, taken out of wrappers of training code, and the settings there."""
    settings: dict[str, Any] = {}
    while isinstance(content, Mapping):
        if content and all(isinstance(value, Tensor) for value in content.values()):
            return {name.removeprefix("module."): value for name, value in content.items()}, settings
        settings.update({name: value for name, value in content.items() if not isinstance(value, Tensor | Mapping)})
        if isinstance(content.get("args"), Mapping):
            settings.update(content["args"])
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    raise CheckpointError(f"{file}: expected parameters by name, got {type(content).__name__}; is this a checkpoint?")


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
    "decoder.mid.block_1.conv1.weight": "chameleon-vq",
    "quantize.embedding.weight": "vq",
}
"""For each kind of checkpoint, a parameter that identifies it."""


def likely_kind(names: Iterable[str]) -> str | None:
    """Return the kind of checkpoint that has these parameter names, or None if it is unknown."""
    name_set = set(names)
    return next((kind for sign, kind in SIGNS.items() if sign in name_set), None)


def require(checkpoint: Checkpoint, kind: str, *names: str) -> None:
    """Raise CheckpointError unless the checkpoint has all these parameters."""
    missing = [name for name in names if name not in checkpoint.tensors]
    if missing:
        raise CheckpointError(f"expected a {kind} checkpoint, {_some(missing)} missing; {_hint(checkpoint, kind)}")


def refuse_extra(checkpoint: Checkpoint, kind: str, known_names: Collection[str], beside: tuple[str, ...] = ()) -> None:
    """Raise CheckpointError if there are parameters except `known_names`, buffers, and names that begin with `beside`.

    An unread parameter would mean that the published model computes something else than the loaded one.
    """
    extra = sorted(name for name in set(checkpoint.tensors) - set(known_names) if not name.startswith(beside))
    extra = [name for name in extra if not name.endswith(_FOLLOWING)]
    if extra:
        raise CheckpointError(f"expected a {kind} checkpoint, {_some(extra)} not known; {_hint(checkpoint, kind)}")


_UNSUPPORTED: Final[Mapping[str, str]] = {
    "layers.0.attention.wq.weight": "Meta's own layout (consolidated.pth), of which no kind is read; convert it to "
    "transformers' layout (model.safetensors and config.json) and use --kind chameleon",
    "midlayer.self_attn.q_proj.weight": "an EAGLE-3 drafter, which no export reads: it drafts for live models, "
    "--live MODEL --drafter FOLDER; exports read EAGLE-1 and EAGLE-2 drafters (--kind eagle-drafter)",
    "d2t": "an EAGLE-3 drafter, which no export reads: it drafts for live models, --live MODEL --drafter FOLDER; "
    "exports read EAGLE-1 and EAGLE-2 drafters (--kind eagle-drafter)",
}
"""Known layouts that cannot be read, with a remedy, by a parameter that identifies the layout."""


def _hint(checkpoint: Checkpoint, kind: str) -> str:
    for sign, layout in _UNSUPPORTED.items():
        if sign in checkpoint.tensors:
            return f"this is {layout}"
    guess = likely_kind(checkpoint.tensors)
    if guess is not None and guess != kind:
        return f"its parameters look like kind '{guess}': use --kind {guess}"
    return "check the file, the sizes given beside it, and the precision asked for"


def fill(
    module: nn.Module, tensors: Mapping[str, Recipe], checkpoint: Checkpoint, kind: str, dtype: torch.dtype
) -> None:
    """Fill `module`, built on the meta device, with parameters made one by one, so that memory holds a single model.

    Raises CheckpointError, with the first names, if parameters are missing, extra or misshaped, do not fit `dtype`, or
    are constant although tokens or codes must differ.
    """
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    missing, extra = sorted(set(shapes) - set(tensors)), sorted(set(tensors) - set(shapes))
    problems = {"missing": missing, "not known": extra, "of another shape": []}
    problems |= {"no floating numbers": [], f"not finite as {dtype}": []}
    problems |= {f"the same number everywhere as {dtype}": []}
    state: dict[str, Tensor] = {}
    for name in shapes if not (missing or extra) else ():
        try:
            tensor = tensors[name]()
        except (RuntimeError, IndexError) as error:  # parts of a matrix do not fit together
            problems["of another shape"].append(f"{name} ({str(error).splitlines()[0]})")
            continue
        if tuple(tensor.shape) != shapes[name]:
            problems["of another shape"].append(f"{name} {tuple(tensor.shape)} for {shapes[name]}")
            continue
        if not tensor.is_floating_point():
            problems["no floating numbers"].append(f"{name} ({str(tensor.dtype).removeprefix('torch.')})")
            continue
        tensor = tensor.to(dtype)
        low, high = tensor.aminmax()
        if not (low.isfinite() and high.isfinite()):
            problems[f"not finite as {dtype}"].append(name)
        elif low == high and ((tensor.numel() > 1 and name in _NEVER_CONSTANT) or (low == 0 and name == _NORM)):
            problems[f"the same number everywhere as {dtype}"].append(f"{name} ({low.item():g})")
        state[name] = tensor
    messages = [f"{_some(names)} {what}" for what, names in problems.items() if names]
    if messages:
        raise CheckpointError(f"expected a {kind} checkpoint: {'; '.join(messages)}; {_hint(checkpoint, kind)}")
    module.load_state_dict(state, assign=True)
