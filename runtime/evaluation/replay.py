"""Records of decoding, step by step, for replays, and of how far the rule moved the next token's distribution."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import numpy as np

from underpaint.algos.spatial.mulo import RepairCycle
from underpaint.algos.step import Cycle
from underpaint.algos.tree import NO_TOKEN
from underpaint.artifacts.run_log import OtherRun, RunStore
from underpaint.artifacts.strict_json import Within, build_typed
from underpaint.runtime.drawing import MOST_COUNT, Count, noise_of
from underpaint.runtime.evaluation.comparison import ComparisonPlan
from underpaint.runtime.evaluation.drawing_log import DrawingKey, DrawingLog
from underpaint.runtime.evaluation.paired import FigureInterval, paired_difference
from underpaint.runtime.evaluation.plan import RunPlan
from underpaint.runtime.evaluation.token_bias import draw_watched
from underpaint.runtime.methods.method import DecodingMethod, DecodingResult, PipelineModels

FINISHED: Final = "finished"
"""Key of the line that ends a recording; its value is the number of replays in the file."""
Kind: TypeAlias = Literal["tree", "repair", "fronts"]


@dataclass(frozen=True, slots=True)
class TreeEvent:
    """One draft tree and its verdict.

    Attributes:
        cell: Raster index of the first cell that it decides.
        tokens: Tokens of the nodes; see `DraftTree`.
        parents: Parents of the nodes; see `DraftTree`.
        path: The accepted nodes.
        extra: The token that follows them.
    """

    cell: Count
    tokens: tuple[Annotated[int, Within(NO_TOKEN, MOST_COUNT)], ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    extra: Count

    def wrong(self, cells: int) -> str:
        """How the event contradicts itself or a picture of `cells` cells; empty if it does not."""
        size = len(self.tokens)
        if self.parents[:1] != (-1,) or len(self.parents) != size:
            return f"expected {size} parents, the first -1, got {self.parents}"
        if any(not 0 <= parent <= node for node, parent in enumerate(self.parents[1:])):
            return f"expected parents before their children, got {self.parents}"
        if any(
            self.parents[node] != before
            for before, node in zip((0, *self.path), self.path, strict=False)
            if 0 < node < size
        ) or any(not 0 < node < size for node in self.path):
            return f"expected a path down the tree, got {self.path}"
        return "" if self.cell + len(self.path) < cells else f"expected cells below {cells}, got {self.cell}"


@dataclass(frozen=True, slots=True)
class RepairEvent:
    """Rows that are drafted at a low resolution, verified in one pass, and repaired.

    Attributes:
        first: First cell of the rows.
        stop: End of the rows' cells, exclusive.
        draft: [stop - first] codes before the repair.
        rejected: Cells that the rule rejected.
        islands: Groups of cells redrawn in parallel.
        steps: Cells decided in each step of the repair.
        tokens: [stop - first] codes after the repair.
    """

    first: Count
    stop: Count
    draft: tuple[Count, ...]
    rejected: tuple[Count, ...]
    islands: tuple[tuple[Count, ...], ...]
    steps: tuple[tuple[Count, ...], ...]
    tokens: tuple[Count, ...]

    def wrong(self, cells: int) -> str:
        """See `TreeEvent.wrong`."""
        if not self.first < self.stop <= cells:
            return f"expected rows of cells below {cells}, got {self.first} to {self.stop}"
        if not len(self.draft) == len(self.tokens) == self.stop - self.first:
            return f"expected {self.stop - self.first} codes before and after, got {len(self.draft)}"
        named = {*self.rejected, *(cell for group in (*self.islands, *self.steps) for cell in group)}
        return "" if max(named, default=0) < cells else f"expected cells below {cells}, got {max(named)}"


@dataclass(frozen=True, slots=True)
class FrontEvent:
    """The cells decided in one step without a drafter: by row fronts, or in a window that the target fills itself."""

    cells: tuple[Count, ...]

    def wrong(self, cells: int) -> str:
        """See `TreeEvent.wrong`."""
        return "" if self.cells and max(self.cells) < cells else f"expected cells below {cells}, got {self.cells}"


ReplayEvent: TypeAlias = TreeEvent | RepairEvent | FrontEvent
_EVENTS: Final[Mapping[str, type[TreeEvent] | type[RepairEvent] | type[FrontEvent]]] = {
    "tree": TreeEvent,
    "repair": RepairEvent,
    "fronts": FrontEvent,
}


@dataclass(frozen=True, slots=True)
class Replay:
    """The decoding of one picture.

    Attributes:
        method: The method's name.
        prompt: The prompt's text.
        seed: The seed of the noise.
        kind: The kind of the events.
        tokens: The picture's tokens, [cells].
        events: The steps of decoding, in order.
        token_bias: Total variation from the target's distribution (see `token_bias.draw_watched`); None if not
            measured.
    """

    method: str
    prompt: str
    seed: Count
    kind: Kind
    tokens: tuple[Count, ...]
    events: tuple[ReplayEvent, ...]
    token_bias: Annotated[float, Within(0.0, 1.0 + 1e-6)] | None = None

    @property
    def key(self) -> DrawingKey:
        """The key of its drawing."""
        return DrawingKey(self.method, self.prompt, self.seed)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Replay:
        """Parse the replay in a line of JSON.

        Raises:
            ValueError: A field is missing, unknown, of another type or range, or points outside the picture.
        """
        kind, listed = plain.get("kind"), plain.get("events")
        if not isinstance(kind, str) or kind not in _EVENTS or not isinstance(listed, list):
            raise ValueError(f"a replay: expected a list of events and a kind of {', '.join(_EVENTS)}, got {kind!r}")
        events = tuple(
            build_typed(_EVENTS[kind], event, f"a replay: event {turn}") for turn, event in enumerate(listed)
        )
        replay = dataclasses.replace(build_typed(cls, {**plain, "events": []}, "a replay"), events=events)
        for turn, event in enumerate(events):
            wrong = event.wrong(len(replay.tokens))
            if wrong:
                raise ValueError(f"a replay: event {turn}: {wrong}")
        return replay


def record(
    models: PipelineModels, method: DecodingMethod, plan: ComparisonPlan, key: DrawingKey, tokens: tuple[int, ...]
) -> Replay:
    """Draw `key` of a plan again and record its decoding; raises RuntimeError if the tokens are not `tokens`."""
    condition = next(each for each in plan.conditions if each.caption() == key.prompt)
    result, bias = draw_watched(models, method, condition, plan.sampling, noise_of(condition, key.seed))
    if tuple(result.tokens.tolist()) != tokens:
        raise RuntimeError(f"{key}: drawn again, it is another picture; the models or the engine changed meanwhile")
    kind, events = _events(result)
    return Replay(*key[:3], kind, tokens, events, bias)


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


def mean_token_bias(method: str, lossless: bool, replays: Sequence[Replay]) -> FigureInterval | None:
    """Mean token bias of a method's replays, with a bootstrap interval if there are two or more.

    0 if the method is lossless, None if nothing was measured.
    """
    if lossless:
        return FigureInterval(0.0, 0.0, 0.0)
    biases = np.array([one.token_bias for one in replays if one.method == method and one.token_bias is not None])
    return paired_difference(np.zeros((1, biases.size)), biases[None]) if biases.size else None


class ReplayLog(RunStore[DrawingKey, Replay]):
    """The replays of one run, in `folder/replays.jsonl`; those of another run are replaced.

    finished: whether the file says that the recording is complete; False if it was stopped, or the file cut short. True
    without a recording of this run.
    """

    NAME: ClassVar[str] = "replays"
    VERSION: ClassVar[int] = 3
    WHAT: ClassVar[str] = "recording of replays"
    REMEDY: ClassVar[str] = "delete it and record them again"

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None) -> None:
        """Open the recording in a folder.

        Args:
            folder: The folder of the run.
            settings: The settings of the run; None accepts any run.

        Raises:
            ValueError: The file has other content than replays.
        """
        self.finished = not (folder / f"{self.NAME}.jsonl").exists()
        try:
            super().__init__(folder, settings)
        except OtherRun:
            self.finished = True
            super().__init__(folder, settings, fresh=True)
        self.finished = self.finished and not self._run_log.unfinished

    def read(self, line: Mapping[str, Any]) -> tuple[DrawingKey, Replay] | None:
        self.finished = line.keys() == {FINISHED}
        if not self.finished:
            replay = Replay.from_dict(line)
            return replay.key, replay
        if type(line[FINISHED]) is not int or line[FINISHED] != len(self):
            raise ValueError(f"expected {len(self)} finished replays, got {line[FINISHED]!r}")
        return None

    def plain(self, record: Replay) -> dict[str, Any]:
        return dataclasses.asdict(record)

    def replays(self) -> tuple[Replay, ...]:
        """The replays in the order of recording."""
        return tuple(self)

    def add(self, key: DrawingKey, record: Replay) -> None:
        super().add(key, record)
        self.finished = False

    def finish(self) -> None:
        """Mark the recording in the file as complete, so that a file cut short can be recognized."""
        if not self.finished and len(self):
            self.append({FINISHED: len(self)})
            self.finished = True


def record_replays(
    plan: RunPlan, drawings: DrawingLog, log: ReplayLog, prompts: int, report: Callable[[int, int], None]
) -> None:
    """Record the missing replays of every method on the first `prompts` prompts, with the first seed.

    The pictures are drawn again for this, so recording affects no timing of the comparison.

    Args:
        plan: A run of one model.
        drawings: The finished drawings of the run.
        log: The recording to add to.
        prompts: Number of prompts to record.
        report: Called with the number of replays done, and in total.
    """
    (model,) = plan.models
    comparison = model.comparison
    recordings: Sequence[tuple[DecodingMethod, DrawingKey]] = [
        (method, DrawingKey(method.name, condition.caption(), comparison.seeds[0]))
        for condition in comparison.conditions[:prompts]
        for method in comparison.methods
    ]
    for done, (method, key) in enumerate(recordings):
        report(done, len(recordings))
        if key not in log:
            log.add(key, record(model.pipeline, method, comparison, key, drawings.drawing(key).tokens))
    log.finish()
    report(len(recordings), len(recordings))
