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

    how: seed, settings, data. began_from: `models.checkpoints.story` of the initial weights; None if random.
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


def refuse_other_seed(path: Path, saved: Mapping[str, Any], inputs: RecipeInputs) -> None:
    """Refuse to continue the run saved at `path` with another seed, because its batches would differ.

    Raises:
        ValueError: The seeds differ.
    """
    runs: list[dict[str, Any]] = saved.get("runs", [])
    before, now = (runs[-1]["how"].get("seed") if runs else None), inputs.how.get("seed")
    if before is not None and now is not None and before != now:
        raise ValueError(
            f"{path} was trained with seed {before}, now wanted {now}; give --seed {before} to continue it, or another "
            "--out"
        )


def differences(saved: Any, current: Any, name: str = "") -> list[str]:
    """Return a message for every setting that differs between `saved` and `current`."""
    if not isinstance(saved, dict) or not isinstance(current, dict):
        return [] if saved == current else [f"{name or 'settings'} {saved!r}, now wanted {current!r}"]
    return [
        text
        for key in sorted(saved.keys() | current.keys())
        for text in differences(saved.get(key, _NOT_SET), current.get(key, _NOT_SET), f"{name}.{key}" if name else key)
    ]


def refuse_other(out: Path, inputs: RecipeInputs) -> None:
    """Refuse to continue the run in `out` with another seed or other settings; the length and rates may differ.

    Raises:
        ValueError: They differ; the message names every difference.
    """
    path = out / "checkpoint.pt"
    runs: list[dict[str, Any]] = load_whole(path).get("runs", []) if path.exists() else []
    if not runs:
        return
    before, now = (plain({name: how[name] for name in how if name != "loop"}) for how in (runs[-1]["how"], inputs.how))
    differing = differences(before, now)
    if differing:
        raise ValueError(
            f"{path} was trained with {'; '.join(differing)}. Give the same to continue it, or another --out"
        )
