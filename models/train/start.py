"""The weights that a recipe starts from: a checkpoint of the same kind and the same widths."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from underpaint.models.checkpoints import decoder_config, read
from underpaint.models.config import Config, build

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_WIDTHS: Final = {"tokenizer": "vq", "sampler": "sampler"}
"""Where a checkpoint's config holds the widths, by kind; those of decoders see `models.checkpoints.decoder_config`."""
_ANY: Final = ("grid_side",)
"""What may differ: positions are rotary, so a decoder's weights serve a grid of any side."""


def read_start(path: Path | None, kind: str, config: "DataclassInstance") -> dict[str, Any] | None:
    """The checkpoint at `path`, whose weights a model of `config` can take; None for None.

    Raises FileNotFoundError and ValueError as `models.checkpoints.read` does, and ValueError on other widths.
    """
    if path is None:
        return None
    saved = read(path, kind)
    found = widths(path, saved, type(config))
    names = [field.name for field in fields(config) if field.name not in _ANY]
    held, wanted = ({name: getattr(one, name) for name in names} for one in (found, config))
    if held != wanted:
        differing = [name for name in names if held[name] != wanted[name]]
        raise ValueError(
            f"{path}: expected a {kind} of {_told(wanted, differing)} to start from, got one of "
            f"{_told(held, differing)}; give --init-from the checkpoint of a run with the same widths, or train one "
            f"with `underpaint train {kind}`"
        )
    return saved


def widths(path: Path, saved: Mapping[str, Any], config: type[Config]) -> Config:
    """The widths that the checkpoint `saved`, of `path`, was trained with; ValueError where it does not say."""
    kind = saved["config"]["kind"]
    if kind not in _WIDTHS:
        try:
            found = decoder_config(saved["config"])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if not isinstance(found, config):
            raise ValueError(f"{path}: expected {config.__name__}, got the widths of a {kind}")
        return found
    part = _WIDTHS[kind]
    if part not in saved["config"]:
        raise ValueError(f"{path} does not say its widths: no '{part}' in its config; it is no checkpoint of a recipe")
    return build(config, saved["config"][part])


def _told(values: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {values[name]}" for name in names)
