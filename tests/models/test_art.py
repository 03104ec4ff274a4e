"""Art is checked, trimmed and cached; the packages here are made up, so no network is needed."""

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from underpaint.models.data import art
from underpaint.zoo.prompts import CONCEPTS


def _webp() -> bytes:
    """A half-transparent red block, 20 wide and 10 high, off the middle of 64 px."""
    pixels = np.zeros((64, 64, 4), dtype=np.uint8)
    pixels[5:15, 30:50] = (200, 0, 0, 128)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "WEBP", lossless=True)
    return content.getvalue()


SVG = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<rect x="4" y="2" width="8" height="16" fill="#00f"/></svg>"""


def _write_package(package: art.ArtPackage, files: dict[str, bytes], folder: Path) -> art.ArtPackage:
    path = folder / package.tarball
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return replace(package, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def _files(style: str, content: bytes) -> dict[str, bytes]:
    # Half of the 3d files carry the variation selector, as in the package.
    names = (art._member_names(style, concept) for concept in CONCEPTS)
    return {choice[number % len(choice)]: content for number, choice in enumerate(names)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {"3d": _files("3d", _webp()), "flat": _files("flat", SVG)}
    made = {style: _write_package(art.PACKAGES[style], files[style], tmp_path) for style in files}
    monkeypatch.setattr(art, "PACKAGES", made)
    return tmp_path


def test_sprites_are_trimmed_centred_and_premultiplied(folder: Path) -> None:
    sprites = art.load_sprites(folder)
    assert sprites.shape == (len(CONCEPTS), 2, 256, 256, 4)
    wide, high = sprites[0, 0], sprites[-1, 1]
    # 20 x 10 fills the width and the middle half of the height; 8 x 16 the other way round.
    assert (wide[70:186, 6:250] == (100, 0, 0, 128)).all()
    assert not wide[:60].any()
    assert not wide[196:].any()
    assert (high[6:250, 70:186] == (0, 0, 255, 255)).all()
    assert not high[:, :60].any()
    assert (sprites[..., :3] <= sprites[..., 3:]).all()


def test_the_cache_is_used_and_belongs_to_its_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = art.load_sprites(folder)
    for package in art.PACKAGES.values():
        (folder / package.tarball).unlink()
    monkeypatch.setenv(art.ART_FOLDER_VARIABLE, str(folder))
    assert (art.load_sprites() == first).all()
    assert [path.name for path in folder.iterdir()] == ["sprites.npz"]
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(art, "_FLAT_FILES", {})
    with pytest.raises(OSError, match=r"npm is needed to fetch @lobehub/fluent-emoji-3d@1\.1\.0"):
        art.load_sprites()


def test_another_tarball_is_refused(folder: Path) -> None:
    (folder / art.PACKAGES["flat"].tarball).write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"expected SHA-256 .*delete it and fetch again"):
        art.load_sprites(folder)


def test_a_missing_picture_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _files("flat", SVG)
    files.pop("package/icons/flat/ear-of-corn.svg")
    package = _write_package(art.PACKAGES["flat"], files, folder)
    monkeypatch.setitem(art.PACKAGES, "flat", package)
    with pytest.raises(ValueError, match="no flat picture of 'corn'"):
        art.load_sprites(folder)
