"""The token data set: pictures of scenes encoded once by a tokenizer, kept as memory maps.

A folder holds, per split and resolution, `codes` int16 [scenes, cells] filled from the front (-1: not yet) and a
JSON file that names the tokenizer it came from. A build that was stopped continues.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.artifacts.files import named
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.strict_json import read_json
from underpaint.models.checkpoints import load_vq
from underpaint.models.typed import channels_last
from underpaint.models.vq import VQModel
from underpaint.training.data.textured_scenes import Split
from underpaint.training.pictures import Pictures, to_pixels
from underpaint.training.precision import autocast

CHUNK = 64
"""Pictures of up to 128 px that are encoded together; of larger ones as many as hold as many pixels."""


class TokenSet(NamedTuple):
    """`codes` int16 [scenes, cells] and `words` int64 [scenes, prefix]; row i is scene i of the split."""

    codes: NDArray[np.int16]
    words: NDArray[np.int64]


def _fingerprint(vq: VQModel) -> str:
    """A hash of the weights that decide codes."""
    digest = hashlib.sha256()
    for name, value in vq.state_dict().items():
        if not name.startswith(("decoder.", "post_quant_conv.")):
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def check_source(path: Path, about: dict[str, object], told: str, remedy: str) -> None:
    """Write what the data beside `path` come from, or compare with what is written.

    told: what the file tells of them; remedy: what to do. Raises ValueError, with both, where it is damaged or differs.
    """
    if not path.exists():
        write_beside(path, json.dumps(about).encode())
        return
    try:
        found = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} should say {told}, and is damaged ({error}). {remedy}") from error
    if found != about:
        raise ValueError(f"{path} says {found}; now wanted {about}. {remedy}")


@torch.no_grad()
def encode_pictures(
    folder: Path,
    tokenizer: Path,
    pictures: Pictures,
    resolution: int,
    count: int,
    split: Split,
    source: Mapping[str, object],
    device: str = "cpu",
    report: Callable[[int, int], None] | None = None,
) -> NDArray[np.int16]:
    """The first `count` pictures of a split as codes [count, cells], from the cache where it has them.

    Args:
        folder: the cache, created if absent.
        tokenizer: checkpoint of the tokenizer.
        pictures: renderer, or reader of files.
        resolution: side of the pictures in pixels.
        count: how many; the cache grows where it holds fewer.
        split: "train", "seen" or "held_out".
        source: what tells these pictures from others.
        device: "cpu" or "cuda"; a code whose choice was close may differ between them.
        report: is told how many are encoded, of how many that the cache lacks.

    Raises:
        ValueError: when the cache was made by another tokenizer or from other pictures, or does not say by which.
    """
    vq = load_vq(tokenizer)
    cells = (resolution // vq.config.stride) ** 2
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{split}_{resolution}"
    about = {"tokenizer": _fingerprint(vq), **source}
    told, remedy = "which tokenizer the codes beside it come from", "Delete its folder to encode again."
    check_source(stem.with_suffix(".json"), about, told, remedy)
    path = stem.with_suffix(".codes")
    held = path.stat().st_size // (2 * cells) if path.exists() else 0
    if held < count:
        with named(path), path.open("ab") as file:
            file.write(np.full((count - held, cells), -1, np.int16).tobytes())
    codes: NDArray[np.int16] = np.memmap(path, np.int16, "r+", shape=(count, cells))
    todo = np.flatnonzero(codes[:, 0] < 0)
    vq = channels_last(vq.to(device))
    together = max(1, CHUNK * 128**2 // max(resolution, 128) ** 2)
    for start in range(0, len(todo), together):
        rows = todo[start : start + together]
        pixels = to_pixels(pictures(rows.tolist(), resolution, split), device)
        with autocast(device):
            found = vq.encode(pixels)
        encoded = found.cpu().numpy().astype(np.int16)
        codes[rows, 1:] = encoded[:, 1:]
        codes[rows, 0] = encoded[:, 0]  # last: a row whose first code is there is whole, however the process ends
        if report is not None:
            report(min(start + together, len(todo)), len(todo))
    return codes
