"""Runs all stages of a model family in order; each has a share of the hours and continues from the files on disk.

A stage is a recipe with its own folder. An existing run there is continued; otherwise the stage starts from random
weights. When another stage has begun to learn from a stage, that stage is closed: more training would change the codes
or the target that the other one depends on.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from underpaint.artifacts import lock
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.strict_json import read_json
from underpaint.training.history import differences
from underpaint.training.loop import CHECKPOINT, TrainingResult

ABOUT = "world.json"


@dataclass(frozen=True, slots=True)
class Stage:
    """One recipe of a world.

    Attributes:
        name: Name of its folder.
        share: Share of the hours, relative to the other stages' shares.
        train: The recipe; gets its folder and its total minutes, including those of earlier runs, after which it must
            stop by itself.
        dependents: Names of the stages that learn from it; once one of them has begun, a trained stage is closed.
    """

    name: str
    share: float
    train: Callable[[Path, float], TrainingResult]
    dependents: Collection[str] = ()

    def __post_init__(self) -> None:
        if not self.share > 0:
            raise ValueError(f"stage {self.name}: expected a share above 0, got {self.share}")


class StageReport(NamedTuple):
    """The state of a stage.

    Attributes:
        name: Name of the stage.
        state: "closed" (another one uses it), "left out" (not selected), "finished" or "stopped".
        outcome: The result of the training; None if nothing was trained.
    """

    name: str
    state: str
    outcome: TrainingResult | None


def train_world(
    out: Path,
    hours: float,
    stages: Sequence[Stage],
    about: Mapping[str, Any],
    *,
    only: Collection[str] = (),
    report: Callable[[StageReport], None] = lambda one: None,
) -> list[StageReport]:
    """Run the stages in order until all are finished or one is stopped (Ctrl-C); a second call continues.

    Args:
        out: Folder of the world; each stage has a folder in it.
        hours: Total hours of all stages. More hours than before lengthen the stages that are still open.
        stages: The stages, in order of their dependencies.
        about: Plain values that must not change between calls (family, seed, widths); stored in the world's folder.
        only: Names of the stages to train; empty for all. The other stages do not change.
        report: Called after every stage.

    Returns:
        The state of each stage, up to the one that was stopped.

    Raises:
        ValueError: Hours are not positive, names are not unique, `only` has an unknown name, or `out` has a world
            with another `about`.
        FolderInUse: Another process works in `out`.
    """
    if not hours > 0:
        raise ValueError(f"hours: expected more than 0, got {hours}")
    names = [stage.name for stage in stages]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"world: expected stages of different names, got {', '.join(names) or 'none'}")
    check_world(out, names, about, only)
    reports: list[StageReport] = []
    with lock.folder_lock(out):
        if not (out / ABOUT).exists():
            write_beside(out / ABOUT, (json.dumps(about, indent=1, sort_keys=True) + "\n").encode())
        whole = sum(stage.share for stage in stages)
        for stage in stages:
            begun = [name for name in (stage.name, *stage.dependents) if (out / name / CHECKPOINT).exists()]
            closed = stage.name in begun and len(begun) > 1
            if closed or stage.name not in (only or names):
                reports.append(StageReport(stage.name, "closed" if closed else "left out", None))
            else:
                outcome = stage.train(out / stage.name, 60 * hours * stage.share / whole)
                reports.append(StageReport(stage.name, "finished" if outcome.finished else "stopped", outcome))
            report(reports[-1])
            if reports[-1].state == "stopped":
                break
    return reports


def check_world(out: Path, names: Sequence[str], about: Mapping[str, Any], only: Collection[str] = ()) -> None:
    """Raise ValueError if `only` has none of the stages `names`, or `out` has a world with another `about`."""
    unknown = sorted(set(only) - set(names))
    if unknown:
        raise ValueError(f"world: there is no stage {', '.join(unknown)}; expected some of {', '.join(names)}")
    path, settings = out / ABOUT, json.loads(json.dumps(about))
    if not path.exists():
        return
    try:
        saved = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); give another --out, or remove the folder") from error
    apart = differences(saved, settings)
    if apart:
        raise ValueError(
            f"{path.parent} holds a world of {'; '.join(apart)}. Give the same to continue it, or another --out"
        )
