"""What a checkpoint says of its own making: which steps were taken how, and from what weights.

"runs" in a checkpoint is a list with an entry for every change of settings: "first_step", and "how" the steps from
there to the next entry's were taken. The first also has "began_from", the story of the checkpoint that gave the
weights, or None where they were random. What an older recipe did is not told: its checkpoint, continued, has a first
entry that begins where it was continued.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from underpaint.models.checkpoints import load_whole
from underpaint.models.config import plain

RETIRED: Final = frozenset({"scenes", "validation_scenes"})
"""Settings that targets had, and that decided nothing: how many scenes there are is the world's."""
_NOT_SET: Final = "not set"


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
    if before and plain(before[-1]["how"]) == plain(how):
        return before
    return [*before, {"first_step": saved["step"], "how": how}]


def refuse_other_seed(path: Path, saved: Mapping[str, Any], given: Given) -> None:
    """ValueError where the run saved at `path` was started with another seed: its batches would be others.

    A run of an older recipe, which does not say its seed, is continued.
    """
    runs: list[dict[str, Any]] = saved.get("runs", [])
    before, now = (runs[-1]["how"].get("seed") if runs else None), given.how.get("seed")
    if before is not None and now is not None and before != now:
        raise ValueError(
            f"{path} was trained with seed {before}, now wanted {now}; give --seed {before} to continue it, or another "
            "--out"
        )


def differences(held: Any, wanted: Any, name: str = "") -> list[str]:
    """In words, what was given before and what is wanted now, setting by setting where they differ.

    Settings in `RETIRED` that `wanted` lacks are left out: no step depended on them.
    """
    if not isinstance(held, dict) or not isinstance(wanted, dict):
        return [] if held == wanted else [f"{name or 'settings'} {held!r}, now wanted {wanted!r}"]
    names = sorted(one for one in held.keys() | wanted.keys() if one in wanted or one not in RETIRED)
    return [
        told
        for one in names
        for told in differences(held.get(one, _NOT_SET), wanted.get(one, _NOT_SET), f"{name}.{one}" if name else one)
    ]


def refuse_other(out: Path, given: Given) -> None:
    """ValueError where the run in `out` was started with a seed or settings other than `given`'s; its loop may differ.

    A run of an older recipe, which does not say what it was given, is continued, and so are weights alone, such as the
    repository keeps: no batch of theirs is continued.
    """
    path = out / "checkpoint.pt"
    saved = load_whole(path) if path.exists() else {}
    runs: list[dict[str, Any]] = saved.get("runs", [])
    if not runs or "optimizer" not in saved:
        return
    before, own = (plain({name: how[name] for name in how if name != "loop"}) for how in (runs[-1]["how"], given.how))
    names = before.keys() | own.keys()
    held, wanted = ({name: told.get(name) for name in names} for told in (before, own))
    differing = differences(held, wanted)
    if differing:
        raise ValueError(
            f"{path} was trained with {'; '.join(differing)}. Give the same to continue it, or another --out"
        )
