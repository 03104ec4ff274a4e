"""Art is checked, trimmed and cached; the packages here are made up, so no network is needed."""

import hashlib
import io
import os
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from underpaint.training.data import art
from underpaint.training.data.art import CONCEPTS


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
    packages = {style: _write_package(art.PACKAGES[style], files[style], tmp_path) for style in files}
    monkeypatch.setattr(art, "PACKAGES", packages)
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
    files.pop("package/icons/flat/jack-o-lantern.svg")
    package = _write_package(art.PACKAGES["flat"], files, folder)
    monkeypatch.setitem(art.PACKAGES, "flat", package)
    with pytest.raises(ValueError, match="no flat picture of 'pumpkin'"):
        art.load_sprites(folder)


NPM = """#!{python}
import sys, time
from pathlib import Path
assert sys.argv[1:4] == ["pack", "{wanted}", "--cache"], sys.argv
cache = Path(sys.argv[4]) / "_cacache" / "tmp"
cache.mkdir(parents=True)
archive = Path("{archive}").read_bytes()
for turn in range(1, 5):
    (cache / "part").write_bytes(archive[: len(archive) * turn // 4])
    time.sleep({pause})
if {sent} < len(archive):
    print("npm error code EINTEGRITY", file=sys.stderr)
    sys.exit(1)
Path("{tarball}").write_bytes(archive)
"""


def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: art.ArtPackage, archive: Path, **more: float) -> None:
    """A program of that name first on the path, which hands out `archive` as npm does, in four parts."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    options = {"pause": 0.1, "sent": 10**9, **more}
    fields = {"wanted": f"{package.name}@{package.version}", "archive": archive, "tarball": package.tarball}
    (folder / "npm").write_text(NPM.format(python=sys.executable, **fields, **options))
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "archive"
    path.write_bytes(np.random.default_rng(0).bytes(400_000))
    return path


@pytest.fixture
def package(archive: Path) -> art.ArtPackage:
    content = archive.read_bytes()
    return replace(art.PACKAGES["3d"], sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


def test_a_download_tells_how_many_bytes_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: art.ArtPackage, archive: Path
) -> None:
    npm(tmp_path, monkeypatch, package, archive, pause=0.4)
    heard: list[tuple[str, int, int, str]] = []
    fetched = art.fetch(package, tmp_path / "art", lambda *event: heard.append(event))
    assert fetched.read_bytes() == archive.read_bytes()
    assert {(what, total, unit) for what, _, total, unit in heard} == {
        ("fetching @lobehub/fluent-emoji-3d@1.1.0", 400_000, "bytes")
    }
    bytes_there = [done for _, done, _, _ in heard]
    assert bytes_there == sorted(bytes_there)
    assert bytes_there[-1] == 400_000
    assert set(bytes_there) >= {100_000, 200_000, 300_000}
    assert [path.name for path in (tmp_path / "art").iterdir()] == [package.tarball]
    heard.clear()
    art.fetch(package, tmp_path / "art", lambda *event: heard.append(event))
    assert heard == []


def test_a_download_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: art.ArtPackage, archive: Path
) -> None:
    npm(tmp_path, monkeypatch, package, archive, pause=0, sent=1000)
    with pytest.raises(OSError, match=r"npm pack @lobehub(.|\n)*put its tarball at (.|\n)*EINTEGRITY"):
        art.fetch(package, tmp_path / "art")
    archive.write_bytes(archive.read_bytes()[:1000])
    npm(tmp_path, monkeypatch, package, archive, pause=0)
    with pytest.raises(ValueError, match=r"expected SHA-256 .* npm fetched another archive"):
        art.fetch(package, tmp_path / "art")
    assert list((tmp_path / "art").iterdir()) == []


def test_ctrl_c_ends_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: art.ArtPackage, archive: Path
) -> None:
    npm(tmp_path, monkeypatch, package, archive, pause=30)

    def stop(what: str, done: int, total: int, unit: str) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        art.fetch(package, tmp_path / "art", stop)
    assert list((tmp_path / "art").iterdir()) == []


def test_drawing_the_art_is_told_too(folder: Path) -> None:
    heard: list[tuple[str, int, int, str]] = []
    art.load_sprites(folder, lambda *event: heard.append(event))
    assert [what for what, done, *_ in heard if not done] == ["drawing the 3d art", "drawing the flat art"]
    assert {(total, unit) for _, _, total, unit in heard} == {(len(CONCEPTS), "pictures")}
