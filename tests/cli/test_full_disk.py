"""A full disk: every command that writes finds it before the work; one that fills up in the work is told as well."""

from pathlib import Path

import pytest

from tests.cli.program import Ran, listing, run_program
from tests.published.limits import files_of_at_most

NO_ROOM = 1024
"""Bytes of a file at most: fewer than a probe of the disk writes."""
SOME_ROOM = 1 << 16
"""As many as a probe writes."""
PROMPT = '"a fox" --resolution 64'


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk")
    (folder / "verifier.py").write_text("def verify(draft, uniforms):\n    return [], 0\n")
    with pytest.MonkeyPatch.context() as patch:
        for line in (
            "compare --methods ar --prompts-count 1 --resolution 64 --out compared",
            "results upgrade compared/compare.json --out whole.json",
        ):
            ran = run_program(line, folder, patch)
            assert ran.code == 0, ran.err
    return folder


def limited(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> Ran:
    with files_of_at_most(count):
        return run_program(line, folder, monkeypatch)


@pytest.mark.parametrize(
    "line",
    [
        f"generate {PROMPT} --out fox.png",
        f"generate {PROMPT} --method zipar --out new/fox.webp",
        "compare --methods ar --prompts-count 1 --resolution 64 --out x",
        "compare --methods ar --prompts-count 1 --resolution 64 --out x --json figures.json",
        "sweep --vary zipar.window=2 --prompts-count 1 --resolution 64 --out x",
        "trace --prompts-count 1 --resolution 64 --out x.npz",
        "simulate sweep --models flat --policies chain --rules chain --most-images 2 --jobs 1 --out x",
        "certify verifier.py:verify --cases 1",
        "certify verifier.py:verify --cases 1 --json x.json",
        "results upgrade compared/compare.json",
        "results merge whole.json --out x.json",
        "train judge --steps 1 --out x",
        "train world --hours 1 --out x",
        "train draw --out x --target verifier.py",
        "train store verifier.py name --recipe x --out x",
        "export verifier.py --kind vq --out x",
        "caption . text --out x.npy",
    ],
)
def test_a_full_disk_is_found_before_the_work(files: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    before = listing(files)
    ran = limited(line, files, monkeypatch, NO_ROOM)
    assert not ran.crash, ran.crash
    assert ran.code == 2, (ran.out, ran.err)
    assert listing(files) == before
    assert ran.err.startswith("error: ")
    assert "make room there, or choose another place" in ran.err


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("compare --methods ar,eagle2 --prompts-count 8 --resolution 64 --out x", ["x", "x/drawings.jsonl"]),
        ("trace --prompts-count 4 --resolution 64 --depths 4 --out x.npz", []),
    ],
)
def test_a_disk_that_fills_up_in_the_work_is_told(
    files: Path, monkeypatch: pytest.MonkeyPatch, line: str, kept: list[str]
) -> None:
    before = listing(files)
    ran = limited(line, files, monkeypatch, SOME_ROOM)
    assert not ran.crash, ran.crash
    assert ran.code == 2, (ran.out, ran.err)
    assert "File too large; make room there" in ran.err
    left = sorted(listing(files).keys() - before.keys())
    assert [name for name in left if not name.endswith((".png", ".json"))] == kept
    assert not [name for name in left if name.endswith(".part")]
    assert run_program(line, files, monkeypatch).code == 0
