"""Run logs that are edited for a test: written again with checksums that fit, so that the values decide."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from underpaint.artifacts.run_log import CHECKSUM, checked_line


def log_bytes(values: Iterable[Mapping[str, Any]]) -> bytes:
    """The content of a run log that holds `values`."""
    lines, checksum = [], 0
    for value in values:
        line, checksum = checked_line(value, checksum)
        lines.append(line)
    return b"".join(lines)


def log_values(path: Path) -> list[dict[str, Any]]:
    """The values of a log's lines, without their checksums."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [{name: value for name, value in line.items() if name != CHECKSUM} for line in lines]


def edit_log(path: Path, change: Callable[[list[dict[str, Any]]], Any], to: Path | None = None) -> None:
    """Write a log as `change` leaves its values, in its place or `to` another one."""
    values = log_values(path)
    change(values)
    (to or path).write_bytes(log_bytes(values))
