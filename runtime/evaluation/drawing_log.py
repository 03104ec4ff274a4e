"""The run log of a comparison: finished drawings on disk, one JSON line each, so that what was stopped goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from underpaint.artifacts.run_log import RunLog
from underpaint.artifacts.typed_json import build_typed
from underpaint.runtime.drawing import Drawing

FILE_NAME: Final = "drawings.jsonl"
LOG_FORMAT: Final = 2
"""Version of the lines. 1 named the fields of a drawing and the settings of methods otherwise."""


class DrawingKey(NamedTuple):
    """One drawing that a comparison asks for."""

    method: str
    prompt: str
    seed: int


def settings_hash(settings: Mapping[str, Any]) -> str:
    """A SHA-256 of settings, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


class OtherComparison(ValueError):
    """A folder that holds another comparison, or one of another version."""


class DrawingLog:
    """The drawings of one comparison, in `folder/drawings.jsonl`.

    The first line says what was compared. A last line that a stopped process left unfinished is dropped.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Take up what `folder` holds, unless `fresh`, and write nothing yet.

        Raises ValueError where the folder holds another comparison, one of an older version, or a file that is none.
        """
        self.path = folder / FILE_NAME
        self._settings = settings
        self._drawings: dict[DrawingKey, Drawing] = {}
        self._run_log = RunLog(self.path)
        if not fresh:
            self._take_up()

    def _take_up(self) -> None:
        try:
            lines = self._run_log.read()
            if lines:
                self._check_head(lines[0])
            for line in lines[1:]:
                self._hold(drawing_of(line))
        except OtherComparison:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is no record of a comparison, or was edited ({error}); choose another folder or delete it"
            ) from error

    def _check_head(self, head: Mapping[str, Any]) -> None:
        before = read_head(self.path, [head])
        if head["hash"] == settings_hash(self._settings):
            return
        now = json.loads(json.dumps(self._settings))
        differs = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        raise OtherComparison(
            f"{self.path} belongs to another comparison (it differs in {', '.join(differs)}); repeat that command to "
            "go on with it, choose another folder, or pass --fresh to discard it"
        )

    def _hold(self, drawing: Drawing) -> None:
        self._drawings[DrawingKey(drawing.method, drawing.prompt, drawing.seed)] = drawing

    def __contains__(self, key: DrawingKey) -> bool:
        return key in self._drawings

    def __len__(self) -> int:
        return len(self._drawings)

    def __iter__(self) -> Iterator[Drawing]:
        return iter(self._drawings.values())

    def __getitem__(self, key: DrawingKey) -> Drawing:
        return self._drawings[key]

    def add(self, drawing: Drawing) -> None:
        """Append a finished drawing; it is on the disk when this returns.

        Raises `RunLogInUse`, and then writes nothing, where another process writes to the file too.
        """
        if self._run_log.empty:
            head = {"format": LOG_FORMAT, "hash": settings_hash(self._settings), "settings": self._settings}
            self._run_log.append(head)
        self._run_log.append(dataclasses.asdict(drawing))
        self._hold(drawing)


def read_head(path: Path, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings in the first line of a log; ValueError where it is empty or of another version."""
    if not lines:
        raise ValueError(f"{path} is empty; repeat the comparison")
    settings: dict[str, Any] = lines[0]["settings"]
    written = lines[0].get("format", 1)
    if written != LOG_FORMAT:
        raise OtherComparison(
            f"{path} was written by another version (format {written}, expected {LOG_FORMAT}): it names drawings and "
            "settings otherwise; choose another folder, or pass --fresh to discard it"
        )
    return settings


def drawing_of(plain: object) -> Drawing:
    """The drawing in a line of the log; ValueError where a field is missing, unknown, of another type or range."""
    found = build_typed(Drawing, plain, "a drawing")
    for name in ("seconds", "target_seconds", "drafter_seconds", "resampler_seconds"):
        if not 0.0 <= getattr(found, name) < inf:
            raise ValueError(f"a drawing: {name}: expected a time of at least 0, got {getattr(found, name)}")
    counts = (found.seed, found.drafter_nfe, found.rejected or 0)
    listed = (found.tokens, found.accepted, found.depths, found.nodes, found.kept_cells)
    if found.target_nfe < 1 or min(counts) < 0 or any(min(one, default=0) < 0 for one in listed if one is not None):
        raise ValueError("a drawing: expected one target pass or more, and no number below 0")
    if found.seconds == 0.0:
        raise ValueError("a drawing: seconds: expected more than 0")
    return found
