"""How pictures were decoded, step by step, on disk: what a replay shows, and how far the rule moved the next token."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from underpaint.algos.spatial.mulo import RepairCycle
from underpaint.algos.step import Cycle
from underpaint.artifacts.run_log import RunLog
from underpaint.runtime.drawing import noise_of
from underpaint.runtime.evaluation.comparison import ComparisonPlan
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog, settings_hash
from underpaint.runtime.evaluation.paired import PairedDifference, paired_difference
from underpaint.runtime.evaluation.token_bias import draw_watched
from underpaint.runtime.methods.method import DecodingMethod, DecodingResult, PipelineModels

FILE_NAME: Final = "replays.jsonl"
REPLAY_FORMAT: Final = 1
"""Version of the lines."""
Kind: TypeAlias = Literal["tree", "repair", "fronts"]


@dataclass(frozen=True, slots=True)
class TreeEvent:
    """One draft tree and its verdict.

    cell: the raster index of the first cell that it decides. tokens, parents: of the nodes, see `DraftTree`. path: the
    accepted nodes. extra: the one token that follows them.
    """

    cell: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    extra: int


@dataclass(frozen=True, slots=True)
class RepairEvent:
    """Rows drafted at a low resolution, verified in one pass, and repaired.

    first, stop: the cells of the rows. draft, tokens: [stop - first] codes before and after. rejected: cells that the
    rule refused. islands: cells redrawn side by side, a tuple each. steps: the cells decided in each step of the
    repair.
    """

    first: int
    stop: int
    draft: tuple[int, ...]
    rejected: tuple[int, ...]
    islands: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, ...], ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FrontEvent:
    """The cells decided in one step without a drafter: of row fronts, or of a window that the target fills itself."""

    cells: tuple[int, ...]


ReplayEvent: TypeAlias = TreeEvent | RepairEvent | FrontEvent
_EVENTS: Final[Mapping[str, type[TreeEvent] | type[RepairEvent] | type[FrontEvent]]] = {
    "tree": TreeEvent,
    "repair": RepairEvent,
    "fronts": FrontEvent,
}


@dataclass(frozen=True, slots=True)
class Replay:
    """One picture's decoding. tokens: [cells].

    token_bias: how far the tokens are from the target's distribution, as total variation (see
    `token_bias.draw_watched`); None where it was not measured.
    """

    method: str
    prompt: str
    seed: int
    kind: Kind
    tokens: tuple[int, ...]
    events: tuple[ReplayEvent, ...]
    token_bias: float | None = None

    @property
    def key(self) -> DrawingKey:
        """The drawing that it is of."""
        return DrawingKey(self.method, self.prompt, self.seed)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Replay:
        """The replay in a line of JSON; KeyError or TypeError where it is none."""
        make = _EVENTS[plain["kind"]]
        events = tuple(make(**{name: _tuples(value) for name, value in event.items()}) for event in plain["events"])
        return cls(**{**plain, "tokens": tuple(plain["tokens"]), "events": events})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def record(
    models: PipelineModels, method: DecodingMethod, plan: ComparisonPlan, key: DrawingKey, tokens: tuple[int, ...]
) -> Replay:
    """Draw `key` of a plan again and keep how. tokens: what was drawn before; RuntimeError where it is other now."""
    condition = next(each for each in plan.conditions if each.caption() == key.prompt)
    result, bias = draw_watched(models, method, condition, plan.sampling, noise_of(condition, key.seed))
    if tuple(result.tokens.tolist()) != tokens:
        raise RuntimeError(f"{key}: drawn again, it is another picture; the models or the engine changed meanwhile")
    kind, events = _events(result)
    return Replay(*key, kind, tokens, events, bias)


def _events(result: DecodingResult) -> tuple[Kind, tuple[ReplayEvent, ...]]:
    if result.cycles is not None:
        return "tree", tuple(_tree_event(cycle) for cycle in result.cycles)
    if result.repairs is not None:
        return "repair", tuple(_repair_event(cycle) for cycle in result.repairs)
    return "fronts", tuple(FrontEvent(tuple(map(int, step))) for step in result.steps or ())


def _tree_event(cycle: Cycle) -> TreeEvent:
    tree, verdict = cycle.tree, cycle.verdict
    nodes = tuple(tree.tokens.tolist()), tuple(tree.parents.tolist())
    return TreeEvent(int(cycle.cell), *nodes, tuple(map(int, verdict.path)), int(verdict.token))


def _repair_event(cycle: RepairCycle) -> RepairEvent:
    width = cycle.draft.shape[1]
    first, stop = cycle.rows.start * width, cycle.rows.stop * width
    labels = cycle.islands.ravel()
    return RepairEvent(
        first,
        stop,
        draft=tuple(cycle.draft.ravel()[first:stop].tolist()),
        rejected=tuple(np.flatnonzero(cycle.rejected).tolist()),
        islands=tuple(tuple(np.flatnonzero(labels == one).tolist()) for one in range(labels.max() + 1)),
        steps=tuple(tuple(map(int, step)) for step in cycle.steps),
        tokens=tuple(cycle.tokens.ravel()[first:stop].tolist()),
    )


def mean_token_bias(method: str, lossless: bool, replays: Sequence[Replay]) -> PairedDifference | None:
    """The mean over a method's replays, with a bootstrap interval over them where there are two or more.

    0 where the method is lossless, None where nothing was measured.
    """
    if lossless:
        return PairedDifference(0.0, 0.0, 0.0)
    found = np.array([one.token_bias for one in replays if one.method == method and one.token_bias is not None])
    return paired_difference(np.zeros((1, found.size)), found[None]) if found.size else None


class ReplayLog:
    """The replays of one comparison, in `folder/replays.jsonl`; those of another comparison are replaced.

    A last line that a stopped process left unfinished is dropped.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None) -> None:
        """Take up what `folder` holds. settings: those of the comparison; None takes whatever comparison it is.

        Raises ValueError where the file holds something else than replays.
        """
        self.path = folder / FILE_NAME
        self._head = {"format": REPLAY_FORMAT, "hash": "" if settings is None else settings_hash(settings)}
        self._run_log = RunLog(self.path)
        self._held: dict[DrawingKey, Replay] = {}
        try:
            lines = self._run_log.read()
            same = bool(lines) and (
                lines[0] == self._head or (settings is None and lines[0]["format"] == REPLAY_FORMAT)
            )
            for line in lines[1:] if same else ():
                replay = Replay.from_dict(line)
                self._held[replay.key] = replay
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.path} holds no replays ({error}); delete it and record them again") from error
        if not same:
            self._run_log = RunLog(self.path)

    def __contains__(self, key: DrawingKey) -> bool:
        return key in self._held

    def replays(self) -> tuple[Replay, ...]:
        """Those held, in the order they were recorded."""
        return tuple(self._held.values())

    def add(self, replay: Replay) -> None:
        """Append one; it is on the disk when this returns."""
        if self._run_log.empty:
            self._run_log.append(self._head)
        self._run_log.append(dataclasses.asdict(replay))
        self._held[replay.key] = replay


def record_replays(
    models: PipelineModels,
    plan: ComparisonPlan,
    drawings: DrawingLog,
    log: ReplayLog,
    prompts: int,
    report: Callable[[int, int], None],
) -> None:
    """Record every method's decoding of the first `prompts` prompts under the first seed, those that `log` lacks.

    They are drawn once more for it, so no timing of the comparison holds any recording. report: how many of how many
    are done.
    """
    wanted: Sequence[tuple[DecodingMethod, DrawingKey]] = [
        (method, DrawingKey(method.name, condition.caption(), plan.seeds[0]))
        for condition in plan.conditions[:prompts]
        for method in plan.methods
    ]
    for done, (method, key) in enumerate(wanted):
        report(done, len(wanted))
        if key not in log:
            log.add(record(models, method, plan, key, drawings[key].tokens))
    report(len(wanted), len(wanted))
