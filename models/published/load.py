"""Loading of published checkpoints by kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from underpaint.artifacts.decoder_config import Precision
from underpaint.models.decoder import Conditioner, Decoder
from underpaint.models.published.families import FAMILIES, TARGETS
from underpaint.models.published.files import Checkpoint, fill, read_checkpoint
from underpaint.models.published.options import LoadOptions, Parts, Published

PRECISIONS: Final[Mapping[Precision, torch.dtype]] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def find(path: str) -> Path:
    """Return a local path, or download a hub name with `huggingface_hub` and return the path of the download.

    A hub name is "owner/model", or "owner/model/file" for one file or folder of a repository with several models, such
    as LlamaGen's and Tar's. Raises FileNotFoundError if the hub does not have it, or without `huggingface_hub`.
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
        download = Path(snapshot_download(repository, allow_patterns=only), inside)
    except Exception as error:  # the hub's errors share no base
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FileNotFoundError(f"no checkpoint at {path}, and the hub did not give it ({reason})") from error
    if not download.exists():
        raise FileNotFoundError(f"no checkpoint at {path}, and no {inside} in the hub's '{repository}'")
    return download


def load(
    kind: str,
    path: Path,
    precision: Precision = "fp32",
    options: LoadOptions | None = None,
    target: tuple[str, Path] | None = None,
    target_options: LoadOptions | None = None,
) -> Published:
    """Load the model of `kind` at `path`, all parameters in `precision`; drafters need their target's (kind, path).

    Raises FileNotFoundError, CheckpointError if the file is not of this kind, and ValueError on an unknown name.
    """
    if kind not in FAMILIES:
        raise ValueError(
            f"--kind: expected one of {', '.join(each.name for each in FAMILIES)} or sampler, got {kind!r}"
        )
    if precision not in PRECISIONS:
        raise ValueError(f"--precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    spec, dtype, chosen = FAMILIES[kind], PRECISIONS[precision], options or LoadOptions()
    read, read_options = (kind, chosen) if target is None else (target[0], target_options or LoadOptions())
    if read != "chameleon" and read_options.layout != "anole":
        raise ValueError(f"--layout {read_options.layout}: only a chameleon's pictures have one, not those of {read}")
    source = read_checkpoint(path, dtype)
    if spec.read_tokenizer is not None:
        return Published(kind, None, None, spec.read_tokenizer(source, dtype), source)
    if spec.read_drafter is not None:
        if target is None or target[0] not in TARGETS:
            raise ValueError(f"a drafter needs its target: --target PATH --target-kind one of {', '.join(TARGETS)}")
        base = _target(target[0], read_checkpoint(target[1], dtype), target_options or LoadOptions())
        parts = spec.read_drafter(source, base, chosen)
    else:
        parts = _target(kind, source, chosen)
    return Published(kind, *_filled(parts, source, kind, dtype), None, source)


def _target(kind: str, source: Checkpoint, options: LoadOptions) -> Parts:
    read = FAMILIES[kind].read_target
    if read is None:
        raise ValueError(f"--target-kind: expected one of {', '.join(TARGETS)}, got {kind!r}")
    return read(source, options)


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
