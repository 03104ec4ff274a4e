"""Load a published checkpoint by kind."""

from pathlib import Path
from typing import Final, Literal, TypeAlias

import torch

from underpaint.models.published.decoder import Conditioner, Decoder
from underpaint.models.published.files import Checkpoint, fill, read_checkpoint
from underpaint.models.published.llama import chameleon, eagle, tar_lm
from underpaint.models.published.llamagen import llamagen, tar_dtok
from underpaint.models.published.options import LoadOptions, Parts, Published
from underpaint.models.published.tokenizers import chameleon_vq, llamagen_vq

TARGETS: Final = ("llamagen-c2i", "llamagen-t2i", "tar-dtok", "tar-lm", "chameleon")
TOKENIZERS: Final = {"vq": llamagen_vq, "chameleon-vq": chameleon_vq}
KINDS: Final = (*TARGETS, "eagle-drafter", *TOKENIZERS)
Precision: TypeAlias = Literal["fp32", "fp16", "bf16"]
PRECISIONS: Final = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def find(path: str) -> Path:
    """A local path, or what a hub name stands for, fetched by `huggingface_hub` where that is installed.

    A hub name is "owner/model", or "owner/model/file" for one file or folder of a repository that holds several, as
    LlamaGen's and Tar's do. Raises FileNotFoundError where neither is there.
    """
    local, parts = Path(path), path.split("/")
    if local.exists() or len(parts) < 2 or parts[0] in ("", ".", "..", "~") or not all(parts):
        return local
    repository, inside = "/".join(parts[:2]), "/".join(parts[2:])
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise FileNotFoundError(
            f"no checkpoint at {path}; to fetch it from the hub's '{repository}', install: pip install huggingface_hub"
        ) from error
    try:
        only = [inside, f"{inside}/*"] if inside else None
        found = Path(snapshot_download(repository, allow_patterns=only), inside)
    except Exception as error:  # the hub's errors share no base
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FileNotFoundError(f"no checkpoint at {path}, and the hub did not give it ({said})") from error
    if not found.exists():
        raise FileNotFoundError(f"no checkpoint at {path}, and no {inside} in the hub's '{repository}'")
    return found


def load(
    kind: str,
    path: Path,
    precision: str = "fp32",
    options: LoadOptions | None = None,
    target: tuple[str, Path] | None = None,
    target_options: LoadOptions | None = None,
) -> Published:
    """The model of `kind` at `path`, every parameter in `precision`; drafters need their target's (kind, path).

    Raises FileNotFoundError; CheckpointError where the file is not what `kind` says; ValueError on an unknown name.
    """
    if kind not in KINDS:
        raise ValueError(f"--kind: expected one of {', '.join(KINDS)} or sampler, got {kind!r}")
    if precision not in PRECISIONS:
        raise ValueError(f"--precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    dtype, chosen = PRECISIONS[precision], options or LoadOptions()
    read, read_options = (kind, chosen) if target is None else (target[0], target_options or LoadOptions())
    if read != "chameleon" and read_options.layout != "anole":
        raise ValueError(f"--layout {read_options.layout}: only a chameleon's pictures have one, not those of {read}")
    source = read_checkpoint(path, dtype)
    if kind in TOKENIZERS:
        return Published(kind, None, None, TOKENIZERS[kind](source, dtype), source)
    if kind == "eagle-drafter":
        if target is None or target[0] not in TARGETS:
            raise ValueError(f"a drafter needs its target: --target PATH --target-kind one of {', '.join(TARGETS)}")
        base = _target(target[0], read_checkpoint(target[1], dtype), target_options or LoadOptions())
        parts = eagle(source, base, chosen)
    else:
        parts = _target(kind, source, chosen)
    return Published(kind, *_filled(parts, source, kind, dtype), None, source)


def _target(kind: str, source: Checkpoint, options: LoadOptions) -> Parts:
    if kind in ("llamagen-c2i", "llamagen-t2i"):
        return llamagen(source, options, kind == "llamagen-t2i")
    if kind == "tar-dtok":
        return tar_dtok(source, options)
    return chameleon(source, options) if kind == "chameleon" else tar_lm(source, options)


def _filled(parts: Parts, source: Checkpoint, kind: str, dtype: torch.dtype) -> tuple[Decoder, Conditioner | None]:
    with torch.device("meta"):
        decoder = Decoder(parts.config)
    fill(decoder, parts.tensors, source, kind, dtype)
    if parts.conditioner is None:
        return decoder.eval(), None
    with torch.device("meta"):
        conditioner = Conditioner(parts.features, parts.config.dim, parts.config.prefix, parts.activation)
    fill(conditioner, parts.conditioner, source, kind, dtype)
    return decoder.eval(), conditioner.eval()
