"""Finished drawings on disk: one JSON line each, appended whole, so that a stopped comparison goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from underpaint.artifacts.run_log import Journal
from underpaint.runtime.studio import Drawing

FILE_NAME: Final = "drawings.jsonl"


class Cell(NamedTuple):
    """One drawing that a comparison asks for."""

    method: str
    prompt: str
    seed: int


def settings_hash(settings: Mapping[str, Any]) -> str:
    """A SHA-256 of settings, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


class Store:
    """The drawings of one comparison, in `folder/drawings.jsonl`.

    The first line says what was compared. A last line that a stopped process left unfinished is dropped.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> None:
        """Take up what `folder` holds, unless `fresh`, and write nothing yet.

        Raises ValueError where the folder holds another comparison or a file that is none.
        """
        self.path = folder / FILE_NAME
        self._settings = settings
        self._drawings: dict[Cell, Drawing] = {}
        self._journal = Journal(self.path)
        if not fresh:
            self._take_up()

    def _take_up(self) -> None:
        try:
            lines = self._journal.read()
            if lines:
                self._check_head(lines[0])
            for line in lines[1:]:
                self._hold(_drawing(line))
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is no record of a comparison ({error}); choose another folder or delete it"
            ) from error

    def _check_head(self, head: Mapping[str, Any]) -> None:
        if head["hash"] == settings_hash(self._settings):
            return
        before, now = head["settings"], json.loads(json.dumps(self._settings))
        differs = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        raise ValueError(
            f"{self.path} belongs to another comparison (it differs in {', '.join(differs)}); repeat that command to "
            "go on with it, choose another folder, or pass --fresh to discard it"
        )

    def _hold(self, drawing: Drawing) -> None:
        self._drawings[Cell(drawing.method, drawing.prompt, drawing.seed)] = drawing

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._drawings

    def __len__(self) -> int:
        return len(self._drawings)

    def __iter__(self) -> Iterator[Drawing]:
        return iter(self._drawings.values())

    def __getitem__(self, cell: Cell) -> Drawing:
        return self._drawings[cell]

    def add(self, drawing: Drawing) -> None:
        """Append a finished drawing; it is on the disk when this returns. Raises `Shared`, and then writes nothing."""
        if self._journal.empty:
            self._journal.append({"hash": settings_hash(self._settings), "settings": self._settings})
        self._journal.append(dataclasses.asdict(drawing))
        self._hold(drawing)


def _drawing(plain: dict[str, Any]) -> Drawing:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return Drawing(**values)
