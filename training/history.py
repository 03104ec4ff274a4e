"""The training history in a checkpoint: the settings of its steps, and the origin of its weights.

"runs" in a checkpoint is a list with an entry for every change of settings: "first_step", and "how" the steps up to
the next entry were made. The first entry also has "began_from", the story of the checkpoint that provided the weights,
or None for random weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from underpaint.models.checkpoints import load_whole
from underpaint.models.config import plain

_NOT_SET: Final = "not set"


@dataclass(frozen=True, slots=True)
class RecipeInputs:
    """The inputs of a recipe, as plain values.

    Attributes:
        how: Seed, settings and data.
        began_from: `models.checkpoints.story` of the initial weights; None if they are random.
    """

    how: Mapping[str, Any] = field(default_factory=dict)
    began_from: Mapping[str, Any] | None = None


def runs_with(saved: Mapping[str, Any] | None, inputs: RecipeInputs, loop: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The "runs" of a checkpoint (None for a new run) after a step with `inputs` and settings `loop`."""
    how = {**inputs.how, "loop": dict(loop)}
    if saved is None:
        return [{"first_step": 0, "how": how, "began_from": inputs.began_from}]
    before: list[dict[str, Any]] = saved.get("runs", [])
    if before and plain(before[-1]["how"]) == plain(how):
        return before
    return [*before, {"first_step": saved["step"], "how": how}]


def refuse_other_origin(path: Path, saved: Mapping[str, Any], inputs: RecipeInputs) -> None:
    """Refuse to continue the run saved at `path` with another seed, whose batches would differ, or another start.

    Raises:
        ValueError: The seeds differ, or the run did not begin from the weights given to start from.
    """
    runs: list[dict[str, Any]] = saved.get("runs", [])
    before, now = (runs[-1]["how"].get("seed") if runs else None), inputs.how.get("seed")
    if before is not None and now is not None and before != now:
        raise ValueError(
            f"{path} was trained with seed {before}, now wanted {now}; give --seed {before} to continue it, or another "
            "--out"
        )
    recorded = runs and "began_from" in runs[0]
    if recorded and inputs.began_from and _origin(runs[0]["began_from"]) != _origin(inputs.began_from):
        raise ValueError(
            f"{path} did not begin from the checkpoint now given to start from, and continues from its own weights; "
            "give the checkpoint that it began from, or another --out"
        )


def _origin(began_from: Mapping[str, Any] | None) -> Any:
    """Return what identifies weights in their story; their time changes when a finished run is only opened again."""
    return plain({name: value for name, value in (began_from or {}).items() if name != "elapsed_seconds"})


def differences(saved: Any, current: Any, name: str = "") -> list[str]:
    """Return a message for every setting that differs between `saved` and `current`."""
    if not isinstance(saved, dict) or not isinstance(current, dict):
        return [] if saved == current else [f"{name or 'settings'} {saved!r}, now wanted {current!r}"]
    return [
        text
        for key in sorted(saved.keys() | current.keys())
        for text in differences(saved.get(key, _NOT_SET), current.get(key, _NOT_SET), f"{name}.{key}" if name else key)
    ]


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two "how" of runs; the length and rates may differ."""
    return differences(*(plain({name: how[name] for name in how if name != "loop"}) for how in (before, now)))


def refuse_other(out: Path, inputs: RecipeInputs) -> None:
    """Refuse to continue the run in `out` with another seed or other settings; the length and rates may differ.

    Raises:
        ValueError: They differ; the message names every difference.
    """
    path = out / "checkpoint.pt"
    runs: list[dict[str, Any]] = load_whole(path).get("runs", []) if path.exists() else []
    differing = _changes(runs[-1]["how"], inputs.how) if runs else []
    if differing:
        raise ValueError(
            f"{path} was trained with {'; '.join(differing)}. Give the same to continue it, or another --out"
        )


def refuse_changed(path: Path, saved: Mapping[str, Any], inputs: RecipeInputs) -> None:
    """Refuse inputs that the finished run saved at `path` would not use; what an older recipe did not record passes.

    Raises:
        ValueError: They differ from those of its last steps; the message names every difference.
    """
    runs: list[dict[str, Any]] = saved.get("runs", [])
    differing = _changes(runs[-1]["how"], _common_settings(inputs.how, runs[-1]["how"])) if runs else []
    if differing:
        raise ValueError(
            f"{path} is finished, and was trained with {'; '.join(differing)}. Give the same, more steps or time to "
            "continue with what is now wanted, or another --out"
        )


def _common_settings(now: Any, before: Any) -> Any:
    """Return `now` without the settings that `before` lacks."""
    if not isinstance(now, Mapping) or not isinstance(before, Mapping):
        return now
    return {name: _common_settings(now[name], before[name]) for name in now if name in before}
