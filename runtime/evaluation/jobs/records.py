"""The JSON of an evaluation's folder: its head, and the record of a finished job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from underpaint.artifacts.typed_json import Within


@dataclass(frozen=True, slots=True)
class EvaluationHead:
    """The content of `evaluation.json`."""

    format: int
    hash: str
    settings: dict[str, Any]


def check_model(told: Mapping[str, Any], turn: int) -> None:
    """ValueError where a model of a plan lacks what every reader of the plan takes from it."""
    for name, kind in (("model", dict), ("prompts", list), ("methods", dict), ("seeds", list)):
        if not isinstance(told.get(name), kind):
            raise ValueError(
                f"settings: models[{turn}]: {name}: expected a {kind.__name__}, got {told.get(name)!r:.60}"
            )
    if not isinstance(told["model"].get("target"), str):
        raise ValueError(f"settings: models[{turn}]: model: expected the name of a target")


@dataclass(frozen=True, slots=True)
class ReadingRecord:
    """What the judge saw, as JSON holds it; see `Reading`."""

    values: Mapping[str, str]
    features: list[float]
    scores: Mapping[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A finished job, as JSON holds it; see `DrawnJob`. The drawing is read by `drawing_of`."""

    key: str
    model: Annotated[int, Within(0, 1 << 20)]
    drawing: Mapping[str, Any]
    log_likelihood: float | None
    reading: ReadingRecord | None
    processor: str
