"""All stages of a family's models in order, each with its share of the hours, each going on from what is on disk.

A stage is a recipe with a folder of its own. What it left there is continued; where there is nothing, weights of the
repository are taken, with a fresh optimiser; else it starts from random weights. A stage that a later one has begun to
learn from is closed: training it on would change the codes, or the target, that the later one stands on.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from underpaint.artifacts import lock
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.strict_json import read_json
from underpaint.models import weights
from underpaint.training.history import differences
from underpaint.training.loop import CHECKPOINT, TrainingResult

ABOUT = "world.json"


@dataclass(frozen=True, slots=True)
class Stage:
    """One recipe of a world.

    name: of its folder, and of its weights in the repository where `weights` names no other. share: of the hours,
    against the other stages' shares. train: the recipe, given its folder and its minutes in all, what earlier runs took
    included; it must stop by itself after them. needed: whether later stages learn from it, so that it is closed once
    one has begun. start_of: the stage whose start it is alone: where the repository has that one's weights, this one
    is closed without any of its own, and its share of the hours is that one's.
    """

    name: str
    share: float
    train: Callable[[Path, float], TrainingResult]
    weights: str | None = None
    needed: bool = True
    start_of: str | None = None

    def __post_init__(self) -> None:
        if not self.share > 0:
            raise ValueError(f"stage {self.name}: expected a share above 0, got {self.share}")


class StageReport(NamedTuple):
    """What became of a stage: "closed" (a later one stands on it), "left out" (not asked for), "finished" or "stopped".

    outcome: None where nothing was trained.
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
    stored: Path = weights.FOLDER,
    report: Callable[[StageReport], None] = lambda one: None,
) -> list[StageReport]:
    """Run the stages in order until all are finished or one is stopped (Ctrl-C); a second call continues.

    Args:
        out: folder of the world; a folder a stage is made in it.
        hours: of all stages together. More hours than before lengthen the stages that are still open.
        stages: in the order in which they need each other.
        about: what must not change between calls (family, seed, widths), plain values; it is written beside the stages.
        only: names of the stages to train; none are all. Others stay as they are, or as the repository has them.
        stored: folder of weights to start from where a stage has no checkpoint. Where a stage's checkpoint is not what
            the folder holds of it, no later stage starts from the folder: it would stand on other codes.
        report: called after every stage.

    Raises ValueError where hours are not positive, names are not unique, `only` names another, or `out` holds a world
    of another `about`.
    """
    if not hours > 0:
        raise ValueError(f"hours: expected more than 0, got {hours}")
    names = [stage.name for stage in stages]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"world: expected stages of different names, got {', '.join(names) or 'none'}")
    unknown = sorted(set(only) - set(names))
    if unknown:
        raise ValueError(f"world: there is no stage {', '.join(unknown)}; expected some of {', '.join(names)}")
    with lock.held(out):
        return _train_stages(out, hours, stages, about, only or names, stored, report)


def _train_stages(
    out: Path,
    hours: float,
    stages: Sequence[Stage],
    about: Mapping[str, Any],
    asked: Collection[str],
    stored: Path,
    report: Callable[[StageReport], None],
) -> list[StageReport]:
    """See `train_world`, which holds the folder."""
    names = [stage.name for stage in stages]
    _check(out / ABOUT, about)
    whole = sum(stage.share for stage in stages)
    found: list[StageReport] = []
    as_stored = True
    for place, stage in enumerate(stages):
        folder = out / stage.name
        closed = stage.needed and any((out / later / CHECKPOINT).exists() for later in names[place + 1 :])
        replaced = as_stored and any(one.name == stage.start_of and _holds(stored, one) for one in stages)
        held, closed = not replaced and _holds(stored, stage), closed or replaced
        if held and as_stored and not closed and not (folder / CHECKPOINT).exists():
            weights.restore(str(stage.weights), folder, stored)
            # What the repository has of a later stage stands on these weights as they are.
            closed = stage.needed and any(_holds(stored, later) for later in stages[place + 1 :])
        if closed or stage.name not in asked:
            found.append(StageReport(stage.name, "closed" if closed else "left out", None))
        else:
            starts = [
                one for one in stages if one.start_of == stage.name and not (out / one.name / CHECKPOINT).exists()
            ]
            share = stage.share + sum(one.share for one in starts)
            outcome = stage.train(folder, 60 * hours * share / whole)
            found.append(StageReport(stage.name, "finished" if outcome.finished else "stopped", outcome))
        if held and as_stored and stage.needed:
            as_stored = weights.is_stored(str(stage.weights), folder / CHECKPOINT, stored)
        report(found[-1])
        if found[-1].state == "stopped":
            break
    return found


def _holds(stored: Path, stage: Stage) -> bool:
    """Whether the repository has weights of a stage."""
    return stage.weights is not None and (stored / f"{stage.weights}.json").exists()


def _check(path: Path, about: Mapping[str, Any]) -> None:
    wanted = json.loads(json.dumps(about))
    if not path.exists():
        write_beside(path, (json.dumps(wanted, indent=1, sort_keys=True) + "\n").encode())
        return
    try:
        held = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); give another --out, or remove the folder") from error
    apart = differences(held, wanted)
    if apart:
        raise ValueError(
            f"{path.parent} holds a world of {'; '.join(apart)}. Give the same to continue it, or another --out"
        )
