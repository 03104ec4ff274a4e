"""The token data set: pictures of scenes encoded once by a tokenizer, stored as memory maps.

For each split and resolution, a folder has `codes` int16 [scenes, cells], filled from the front (-1: not encoded yet),
and a JSON file that names their tokenizer. A stopped build continues.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

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
"""Number of pictures of up to 128 px that are encoded together; for larger ones, as many pixels."""
MOST_CODES: Final = 1 << 15
"""Largest size of a codebook: codes are stored in 16 bits, and -1 stands for none."""


class TokenSet(NamedTuple):
    """`codes` int16 [scenes, cells] and `words` int64 [scenes, prefix]; row i is scene i of the split."""

    codes: NDArray[np.int16]
    words: NDArray[np.int64]


def _fingerprint(vq: VQModel) -> str:
    """Return a hash of the weights that determine codes."""
    digest = hashlib.sha256()
    for name, value in vq.state_dict().items():
        if not name.startswith(("decoder.", "post_quant_conv.")):
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def check_source(path: Path, about: dict[str, object], description: str, remedy: str) -> None:
    """Write the origin of the data next to `path`, or compare it with an existing file.

    Args:
        path: The data.
        about: Its origin.
        description: What the file describes, for the message of an error.
        remedy: What to do, for the message of an error.

    Raises:
        ValueError: The file is damaged or differs.
    """
    if not path.exists():
        write_beside(path, json.dumps(about).encode())
        return
    try:
        saved_source = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} should say {description}, and is damaged ({error}). {remedy}") from error
    if saved_source != about:
        raise ValueError(f"{path} says {saved_source}; now wanted {about}. {remedy}")


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
    """Encode the first `count` pictures of a split as codes [count, cells]; cached codes are reused.

    Args:
        folder: Folder of the cache; created if missing.
        tokenizer: Checkpoint of the tokenizer.
        pictures: Renderer, or reader of files.
        resolution: Side of the pictures in pixels.
        count: Number of pictures; the cache grows if it has fewer.
        split: "train", "seen" or "held_out".
        source: Identifies these pictures.
        device: "cpu" or "cuda"; a code whose choice was close may differ between them.
        report: Callback with the number of encoded pictures, and the number that the cache lacked.

    Raises:
        ValueError: The cache comes from another tokenizer or other pictures, or does not name its tokenizer; or the
            tokenizer has more than `MOST_CODES` codes.
    """
    vq = load_vq(tokenizer)
    if vq.config.codebook_size > MOST_CODES:
        raise ValueError(
            f"{tokenizer}: expected a tokenizer of at most {MOST_CODES:,} codes, as codes are stored in 16 bits, got "
            f"one of {vq.config.codebook_size:,}; give another --tokenizer"
        )
    cells = (resolution // vq.config.stride) ** 2
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{split}_{resolution}"
    about = {"tokenizer": _fingerprint(vq), **source}
    description, remedy = "which tokenizer the codes beside it come from", "Delete its folder to encode again."
    check_source(stem.with_suffix(".json"), about, description, remedy)
    path = stem.with_suffix(".codes")
    cached_rows = path.stat().st_size // (2 * cells) if path.exists() else 0
    if cached_rows < count:
        with named(path), path.open("ab") as file:
            file.write(np.full((count - cached_rows, cells), -1, np.int16).tobytes())
    codes: NDArray[np.int16] = np.memmap(path, np.int16, "r+", shape=(count, cells))
    todo = np.flatnonzero(codes[:, 0] < 0)
    vq = channels_last(vq.to(device))
    together = max(1, CHUNK * 128**2 // max(resolution, 128) ** 2)
    for start in range(0, len(todo), together):
        rows = todo[start : start + together]
        pixels = to_pixels(pictures(rows.tolist(), resolution, split), device)
        with autocast(device):
            batch_codes = vq.encode(pixels)
        encoded = batch_codes.cpu().numpy().astype(np.int16)
        codes[rows, 1:] = encoded[:, 1:]
        codes[rows, 0] = encoded[:, 0]  # written last: a row with a first code is complete, even after a crash
        if report is not None:
            report(min(start + together, len(todo)), len(todo))
    return codes
