"""Finished work on disk: one JSON line each, appended whole, so that what was stopped goes on.

Every line ends with the CRC-32 of itself and all lines before it, so a line that was edited, removed or moved is found.
The first line of a file says what run its records are of, so only the same run goes on with them.
"""

import hashlib
import json
import os
import re
import secrets
import socket
import zlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from underpaint.artifacts.files import check_regular
from underpaint.artifacts.strict_json import JsonError, build_typed, is_version, parse_json, split_lines

Key = TypeVar("Key", bound=Hashable)
Record = TypeVar("Record")

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


class OtherRun(ValueError):
    """A folder that holds another run, or one of another version."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of a file of records. settings: of the run; hash: of them."""

    format: int
    hash: str
    settings: dict[str, Any]


def settings_hash(settings: Mapping[str, Any]) -> str:
    """A SHA-256 of settings, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


class RunStore(Generic[Key, Record]):
    """The finished records of one run in a folder.

    They lie in `NAME.jsonl`, which one process at a time writes, and in a file `NAME-*.jsonl` of each process that
    shares the folder with others.

    Attributes:
        path: The file that this process appends to.
        settings: What the run is, as JSON holds it; empty where nothing says so.
        records: The records by key; of one that several processes wrote, that of the first file by name.
        repeated: The others, with their keys.
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int]
    WHAT: ClassVar[str]
    """What a run is called in messages."""
    REMEDY: ClassVar[str] = "choose another folder, or delete it"

    def __init__(
        self, folder: Path, settings: Mapping[str, Any] | None, *, fresh: bool = False, shared: bool = False
    ) -> None:
        """Take up what `folder` holds, and write nothing yet.

        Args:
            folder: The folder of the run, which need not exist.
            settings: What the run is; None takes whatever run the folder holds.
            fresh: Take up nothing; the first record replaces the file.
            shared: Append to a file of this process alone.

        Raises:
            OtherRun: The folder holds another run, or one of another version.
            ValueError: A file was edited, or is none of this kind.
        """
        own = f"-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}" if shared else ""
        self.folder = folder
        self.path = folder / f"{self.NAME}{own}.jsonl"
        self.settings: dict[str, Any] = json.loads(json.dumps(settings or {}))
        self.records: dict[Key, Record] = {}
        self.repeated: list[tuple[Key, Record]] = []
        self._any = settings is None
        self._checked: set[Path] = set()
        self._run_log = RunLog(self.path)
        for path in [] if fresh else self.files(folder):
            self._take_up(path)

    @classmethod
    def files(cls, folder: Path) -> list[Path]:
        """The files of records in a folder, by name."""
        return sorted(path for pattern in ("", "-*") for path in folder.glob(f"{cls.NAME}{pattern}.jsonl"))

    def read(self, line: Mapping[str, Any]) -> tuple[Key, Record] | None:
        """The record of a line, with its key; None where the line holds none.

        Raises:
            ValueError: The line is none of this run's.
        """
        raise NotImplementedError

    def check_settings(self) -> None:
        """Raise ValueError where settings that a file gave are none of such a run; by default all are some."""

    def plain(self, record: Record) -> Mapping[str, Any]:
        """A record as JSON holds it."""
        raise NotImplementedError

    def _take_up(self, path: Path) -> None:
        log = self._run_log if path == self.path else RunLog(path)
        try:
            lines = log.read()
            if lines:
                self._checked.add(path)
                self._check_head(path, lines)
            for number, line in enumerate(lines[1:], start=2):
                try:
                    found = self.read(line)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error
                if found is not None and found[0] in self.records:
                    self.repeated.append(found)
                elif found is not None:
                    self.records[found[0]] = found[1]
        except OtherRun:
            raise
        except ValueError as error:
            raise ValueError(f"{path} is no record of a {self.WHAT}, or was edited ({error}); {self.REMEDY}") from error

    def _check_head(self, path: Path, lines: list[dict[str, Any]]) -> None:
        if "settings" not in lines[0] or "hash" not in lines[0]:
            raise ValueError("line 1: it has no settings and hash")
        written = lines[0].get("format")
        if not is_version(written, self.VERSION):
            raise OtherRun(
                f"{path} was written by another version (format {written!r}, expected {self.VERSION}); {self.REMEDY}"
            )
        head = build_typed(_Head, lines[0], "line 1")
        if self._any:
            self.settings, self._any = head.settings, False
            self.check_settings()
        if head.hash != settings_hash(self.settings):
            differs = ", ".join(_differences(head.settings, self.settings))
            if not differs:
                raise ValueError("line 1: its hash is of other settings")
            raise OtherRun(
                f"{path} belongs to another {self.WHAT} (it differs in {differs}); repeat that command to go on with "
                f"it, or {self.REMEDY}"
            )

    def __contains__(self, key: Key) -> bool:
        return key in self.records

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def begin(self) -> None:
        """Say in this process's file what the run is, for other processes to see.

        Raises:
            OtherRun: Another process was quicker with another run; nothing is left of this one.
        """
        if not self._run_log.empty:
            return
        head = {"format": self.VERSION, "hash": settings_hash(self.settings), "settings": self.settings}
        self._run_log.append(head)
        try:
            for path in set(self.files(self.folder)) - self._checked - {self.path}:
                if lines := RunLog(path).read():
                    self._check_head(path, lines[:1])
        except OtherRun:
            self.path.unlink()
            raise

    def add(self, key: Key, record: Record) -> None:
        """Append a finished record; it is on the disk when this returns.

        Raises:
            RunLogInUse: Another process writes to the file too; nothing is written.
        """
        self.append(self.plain(record))
        self.records[key] = record

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line, after the first one, which says what run it is of."""
        self.begin()
        self._run_log.append(line)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings in which two runs differ; of runs of several models, within each model."""
    theirs, ours = (settings.get("models") for settings in (before, now))
    if not (isinstance(theirs, list) and isinstance(ours, list) and all(isinstance(one, dict) for one in theirs)):
        return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if len(theirs) != len(ours):
        return [f"the number of models, {len(theirs)} and {len(ours)}"]
    return sorted({name for old, new in zip(theirs, ours, strict=True) for name in _differences(old, new)})
