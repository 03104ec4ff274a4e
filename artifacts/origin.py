"""Recognizes files that this program wrote, by a mark in pictures and pages and by the form of its JSON."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, Final

from underpaint.artifacts.results import KINDS, VERSION_KEY

GENERATOR: Final = "Underpaint"
"""Name of the software in the metadata of pictures and pages."""
GENERATOR_META: Final = f'<meta name="generator" content="{GENERATOR}">'
"""Element in the head of every page."""
SCRIPT_MARK: Final = "(found by underpaint certify)"
"""In the first line of every script."""
LOG: Final = "run log"
RESULTS: Final = (*KINDS, "merged")
"""Kinds of results that other commands can read."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_HEAD: Final = 1 << 16
"""Number of bytes that are searched for a mark."""
_MOST_JSON: Final = 1 << 28
"""Largest JSON file that can be recognized, in bytes."""
_FORMS: Final[tuple[frozenset[str], ...]] = tuple(
    frozenset(names.split())
    for names in (
        "methods policies rules",  # methods
        "rule total_variation keeps_promise",  # exact
        "tokens target_nfe grid model",  # generate --save-tokens
        "table method published verdict",  # simulate tables
        "model policy rule speedup",  # simulate sweep
        "method tokens_error speedup_error",  # simulate predict
        "method temperature sides",  # results rank
        "preset_version machine methods",  # tune
        "verify_ms draft_ms",  # costs
        "metadata metrics spec_decode_acceptance",  # trace --to
        "speeds_up candidates changes",  # advise
        "grid random_drafter rounding rows",  # certify --live
    )
)
"""Keys that identify JSON without a version: of an object, or of the first row of a list."""


def kind_of(path: Path) -> str | None:
    """The kind of the file at `path` if this program wrote it; None if it did not, or if nothing shows it.

    Returns:
        A kind of results, `json` or `jsonl` for others, `run log`, `trace`, or `html`, `pdf`, `svg`, `png`, `webp` or
        `py`.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - _HEAD))
            tail = file.read()
    except OSError:
        return None
    name = GENERATOR.encode()
    if head.startswith(_PNG):
        return "png" if b"tEXtSoftware\0" + name in head else None
    if head.startswith(b"RIFF"):
        return "webp" if b"UPNT" in tail[-64:] and tail.rstrip().endswith(name) else None
    if head.startswith(b"%PDF"):
        return "pdf" if b"/Creator (" + name + b")" in head + tail else None
    if GENERATOR_META.encode() in head:
        return "html"
    if b"<svg" in head and b"<dc:title>" + name + b"</dc:title>" in head:
        return "svg"
    if head.startswith(b"PK"):
        return _kind_of_archive(path)
    if SCRIPT_MARK.encode() in head.partition(b"\n")[0]:
        return "py"
    return _kind_of_json(path, head, size)


def _kind_of_archive(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            return "trace" if {"head.npy", "tokens.npy"} <= set(archive.namelist()) else None
    except (OSError, zipfile.BadZipFile):
        return None


def _kind_of_json(path: Path, head: bytes, size: int) -> str | None:
    if not head.lstrip().startswith((b"{", b"[")) or size > _MOST_JSON:
        return None
    first = _parsed(head.partition(b"\n")[0])
    if isinstance(first, dict) and (path.suffix == ".jsonl" or not _parsed_file(path)) and first.keys() & _LOG_HEADS:
        return LOG
    content = _parsed_file(path)
    if isinstance(content, dict) and VERSION_KEY in content:
        return str(content.get("kind")) if content.get("kind") in RESULTS else None
    if path.suffix == ".jsonl" and _of_known_form(first):
        return "jsonl"
    while isinstance(content, list) and content:
        content = content[0]
    return "json" if _of_known_form(content) else None


def _of_known_form(value: Any) -> bool:
    return isinstance(value, dict) and any(form <= value.keys() for form in _FORMS)


_LOG_HEADS: Final = frozenset({"hash"})


def _parsed_file(path: Path) -> Any:
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return None


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
