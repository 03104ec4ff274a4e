"""Checkpoint files as their authors publish them: memory-mapped, sharded, and never allowed to run code."""

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
"""Keys under which published files keep their parameters."""
_FOLLOWING: Final = ("freqs_cis", "causal_mask", "rotary_emb.inv_freq")
"""Ends of buffers that some releases carry and that follow from the sizes."""
_NAMED: Final = 5
_TOLD_APART: Final = (
    *("codes.weight", "head.weight", "conditions.weight", "first.weight", "second.weight"),
    *("quantize.embedding.weight", "encoder.conv_in.weight", "decoder.conv_in.weight"),
)
"""Matrices that hold different numbers in every trained model. Inside layers a matrix of zeros may be meant."""
_NORM: Final = "norm.weight"
"""Of the last hidden states: zeros leave nothing of them."""


Recipe: TypeAlias = Callable[[], Tensor]
"""Makes one parameter out of a checkpoint's, when it is called."""


UNREADABLE: Final = (pickle.UnpicklingError, RuntimeError, EOFError, IndexError, KeyError, TypeError, AttributeError)
"""What PyTorch's unpickler raises on a file that is no checkpoint: it stumbles over whatever bytes there are."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, of another kind, or not safe to read."""


class Checkpoint(NamedTuple):
    """Parameters by name, read when they are asked for; settings found in or beside them; and the files."""

    tensors: Tensors
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
    if not path.is_dir():
        check_regular(path)
    files = _files(path)
    known: set[str] = set()
    opened: list[TensorFile] = []
    settings: dict[str, Any] = {}
    for file in files:
        inside, own = _unwrap(_read(file), file)
        twice = sorted(known & set(inside))
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
        known |= set(inside)
        opened.append(TensorFile(inside, _again(file) if _mapped(file) else None))
        settings.update(own)
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
                said = (
                    f"the shards {_some(missing)} beside it; copy them too" if names else "the shards by name, got none"
                )
                raise CheckpointError(f"{path / name}: expected {said}")
            return tuple(path / shard for shard in names)
    for name in _SINGLES:
        if (path / name).is_file():
            return (path / name,)
    found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    if len(found) != 1:
        raise CheckpointError(f"{path}: expected one checkpoint file or an index, got {len(found)}; name the file")
    return (found[0],)


def _leads_outside(shard: str) -> bool:
    """Whether the name of a shard leads out of the folder of its index. Links, as hubs store files, may point away."""
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
        # A Namespace of training arguments is plain data; nothing else beyond tensors and containers is let in.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return _load(file)
    except pickle.UnpicklingError as error:
        if not _is_pickle(file):
            raise CheckpointError(
                f"{file}: no PyTorch checkpoint, its first bytes are none; name another file"
            ) from error
        raise CheckpointError(
            f"{file}: refused, its pickle asks for more than tensors and plain data ({_asked_for(error)}); convert it "
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
    """Whether a file begins as one of PyTorch's does: a zip archive, or a pickle of protocol 2 or later."""
    with file.open("rb") as stream:
        start = stream.read(2)
    return start == b"PK" or (start[:1] == b"\x80" and start[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"))


def _asked_for(error: Exception) -> str:
    """The line of PyTorch's refusal that says what was asked for, without its advice to read the file unsafely."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "GLOBAL" in line or "Unsupported" in line]
    return (told or lines or [type(error).__name__])[0][:160]


def _mapped(file: Path) -> bool:
    """Whether the file can be mapped: all but PyTorch's oldest format, which is read whole."""
    with file.open("rb") as stream:
        return file.suffix == ".safetensors" or stream.read(2) == b"PK"


def _again(file: Path) -> Callable[[], dict[str, Tensor]]:
    return lambda: _unwrap(_read(file), file)[0]


def _load(file: Path) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected pickle protocol")  # what it cannot read, it refuses
        return torch.load(file, map_location="cpu", weights_only=True, mmap=_mapped(file))


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
    "decoder.mid.block_1.conv1.weight": "chameleon-vq",
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


def refuse_extra(checkpoint: Checkpoint, kind: str, known: Collection[str], beside: tuple[str, ...] = ()) -> None:
    """Raise CheckpointError where there are parameters besides `known`, names that begin with `beside`, and buffers.

    What nothing reads would change what the published model computes, and not what is made of it here.
    """
    extra = sorted(name for name in set(checkpoint.tensors) - set(known) if not name.startswith(beside))
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
"""By a parameter that only it has: a layout that is known and not read, and what to do."""


def _hint(checkpoint: Checkpoint, kind: str) -> str:
    for sign, layout in _UNSUPPORTED.items():
        if sign in checkpoint.tensors:
            return f"this is {layout}"
    found = likely_kind(checkpoint.tensors)
    if found is not None and found != kind:
        return f"its parameters look like kind '{found}': use --kind {found}"
    return "check the file, the sizes given beside it, and the precision asked for"


def fill(
    module: nn.Module, tensors: Mapping[str, Recipe], checkpoint: Checkpoint, kind: str, dtype: torch.dtype
) -> None:
    """Give `module`, built on the meta device, its parameters, one made after the other: one model in memory.

    Raises CheckpointError naming the first that are missing, extra, misshaped, that `dtype` cannot hold, or that hold
    one number everywhere, so that no token or code could be told from another.
    """
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    missing, extra = sorted(set(wanted) - set(tensors)), sorted(set(tensors) - set(wanted))
    problems = {"missing": missing, "not known": extra, "of another shape": []}
    problems |= {"no floating numbers": [], f"not finite as {dtype}": []}
    problems |= {f"the same number everywhere as {dtype}": []}
    own: dict[str, Tensor] = {}
    for name in wanted if not (missing or extra) else ():
        try:
            made = tensors[name]()
        except (RuntimeError, IndexError) as error:  # parts of one matrix that do not fit each other
            problems["of another shape"].append(f"{name} ({str(error).splitlines()[0]})")
            continue
        if tuple(made.shape) != wanted[name]:
            problems["of another shape"].append(f"{name} {tuple(made.shape)} for {wanted[name]}")
            continue
        if not made.is_floating_point():
            problems["no floating numbers"].append(f"{name} ({str(made.dtype).removeprefix('torch.')})")
            continue
        made = made.to(dtype)
        low, high = made.aminmax()
        if not (low.isfinite() and high.isfinite()):
            problems[f"not finite as {dtype}"].append(name)
        elif low == high and ((made.numel() > 1 and name in _TOLD_APART) or (low == 0 and name == _NORM)):
            problems[f"the same number everywhere as {dtype}"].append(f"{name} ({low.item():g})")
        own[name] = made
    said = [f"{_some(names)} {what}" for what, names in problems.items() if names]
    if said:
        raise CheckpointError(f"expected a {kind} checkpoint: {'; '.join(said)}; {_hint(checkpoint, kind)}")
    module.load_state_dict(own, assign=True)
