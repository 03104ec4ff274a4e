"""The weights that a recipe starts from: a checkpoint of the same kind and the same widths."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from underpaint.models.checkpoints import read
from underpaint.models.config import build

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_WIDTHS: Final = {"tokenizer": "vq", "sampler": "sampler"}
"""Where a checkpoint's config holds the widths, by kind."""


def read_start(path: Path | None, kind: str, config: "DataclassInstance") -> dict[str, Any] | None:
    """The checkpoint at `path`, whose weights a model of `config` can take; None for None.

    kind: "tokenizer" or "sampler".
    Raises FileNotFoundError and ValueError as `models.checkpoints.read` does, and ValueError on other widths.
    """
    if path is None:
        return None
    saved = read(path, kind)
    found = build(type(config), saved["config"][_WIDTHS[kind]])
    names = [field.name for field in fields(config)]
    held, wanted = ({name: getattr(one, name) for name in names} for one in (found, config))
    if held != wanted:
        differing = [name for name in names if held[name] != wanted[name]]
        raise ValueError(
            f"{path}: expected a {kind} of {_told(wanted, differing)} to start from, got one of "
            f"{_told(held, differing)}; give --init-from the checkpoint of a run with the same widths, or train one "
            f"with `underpaint train {kind}`"
        )
    return saved


def _told(values: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {values[name]}" for name in names)
