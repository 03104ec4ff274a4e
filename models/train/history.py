"""What a checkpoint says of its own making: which steps were taken how, and from what weights.

"runs" in a checkpoint is a list with an entry for every change of settings: "first_step", and "how" the steps from
there to the next entry's were taken. The first also has "began_from", the story of the checkpoint that gave the
weights, or None where they were random. What an older recipe did is not told: its checkpoint, continued, has a first
entry that begins where it was continued.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Given:
    """What a recipe was given, in plain values.

    how: seed, settings, data. began_from: `models.checkpoints.story` of the weights that it starts from.
    """

    how: Mapping[str, Any] = field(default_factory=dict)
    began_from: Mapping[str, Any] | None = None


def runs_with(saved: Mapping[str, Any] | None, given: Given, loop: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs of a checkpoint (None: of none) once a step is taken as `given` says, under the settings of `loop`."""
    how = {**given.how, "loop": dict(loop)}
    if saved is None:
        return [{"first_step": 0, "how": how, "began_from": given.began_from}]
    before: list[dict[str, Any]] = saved.get("runs", [])
    if before and before[-1]["how"] == how:
        return before
    return [*before, {"first_step": saved["step"], "how": how}]
