"""What a picture is drawn for, as the runtime sees it: ids or features, whatever grammar or file they came from."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.registry import suggest
from underpaint.artifacts.arrays import ArrayForm, read_npy
from underpaint.artifacts.model_families import CONDITIONS, PROMPT_GRAMMAR
from underpaint.runtime.engines.context import EngineError
from underpaint.zoo.grammars import TEXTURED, GrammarPrompt

_ID: Final = re.compile("-?[0-9]{1,18}")
"""A whole number that 64 bits hold."""
_LARGEST: Final = float(np.finfo(np.float32).max)


def _no_attributes() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Condition:
    """What a picture is drawn for.

    text: as it is shown, and what the noise of the picture is keyed by. ids: one class, or a prompt in the model's own
    vocabulary. features: an .npy file of features [n, C], in place of ids. uncond_ids: the ids of a negative prompt,
    for live models; None takes the model's own second row. attributes: what a judge may look for in the picture, by
    slot; empty where nothing tells.
    """

    text: str
    ids: tuple[int, ...] = ()
    features: Path | None = None
    uncond_ids: tuple[int, ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=_no_attributes, compare=False)

    def caption(self) -> str:
        """The condition as it is shown."""
        return self.text

    @property
    def noise_key(self) -> int:
        """What tells this condition's noise from another's under one seed."""
        return zlib.crc32(self.text.encode())


def read_features(path: Path) -> NDArray[np.float32]:
    """Features [n, C] of a caption from an .npy file; EngineError where it holds no such array of finite numbers."""
    try:
        found = read_npy(path, ArrayForm(dimensions=2, low=-_LARGEST, high=_LARGEST))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: expected finite features [n, C] as numpy.save writes them ({error})") from error
    return found.astype(np.float32)


def of_words(prompt: GrammarPrompt) -> Condition:
    """A prompt of the grammar as its models take it: its words' ids."""
    return Condition(prompt.caption, prompt.ids, attributes=prompt.attributes)


def is_typed(text: str) -> bool:
    """Whether a prompt is ids with commas between, or the name of an .npy file, and no words."""
    return text.endswith(".npy") or all(_ID.fullmatch(part.strip()) for part in text.split(","))


def parse_ids(text: str) -> Condition:
    """A class ("207") or ids with commas between; EngineError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(_ID.fullmatch(part) for part in parts):
        raise EngineError(
            f"condition {text[:60]!r}: expected a class such as 207, ids with commas between, or the .npy file of "
            "features; for words name the model's tokenizer or text encoder: --tokenizer FOLDER"
        )
    return Condition(text, tuple(int(part) for part in parts))


def parse_features(text: str) -> Condition:
    """The path of an .npy file of features [n, C]; EngineError where there is none."""
    if not Path(text).is_file():
        raise EngineError(f"condition: no file at {text}; save features [n, C] with numpy.save")
    read_features(Path(text))
    return Condition(text, features=Path(text))


def parse_condition(text: str, kind: str) -> Condition:
    """What was typed, as the models of a folder take it; `kind` is the `condition` of its `model_index.json`.

    Raises ValueError, or EngineError (a ValueError), saying what was expected; of a prompt, the unknown word and the
    nearest known one.
    """
    if kind not in CONDITIONS:
        raise EngineError(f"condition: there is no kind '{kind}'; {suggest(kind, CONDITIONS)}")
    if kind == PROMPT_GRAMMAR:
        return of_words(TEXTURED.read(text))
    return parse_features(text) if text.endswith(".npy") else parse_ids(text)
