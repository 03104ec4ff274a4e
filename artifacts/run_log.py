"""Finished work on disk: one JSON line each, appended whole, so that what was stopped goes on."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RunLogInUse(OSError):
    """Another process writes to the file too."""


class RunLog:
    """JSON lines in one file, by one writer. A last line that a stopped process left unfinished is dropped."""

    def __init__(self, path: Path) -> None:
        """Write nothing yet: what the file holds is replaced by the first line appended, unless `read` took it up."""
        self.path = path
        self._sound = 0
        self._seen = self._size()

    def read(self) -> list[Any]:
        """Take up the whole lines that the file holds. Raises ValueError where one of them is no JSON."""
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder where the record of the run should be; remove it")
        held = self.path.read_bytes() if self._seen else b""
        sound = held[: held.rfind(b"\n") + 1]
        lines = [json.loads(line) for line in sound.splitlines()]
        self._sound, self._seen = len(sound), len(held)
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
        line = json.dumps(value).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._sound)
            file.seek(self._sound)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._sound = self._seen = self._sound + len(line)

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0
