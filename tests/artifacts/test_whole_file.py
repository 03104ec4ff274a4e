"""A file is replaced whole, whoever else writes it and whatever a killed process left beside it."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from underpaint.artifacts.files import part_of, replacing, written_beside
from underpaint.artifacts.manifest import write_beside


def test_an_error_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x"
    write_beside(path, b"before")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise FileExistsError("raised inside")

    with pytest.raises(FileExistsError, match="raised inside"):
        fail()
    assert path.read_bytes() == b"before"
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_and_not_emptied(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"published")
    os.link(path, part_of(path))  # as where a part was given its name by a link
    with written_beside(path) as file:
        file.write(b"other")
        assert path.read_bytes() == b"published"
    write_beside(path, b"after")
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def _write_often(path: Path, letter: int) -> None:
    for turn in range(60):
        write_beside(path, bytes([letter]) * (1000 + 997 * letter + turn))


def test_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with ProcessPoolExecutor(3, get_context("spawn")) as workers:
        for done in [workers.submit(_write_often, path, letter) for letter in (65, 66, 67)]:
            done.result()
    content = path.read_bytes()
    assert len(set(content)) == 1
    assert len(content) == 1000 + 997 * content[0] + 59
    assert list(tmp_path.iterdir()) == [path]
