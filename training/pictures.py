"""Pictures and captions of scenes for the recipes, by scene number, split and size."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from underpaint.training.data.art import Report, load_sprites, unheard
from underpaint.training.data.textured_render import DRAWING, TexturedSheet, render_textured
from underpaint.training.data.textured_scenes import Split, textured_scene
from underpaint.zoo.textured_prompts import textured_word_ids

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp")
"""Suffixes of picture files."""
_VALIDATION_EVERY: Final = 50
SCENE_SEED: Final = 1
"""Seed of the training scenes; another seed gives other scenes of the same grammar."""


class Pictures(Protocol):
    """Pictures of numbered scenes: uint8 [N, size, size, 3]."""

    def __call__(self, indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        """Render scenes `indices` of `split` at `size` px."""


class TexturedPictures:
    """Renders scenes on demand; sprites are loaded once, and downloaded at first use."""

    source: Final[Mapping[str, object]] = {"seed": SCENE_SEED, "scenes": "textured", "drawing": DRAWING}
    """Identifies these pictures in a cache of their codes."""

    def __init__(self, art: Path | None = None, report: Report = unheard) -> None:
        self.sheet = TexturedSheet(load_sprites(art, report))

    def __call__(self, indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        """Render scenes `indices` of `split` at `size` px."""
        scenes = (textured_scene(SCENE_SEED, index, split) for index in indices)
        return np.stack([render_textured(scene, self.sheet, size) for scene in scenes])


class FolderPictures:
    """The user's own pictures, cropped to a centred square and resized; one in fifty is kept for validation.

    A file's number is its index in its split, sorted by name. `most` and `most_seen` limit the pictures of "train" and
    of the other splits; of more files, as many are used, spread evenly over their names, so that every folder has its
    share. Raises ValueError if a folder has too few pictures.
    """

    def __init__(self, folder: Path, most: int | None = None, most_seen: int | None = None) -> None:
        if not folder.is_dir():
            raise NotADirectoryError(f"--pictures: no folder {folder}; name one of {', '.join(SUFFIXES)} files")
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if len(files) < 2:
            raise ValueError(f"--pictures {folder}: expected two {', '.join(SUFFIXES)} files or more, got {len(files)}")
        self._files = {
            "seen": _spread(files[::_VALIDATION_EVERY], most_seen),
            "train": _spread([file for place, file in enumerate(files) if place % _VALIDATION_EVERY], most),
        }
        self.found = len(files)
        """Number of pictures in the folder."""
        used = sorted(self._files["seen"] + self._files["train"])
        listing = "".join(f"{file.relative_to(folder)}\n{file.stat().st_size}\n" for file in used)
        self.source = {"pictures": sha256(listing.encode()).hexdigest()}
        """Identifies these pictures in a cache of their codes."""

    def count(self, split: Split) -> int:
        """Return the number of pictures: of "train", or of all other splits, which are the same."""
        return len(self._of(split))

    def _of(self, split: Split) -> list[Path]:
        return self._files["train" if split == "train" else "seen"]

    def __call__(self, indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        """Read pictures `indices` of `split` at `size` px; raises OSError with the name of an unreadable file."""
        return np.stack([_square(self._of(split)[index], size) for index in indices])


def _spread(files: list[Path], most: int | None) -> list[Path]:
    """Return at most `most` files, at equal distances in the list."""
    count = len(files) if most is None else min(most, len(files))
    return [files[place * len(files) // count] for place in range(count)]


def _square(file: Path, size: int) -> NDArray[np.uint8]:
    try:
        with Image.open(file) as opened:
            return np.asarray(ImageOps.fit(opened.convert("RGB"), (size, size), Image.Resampling.LANCZOS))
    except (OSError, Image.DecompressionBombError) as error:
        raise OSError(f"{file}: expected a picture ({error}); take it out of --pictures") from error


def textured_captions(indices: Sequence[int], split: Split, size: int) -> NDArray[np.int64]:
    """Word ids int64 [N, 12] of scenes, for pictures at `size` px."""
    return np.stack([textured_word_ids(textured_scene(SCENE_SEED, index, split).prompt, size) for index in indices])


def to_pixels(pictures: NDArray[np.uint8], device: torch.device | str = "cpu") -> Tensor:
    """Convert uint8 [N, H, W, 3] to float [N, 3, H, W] in [-1, 1], channels last in memory."""
    pixels = torch.from_numpy(pictures).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
    return pixels.contiguous(memory_format=torch.channels_last)
