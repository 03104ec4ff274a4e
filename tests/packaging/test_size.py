"""What is tracked stays small, as it is counted by its bytes and as a disk of 4 KiB blocks holds it."""

import shutil
import subprocess

import pytest

from tests.packaging.documents import ROOT

MIB = 1 << 20
BLOCK = 4096
MOST_BYTES, MOST_ON_DISK = 58 * MIB, 60 * MIB


def test_the_tracked_files_are_small() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sizes = {name: (ROOT / name).stat().st_size for name in listed.split("\0") if name and (ROOT / name).exists()}
    assert len(sizes) > 500
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:20]
    assert sum(sizes.values()) <= MOST_BYTES, largest
    assert sum(-(-size // BLOCK) * BLOCK for size in sizes.values()) <= MOST_ON_DISK, largest
