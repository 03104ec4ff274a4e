"""Finished work on disk, as one complete JSON line each, so that an interrupted run can resume.

Every line ends with the CRC-32 of itself and all lines before it, which reveals edited, removed and moved lines. The
first line of a file identifies the run of its records, so that only the same run resumes from them.
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
"""Last key of every line."""
_LINE: Final = re.compile(rb'(\{.+), "' + CHECKSUM.encode() + rb'": "([0-9a-f]{8})"\}', re.DOTALL)


class RunLogInUse(OSError):
    """Another process also writes to the file."""


class RunLogError(ValueError):
    """A line of a run log is not JSON, was edited, or has no checksum; the message begins with its number."""


def checked_line(value: Mapping[str, Any], before: int = 0) -> tuple[bytes, int]:
    """One line of a run log, and its checksum, which is `before` for the next line."""
    content = json.dumps(value, allow_nan=False)[:-1].encode()
    checksum = zlib.crc32(content, before)
    return content + f', "{CHECKSUM}": "{checksum:08x}"}}\n'.encode(), checksum


def _read_line(line: bytes, number: int, before: int) -> tuple[dict[str, Any], int]:
    """The value of a line and its checksum."""
    match = _LINE.fullmatch(line)
    if match is None:
        try:
            parse_json(line)
        except JsonError as error:
            raise RunLogError(f"line {number}: {error}") from error
        raise RunLogError(f"line {number}: it has no checksum: it was edited, or another version wrote it")
    checksum = zlib.crc32(match[1], before)
    if checksum != int(match[2], 16):
        raise RunLogError(f"line {number}: its checksum is of another text: the line, or one before it, was edited")
    value: dict[str, Any] = parse_json(match[1] + b"}", f"line {number}")
    return value, checksum


class RunLog:
    """JSON lines in one file with one writer. An incomplete last line of an interrupted process is dropped."""

    def __init__(self, path: Path) -> None:
        """Write nothing yet. Unless `read` is called first, the first appended line replaces the file's content."""
        self.path = path
        self._sound = self._checksum = 0
        self._seen = self._size()
        self.unfinished = False

    def read(self) -> list[dict[str, Any]]:
        """Read the complete lines of the file, without their checksums, and continue after them.

        `unfinished` is true afterwards if a last line was dropped.

        Raises:
            RunLogError: A line is no JSON object, or its checksum does not match; the message gives its number.
            OSError: The file cannot be read, or is no regular file.
        """
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder where the record of the run should be; remove it")
        check_regular(self.path)
        content = self.path.read_bytes() if self._seen else b""
        sound = content[: content.rfind(b"\n") + 1]
        lines: list[dict[str, Any]] = []
        checksum = 0
        for number, line in enumerate(split_lines(sound), start=1):
            value, checksum = _read_line(line, number, checksum)
            lines.append(value)
        self._sound, self._seen, self._checksum = len(sound), len(content), checksum
        self.unfinished = len(sound) < len(content)
        return lines

    @property
    def empty(self) -> bool:
        """Whether no line was read or appended."""
        return not self._sound

    def append(self, value: Mapping[str, Any]) -> None:
        """Append a line, which is on disk when this returns. Raises `RunLogInUse` without writing anything."""
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
    """A folder that contains another run, or one of another version."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of a file of records: the settings of the run, and their hash."""

    format: int
    hash: str
    settings: dict[str, Any]


def settings_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 of settings, independent of the order of their keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


class RunStore(Generic[Key, Record]):
    """The finished records of one run in a folder.

    They are in `NAME.jsonl`, which one process at a time writes, and in one file `NAME-*.jsonl` per process that shares
    the folder with others.

    Attributes:
        path: The file that this process appends to.
        settings: The settings of the run as JSON; empty if unknown.
        records: The records by key; if several processes wrote one, that of the first file by name.
        repeated: Their other records, with the keys.
    """

    NAME: ClassVar[str]
    VERSION: ClassVar[int]
    WHAT: ClassVar[str]
    """Name of a run in messages."""
    REMEDY: ClassVar[str] = "choose another folder, or delete it"

    def __init__(
        self, folder: Path, settings: Mapping[str, Any] | None, *, fresh: bool = False, shared: bool = False
    ) -> None:
        """Read the records in `folder`, and write nothing yet.

        Args:
            folder: The folder of the run, which need not exist.
            settings: The settings of the run; None accepts any run in the folder.
            fresh: Ignore existing records; the first new record replaces the file.
            shared: Append to a file of this process only.

        Raises:
            OtherRun: The folder contains another run, or one of another version.
            ValueError: A file was edited, or is not of this kind.
        """
        suffix = f"-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}" if shared else ""
        self.folder = folder
        self.path = folder / f"{self.NAME}{suffix}.jsonl"
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
        """The files of records in a folder, sorted by name."""
        return sorted(path for pattern in ("", "-*") for path in folder.glob(f"{cls.NAME}{pattern}.jsonl"))

    def read(self, line: Mapping[str, Any]) -> tuple[Key, Record] | None:
        """The record of a line with its key; None if the line has none.

        Raises:
            ValueError: The line does not belong to this run.
        """
        raise NotImplementedError

    def check_settings(self) -> None:
        """Raise ValueError if settings from a file are not those of such a run; by default all are accepted."""

    def plain(self, record: Record) -> Mapping[str, Any]:
        """A record as JSON."""
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
                    entry = self.read(line)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error
                if entry is not None and entry[0] in self.records:
                    self.repeated.append(entry)
                elif entry is not None:
                    self.records[entry[0]] = entry[1]
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
        """Write the run's settings to this process's file, so that other processes see them.

        Raises:
            OtherRun: Another process was faster with another run; this run leaves nothing behind.
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
        """Append a finished record, which is on disk when this returns.

        Raises:
            RunLogInUse: Another process also writes to the file; nothing is written.
        """
        self.append(self.plain(record))
        self.records[key] = record

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line after the first one, which identifies the run."""
        self.begin()
        self._run_log.append(line)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names of the settings in which two runs differ; for runs of several models, within each model."""
    theirs, ours = (settings.get("models") for settings in (before, now))
    if not (isinstance(theirs, list) and isinstance(ours, list) and all(isinstance(one, dict) for one in theirs)):
        return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if len(theirs) != len(ours):
        return [f"the number of models, {len(theirs)} and {len(ours)}"]
    return sorted({name for old, new in zip(theirs, ours, strict=True) for name in _differences(old, new)})
