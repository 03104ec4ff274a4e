"""A prompt file from disk or a pipe: read once, decoded, and split into lines and rows."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from underpaint.artifacts.files import check_regular, other_kind, read_once

_ENDS: Final = re.compile(r"\r\n|\n|\r")
"""Line ends. Unicode's others (U+2028, U+0085, form feeds) occur inside prompts."""

_PIPE: Final = "a pipe"
"""Name of a source whose path says nothing, such as `/dev/fd/63`."""


@dataclass(frozen=True, slots=True)
class PromptSource:
    """The content of a prompt file, or of a folder with one text file per prompt; a pipe can be read only once.

    Attributes:
        path: The path as the user gave it.
        name: The name as results record it.
        contents: Bytes by file name.
        folder: Whether the source is a folder.
    """

    path: Path
    name: str
    contents: Mapping[str, bytes]
    folder: bool = False

    @classmethod
    def read(cls, path: Path) -> PromptSource:
        """Read a file, a pipe (`/dev/stdin`, `<(command)`) or the .txt files of a folder, to the end.

        Raises ValueError if it does not exist or cannot be read.
        """
        try:
            if not path.is_dir():
                name = path.name if other_kind(path) is None else _PIPE
                return cls(path, name, {path.name: read_once(path)})
            texts = sorted(path.glob("*.txt"))
            for one in texts:
                check_regular(one)
            return cls(path, path.name, {one.name: one.read_bytes() for one in texts}, folder=True)
        except FileNotFoundError as error:
            raise ValueError(f"{path}: there is no such file of prompts; check the name") from error
        except OSError as error:
            raise ValueError(f"{path}: the prompts cannot be read: {error.strerror or error}; name another") from error

    def text(self, name: str | None = None) -> str:
        """The content as text; for a folder, of its file `name`. Raises ValueError if it is empty or not UTF-8."""
        content = self.contents[next(iter(self.contents)) if name is None else name]
        path = self.path if name is None else self.path / name
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: expected UTF-8, byte {error.start} is none; convert it, for example with "
                f"iconv -f latin1 -t utf-8 {path.name}"
            ) from error
        if not text.strip():
            raise ValueError(f"{path}: it is empty; expected a prompt in it")
        return text

    def sha256(self) -> str:
        """SHA-256 of the file, or of a folder's texts with their names."""
        if not self.folder:
            return hashlib.sha256(next(iter(self.contents.values()))).hexdigest()
        whole = hashlib.sha256()
        for name, content in self.contents.items():
            whole.update(f"{name}\0".encode() + hashlib.sha256(content).digest())
        return whole.hexdigest()


class NumberedLine(NamedTuple):
    """A non-empty line without surrounding spaces."""

    number: int
    text: str


def split_lines(text: str) -> list[str]:
    """Split a text at line feeds, carriage returns, or both together; Unicode's other line ends do not count."""
    return _ENDS.split(text)


def lines_of(text: str) -> list[NumberedLine]:
    """The non-empty lines of a text, numbered from 1."""
    split = enumerate(split_lines(text), start=1)
    return [NumberedLine(number, line.strip()) for number, line in split if line.strip()]


class TableRow(NamedTuple):
    """A row of a table: the number of its first line, and its fields by lower-case column name."""

    line: int
    fields: Mapping[str, str]


def rows_of(source: PromptSource, delimiter: str, columns: tuple[str, ...]) -> list[TableRow]:
    """Return the rows of a CSV or TSV file with a header, whose case does not matter.

    Args:
        source: The content of the file.
        delimiter: A tab for TSV, with one line per row; otherwise CSV as in RFC 4180.
        columns: Lower-case names of columns that are required in every row.

    Raises:
        ValueError: The header lacks a column or repeats one, a quotation mark is not closed, or the fields of a row do
            not match the header. Errors in a row name its line.
    """
    text, path = source.text(), source.path
    rows = _tsv_rows(text, path) if delimiter == "\t" else _csv_rows(text, path, delimiter)
    _, head = next(rows, (1, []))
    names = [name.strip().lower() for name in head]
    for name in columns:
        if name not in names:
            raise ValueError(f"{path}: expected a column '{name}', got {', '.join(filter(None, names)) or 'no head'}")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{path}: the head names the column '{twice}' twice; rename one")
    records = []
    for line, fields in rows:
        if len(fields) > len(names):
            raise ValueError(
                f"{path}: line {line}: expected {len(names)} fields as in the head, got {len(fields)}; put a field "
                "that holds the separator in quotation marks"
            )
        row = dict(zip(names, fields, strict=False))
        for name in columns:
            if name not in row:
                raise ValueError(f"{path}: line {line}: expected {len(names)} fields as in the head, got {len(fields)}")
        records.append(TableRow(line, row))
    return records


def _csv_rows(text: str, path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Non-empty rows, each with the number of its first line."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    first = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"{path}: line {first}: expected CSV, got {error}; close each quotation mark, and write one inside a "
                'field twice ("")'
            ) from error
        if fields is None:
            return
        if fields:
            yield first, fields
        first = reader.line_num + 1


def _tsv_rows(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Non-empty rows. A quotation mark inside a field is literal; a quoted field ends on its own line."""
    for number, line in enumerate(split_lines(text), start=1):
        if line.strip():
            yield number, [_tsv_field(one, f"{path}: line {number}") for one in line.split("\t")]


def _tsv_field(field: str, where: str) -> str:
    if not field.startswith('"'):
        return field
    if field.count('"') % 2:
        raise ValueError(
            f"{where}: a quotation mark opens a field and is not closed on this line; a row of a TSV file is one line: "
            'join the lines, or write a quotation mark that belongs to the text twice ("")'
        )
    inner = field[1:-1]
    quoted = len(field) > 1 and field.endswith('"') and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if quoted else field
