"""The run log of a comparison: finished drawings on disk, one JSON line each, so that what was stopped goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from underpaint.artifacts.run_log import RunLog
from underpaint.artifacts.strict_json import is_version
from underpaint.artifacts.typed_json import build_typed
from underpaint.runtime.drawing import Drawing

FILE_NAME: Final = "drawings.jsonl"
LOG_FORMAT: Final = 3
"""Version of the lines."""


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
            for drawing in drawings_of(lines, self._settings):
                self._hold(drawing)
        except OtherComparison:
            raise
        except ValueError as error:
            raise ValueError(
                f"{self.path} is no record of a comparison, or was edited ({error}); choose another folder, or pass "
                "--fresh to discard it"
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
        raise ValueError("it is empty")
    if "settings" not in lines[0] or "hash" not in lines[0]:
        raise ValueError("line 1: it has no settings and hash")
    written = lines[0].get("format")
    if not is_version(written, LOG_FORMAT):
        raise OtherComparison(
            f"{path} was written by another version (format {written!r}, expected {LOG_FORMAT}); choose another "
            "folder, or pass --fresh to discard it"
        )
    return build_typed(_LogHead, lines[0], "line 1").settings


@dataclasses.dataclass(frozen=True, slots=True)
class _LogHead:
    """The first line. settings: of the comparison; hash: of them."""

    format: int
    hash: str
    settings: dict[str, Any]


def drawings_of(lines: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Iterator[Drawing]:
    """The drawings of a log's lines, its head left out; ValueError, naming the line, where one is none of the run's."""
    for number, line in enumerate(lines[1:], start=2):
        try:
            yield drawing_of(line, settings)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error


def drawing_of(plain: object, settings: Mapping[str, Any] | None = None) -> Drawing:
    """The drawing in a line of a log or a record of a shard.

    settings: those of the run, whose method, prompt and seed it must be of; None asks for none.

    Raises:
        ValueError: a field is missing, unknown, of another type or range, or two fields contradict each other.
    """
    found = build_typed(Drawing, plain, "a drawing")
    cells = len(found.tokens)
    if not cells:
        raise ValueError("a drawing: tokens: expected at least one")
    kept = found.kept_cells or ()
    if any(low >= high for low, high in pairwise(kept)) or (kept and kept[-1] >= cells):
        raise ValueError(f"a drawing: kept_cells: expected rising cells below {cells}, got {kept}")
    recipe = _recipe_of(found, settings or {})
    if found.accepted is not None:
        _check_cycles(found, found.accepted, skips="skipping" in recipe)
    elif found.depths is not None or found.nodes is not None:
        raise ValueError("a drawing: expected depths and nodes only of cycles, and accepted is null")
    return found


def _recipe_of(found: Drawing, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The method's settings; ValueError where a drawing is of no method, prompt or seed of the run's."""
    for name, told in (("methods", found.method), ("prompts", found.prompt), ("seeds", found.seed)):
        if name in settings and told not in settings[name]:
            raise ValueError(f"a drawing of {name.removesuffix('s')} {told!r}, which the run does not have")
    methods = settings.get("methods", {})
    recipe = methods.get(found.method, {}) if isinstance(methods, Mapping) else {}
    return recipe if isinstance(recipe, Mapping) else {}


def _check_cycles(found: Drawing, accepted: Sequence[int], *, skips: bool) -> None:
    """Raise ValueError where the cycles of a drawing are not those of its tokens and target passes.

    skips: some cycles are not verified, so there may be fewer passes than cycles.
    """
    for name in ("depths", "nodes"):
        listed = getattr(found, name)
        if listed is not None and len(listed) != len(accepted):
            raise ValueError(f"a drawing: {name}: expected {len(accepted)}, one a cycle, got {len(listed)}")
    if any(kept > depth for kept, depth in zip(accepted, found.depths or accepted, strict=True)):
        raise ValueError("a drawing: accepted: expected no more tokens than the draft tree is deep")
    cells = 1 + len(accepted) + sum(accepted)
    if cells != len(found.tokens):
        raise ValueError(f"a drawing: its cycles decide {cells} cells, and it has {len(found.tokens)} tokens")
    passes = len(accepted) + 1
    if found.target_nfe > passes or (found.target_nfe < passes and not skips):
        raise ValueError(f"a drawing: target_nfe: expected {passes}, as it has {passes} cycles, got {found.target_nfe}")
