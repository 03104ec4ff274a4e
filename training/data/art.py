"""The emoji art: downloaded once from its packages, checked, and rasterised into one sprite array.

Only the training recipes need it, and only the first run needs a network. Both packages contain Microsoft's Fluent
Emoji (MIT). `LICENCES.md` in this folder records versions, authors and how names were matched.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from underpaint.artifacts.manifest import write_beside
from underpaint.zoo.textured_prompts import COMPANIONS, THINGS

SPRITE_SIDE: Final = 256
"""Side of a stored sprite in pixels."""
ART_FOLDER_VARIABLE: Final = "UNDERPAINT_ART"
_ATLAS_NAME: Final = "sprites.npz"

Sprites = NDArray[np.uint8]
"""uint8 [concept, style, 256, 256, 4]: RGBA, premultiplied by alpha, in the order of `CONCEPTS` and `STYLES`."""


@dataclass(frozen=True, slots=True)
class ArtPackage:
    """One npm package of art, pinned by version and by the SHA-256 and the size of its tarball."""

    name: str
    version: str
    tarball: str
    sha256: str
    bytes: int


PACKAGES: Final[dict[str, ArtPackage]] = {
    "3d": ArtPackage(
        "@lobehub/fluent-emoji-3d",
        "1.1.0",
        "lobehub-fluent-emoji-3d-1.1.0.tgz",
        "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
        15_792_027,
    ),
    "flat": ArtPackage(
        "fluentui-emoji",
        "1.3.0",
        "fluentui-emoji-1.3.0.tgz",
        "ec892e607e854859b812c7d827801756adc19955b0ef56d4ae8afcddd19492c5",
        23_804_319,
    ),
}

STYLES: Final[tuple[str, ...]] = tuple(PACKAGES)
CONCEPTS: Final[tuple[str, ...]] = (*THINGS, *COMPANIONS)
"""All concepts drawn in scenes: the main things and the companions."""
_CODE_POINTS: Final = {
    "panda": "1f43c",
    "fox": "1f98a",
    "lion": "1f981",
    "frog": "1f438",
    "unicorn": "1f984",
    "elephant": "1f418",
    "penguin": "1f427",
    "owl": "1f989",
    "turtle": "1f422",
    "octopus": "1f419",
    "crab": "1f980",
    "whale": "1f433",
    "tropical fish": "1f420",
    "pineapple": "1f34d",
    "avocado": "1f951",
    "hamburger": "1f354",
    "pizza": "1f355",
    "birthday cake": "1f382",
    "sailboat": "26f5",
    "castle": "1f3f0",
    "pumpkin": "1f383",
    "teddy bear": "1f9f8",
    "drum": "1f941",
    "alarm clock": "23f0",
    "honeybee": "1f41d",
    "butterfly": "1f98b",
    "balloon": "1f388",
    "soccer ball": "26bd",
    "red apple": "1f34e",
    "tulip": "1f337",
    "maple leaf": "1f341",
    "gem stone": "1f48e",
    "crown": "1f451",
    "snail": "1f40c",
    "mushroom": "1f344",
    "lady beetle": "1f41e",
}
"""Unicode code point of each concept, in lower-case hex."""

_FLAT_FILES: Final = {"pumpkin": "jack-o-lantern", "whale": "spouting-whale"}
"""Flat files are named after the Unicode short name; these concepts have plainer names."""


Report: TypeAlias = Callable[[str, int, int, str], None]
"""Progress callback: the current work, how much is done, the total, and the unit, such as bytes."""
_LOOK_SECONDS: Final = 0.25


def unheard(what: str, done: int, total: int, unit: str) -> None:
    """Ignore progress."""


def art_folder(folder: Path | None = None) -> Path:
    """Return the cache folder: the argument, else the UNDERPAINT_ART variable, else `.art` next to `models`."""
    if folder is not None:
        return folder
    named = os.environ.get(ART_FOLDER_VARIABLE)
    return Path(named) if named else Path(__file__).resolve().parents[2] / ".art"


def load_sprites(folder: Path | None = None, report: Report = unheard) -> Sprites:
    """Return the sprite array; downloads and rasterises the art first if the cache lacks it.

    Raises OSError if npm cannot download a package, ValueError if a tarball's checksum is wrong.
    """
    folder = art_folder(folder)
    atlas = folder / _ATLAS_NAME
    key = _atlas_key()
    sprites = _cached(atlas, key)
    if sprites is None:
        sprites = _rasterise_all(folder, report)
        packed = io.BytesIO()
        np.savez_compressed(packed, sprites=sprites, key=np.array(key))
        write_beside(atlas, packed.getvalue())
    return sprites


def _cached(atlas: Path, key: str) -> Sprites | None:
    """The cached sprites; None if there are none for this key or the file is damaged, so that it is made again."""
    if not atlas.is_file():
        return None
    try:
        with atlas.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            sprites: Sprites = stored["sprites"]
            whole = (len(CONCEPTS), len(STYLES), SPRITE_SIDE, SPRITE_SIDE, 4)
            return sprites if str(stored["key"]) == key and sprites.shape == whole else None
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError):
        return None


def _atlas_key() -> str:
    """Return a hash of everything that the atlas depends on, so that a changed concept list or package rebuilds it."""
    parts = [package.sha256 for package in PACKAGES.values()]
    parts += [f"{concept}={_CODE_POINTS[concept]}" for concept in CONCEPTS]
    parts += [f"{name}={file}" for name, file in sorted(_FLAT_FILES.items())]
    return hashlib.sha256("|".join([*STYLES, *parts]).encode()).hexdigest()


def _rasterise_all(folder: Path, report: Report) -> Sprites:
    sprites = np.zeros((len(CONCEPTS), len(STYLES), SPRITE_SIDE, SPRITE_SIDE, 4), dtype=np.uint8)
    for style_index, style in enumerate(STYLES):
        tarball = fetch(PACKAGES[style], folder, report)
        for concept_index, image in enumerate(_read_images(tarball, style)):
            report(f"drawing the {style} art", concept_index, len(CONCEPTS), "pictures")
            sprites[concept_index, style_index] = _square(image)
    return sprites


def fetch(package: ArtPackage, folder: Path, report: Report = unheard) -> Path:
    """Return the package's tarball in `folder`, downloaded with npm if it is missing, after a check.

    Raises OSError if npm cannot download it, ValueError if it is not the pinned one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tarball = folder / package.tarball
    if not tarball.exists():
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as aside:
            _download(package, tarball, Path(aside), report)
            _check(Path(aside) / package.tarball, package, "npm fetched another archive; check npm's registry")
            os.replace(Path(aside) / package.tarball, tarball)
    _check(tarball, package, "delete it and fetch again")
    return tarball


def _check(tarball: Path, package: ArtPackage, remedy: str) -> None:
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise ValueError(f"{tarball}: expected SHA-256 {package.sha256}, found {digest}; {remedy}")


def _download(package: ArtPackage, destination: Path, aside: Path, report: Report) -> None:
    """Let npm download the tarball into `aside`, with its own registry, proxy and certificates.

    npm does not report its progress, which is therefore measured by the size of its cache in `aside`.
    """
    npm, name = shutil.which("npm"), f"{package.name}@{package.version}"
    if npm is None:
        raise OSError(f"npm is needed to fetch {name}: install it, or put its tarball at {destination}")
    cache, log_file = aside / "cache", aside / "said"
    with log_file.open("wb") as stream:
        running = subprocess.Popen([npm, "pack", name, "--cache", cache], cwd=aside, stdout=stream, stderr=stream)
        there = 0
        try:
            while True:
                there = max(there, min(_size(cache), package.bytes))  # files that move meanwhile are missed
                report(f"fetching {name}", there, package.bytes, "bytes")
                with suppress(subprocess.TimeoutExpired):
                    running.wait(_LOOK_SECONDS)
                    break
        finally:
            running.kill()
            running.wait()
    if running.returncode != 0 or not (aside / package.tarball).exists():
        log_text = log_file.read_text(errors="replace")[-800:]
        raise OSError(f"npm pack {name} failed; put its tarball at {destination}, or run again:\n{log_text}")
    report(f"fetching {name}", package.bytes, package.bytes, "bytes")


def _size(folder: Path) -> int:
    """Total size in bytes of the files below a folder that another program is writing."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # the file was moved in the meantime
            total += file.stat().st_size if file.is_file() else 0
    return total


def _member_names(style: str, concept: str) -> tuple[str, ...]:
    """Return the possible names of the concept's picture in the tarball, most likely first."""
    if style == "3d":
        stem = f"package/assets/{_CODE_POINTS[concept]}"
        return f"{stem}.webp", f"{stem}-fe0f.webp"
    return (f"package/icons/flat/{_FLAT_FILES.get(concept, concept.replace(' ', '-'))}.svg",)


def _read_images(tarball: Path, style: str) -> Iterator[Image.Image]:
    member_names = {name for concept in CONCEPTS for name in _member_names(style, concept)}
    files: dict[str, bytes] = {}
    with tarfile.open(tarball) as archive:
        for member in archive:
            if member.name in member_names:
                content = archive.extractfile(member)
                if content is not None:
                    files[member.name] = content.read()
    for concept in CONCEPTS:
        names = [name for name in _member_names(style, concept) if name in files]
        if not names:
            raise ValueError(f"{tarball}: no {style} picture of {concept!r} ({_CODE_POINTS[concept]})")
        yield _decode(files[names[0]], style)


def _decode(content: bytes, style: str) -> Image.Image:
    if style == "flat":
        import resvg_py  # needed only for SVG; a machine that trains on cached sprites may lack it

        content = resvg_py.svg_to_bytes(
            svg_string=content.decode("utf-8"), width=2 * SPRITE_SIDE, height=2 * SPRITE_SIDE
        )
    return Image.open(io.BytesIO(content)).convert("RGBA")


def _square(image: Image.Image) -> NDArray[np.uint8]:
    """Trim to the visible part, scale the longer side to the sprite's, centre; uint8 [256, 256, 4] premultiplied.

    The packages frame their pictures differently; after trimming, sizes are comparable.
    """
    alpha = np.asarray(image.getchannel("A"))
    rows, columns = np.nonzero(alpha >= 16)
    box = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
    scale = SPRITE_SIDE / max(box[2] - box[0], box[3] - box[1])
    width, height = (max(1, round(scale * (box[axis + 2] - box[axis]))) for axis in (0, 1))
    # Pillow's "RGBa" is premultiplied, so the filter mixes no colour in from invisible pixels.
    resized = image.crop(box).convert("RGBa").resize((width, height), Image.Resampling.LANCZOS)
    pixels = np.asarray(resized).copy()
    pixels[..., :3] = np.minimum(pixels[..., :3], pixels[..., 3:])
    square = np.zeros((SPRITE_SIDE, SPRITE_SIDE, 4), dtype=np.uint8)
    top, left = (SPRITE_SIDE - height) // 2, (SPRITE_SIDE - width) // 2
    square[top : top + height, left : left + width] = pixels
    return square
