"""The lock of a folder: one holder at a time, on network file systems and without locks too."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from underpaint.artifacts.lock import FILE, FolderInUse, check_free, folder_lock


def test_a_folder_has_one_holder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    check_free(folder)
    with folder_lock(folder):
        with pytest.raises(FolderInUse, match="another process works in this folder; wait until it ends"):
            check_free(folder)
        with pytest.raises(FolderInUse), folder_lock(folder):
            pytest.fail("two hold it")
    assert list(folder.iterdir()) == []


def test_what_is_locked_is_open_for_writing_as_network_file_systems_expect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def on_nfs(descriptor: int, operation: int) -> None:
        modes.append(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE)

    (tmp_path / FILE).write_bytes(b"")
    monkeypatch.setattr(fcntl, "flock", on_nfs)
    check_free(tmp_path)
    with folder_lock(tmp_path):
        pass
    assert len(modes) == 2
    assert os.O_RDONLY not in modes


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    if number == errno.EIO:  # of a disk, and no want of locks
        with pytest.raises(OSError, match=os.strerror(number)), folder_lock(tmp_path):
            pytest.fail("an error of the disk passed")
        return
    with folder_lock(tmp_path):
        check_free(tmp_path)
    assert list(tmp_path.iterdir()) == []
