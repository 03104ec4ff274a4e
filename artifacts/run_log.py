"""Finished work on disk: one JSON line each, appended whole, so that what was stopped goes on.

Every line ends with the CRC-32 of itself and all lines before it, so a line that was edited, removed or moved is found.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from underpaint.artifacts.input_file import check_regular
from underpaint.artifacts.strict_json import JsonError, parse_json, split_lines

CHECKSUM: Final = "crc32"
"""The last key of every line."""
_LINE: Final = re.compile(rb'(\{.+), "' + CHECKSUM.encode() + rb'": "([0-9a-f]{8})"\}', re.DOTALL)


class RunLogInUse(OSError):
    """Another process writes to the file too."""


class RunLogError(ValueError):
    """A line of a run log is no JSON, was edited, or has no checksum; the message begins with its number."""


def checked_line(value: Mapping[str, Any], before: int = 0) -> tuple[bytes, int]:
    """One line of a run log, and its checksum, which the next line takes as `before`."""
    held = json.dumps(value, allow_nan=False)[:-1].encode()
    checksum = zlib.crc32(held, before)
    return held + f', "{CHECKSUM}": "{checksum:08x}"}}\n'.encode(), checksum


def log_bytes(values: Iterable[Mapping[str, Any]]) -> bytes:
    """The content of a run log that holds `values`."""
    lines, checksum = [], 0
    for value in values:
        line, checksum = checked_line(value, checksum)
        lines.append(line)
    return b"".join(lines)


def _read_line(line: bytes, number: int, before: int) -> tuple[dict[str, Any], int]:
    """The value of a line, and its checksum."""
    found = _LINE.fullmatch(line)
    if found is None:
        try:
            parse_json(line)
        except JsonError as error:
            raise RunLogError(f"line {number}: {error}") from error
        raise RunLogError(f"line {number}: it has no checksum: it was edited, or another version wrote it")
    checksum = zlib.crc32(found[1], before)
    if checksum != int(found[2], 16):
        raise RunLogError(f"line {number}: its checksum is of another text: the line, or one before it, was edited")
    value: dict[str, Any] = parse_json(found[1] + b"}", f"line {number}")
    return value, checksum


class RunLog:
    """JSON lines in one file, by one writer. A last line that a stopped process left unfinished is dropped."""

    def __init__(self, path: Path) -> None:
        """Write nothing yet: what the file holds is replaced by the first line appended, unless `read` took it up."""
        self.path = path
        self._sound = self._checksum = 0
        self._seen = self._size()
        self.unfinished = False

    def read(self) -> list[dict[str, Any]]:
        """Take up the whole lines that the file holds, without their checksums.

        `unfinished` tells afterwards whether a last line was dropped.

        Raises:
            RunLogError: a line is no JSON object, or its checksum does not fit it; the message says which line.
            OSError: the file cannot be read, or it is no regular file.
        """
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder where the record of the run should be; remove it")
        check_regular(self.path)
        held = self.path.read_bytes() if self._seen else b""
        sound = held[: held.rfind(b"\n") + 1]
        lines: list[dict[str, Any]] = []
        checksum = 0
        for number, line in enumerate(split_lines(sound), start=1):
            value, checksum = _read_line(line, number, checksum)
            lines.append(value)
        self._sound, self._seen, self._checksum = len(sound), len(held), checksum
        self.unfinished = len(sound) < len(held)
        return lines

    @property
    def empty(self) -> bool:
        """Whether no line was taken up or appended."""
        return not self._sound

    def append(self, value: Mapping[str, Any]) -> None:
        """Append a line; it is on the disk when this returns. Raises `RunLogInUse`, and then writes nothing."""
        if self._size() != self._seen:
            raise RunLogInUse(
                f"{self.path} is written by another process too; stop one of them, or choose another folder"
            )
        line, checksum = checked_line(value, self._checksum)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._sound)
            file.seek(self._sound)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._sound = self._seen = self._sound + len(line)
        self._checksum = checksum

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0
