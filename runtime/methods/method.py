"""The protocol of every method: `open` takes a pipeline's models, `step` makes one cycle, `result` is the image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Cycle, Decoded, Drafter, Target
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.engine import PassTimer

if TYPE_CHECKING:
    from underpaint.algos.protocols import Rule
    from underpaint.algos.spatial.mulo import RepairCycle
    from underpaint.algos.spatial.target import GridTarget
    from underpaint.algos.spatial.zipar import CellStep, GridDecoded
    from underpaint.artifacts.cost_curve import EngineCosts
    from underpaint.runtime.methods.registry import MethodConfig
    from underpaint.runtime.resampling.resampler import Resampler

Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class ModelTables:
    """What rules and policies may ask of a model. Their settings of these names never come from a user.

    near: `neighbours`, or what finds them when a rule first asks. codebook: [V, E]. costs: of the model's passes, as
    measured; None where they were not.
    """

    near: IntArray | Callable[[], IntArray]
    codebook: FloatArray
    costs: EngineCosts | None = None

    @property
    def neighbours(self) -> IntArray:
        """[V, k], the nearest codes of each code; see `algos.accept.neighbours`."""
        return self.near() if callable(self.near) else self.near

    @property
    def vocab_size(self) -> int:
        """V, the number of codes."""
        return int(self.codebook.shape[0])


GIVEN_BY_ENGINE: Final = ("neighbours", "codebook", "costs")
"""Settings of rules and policies that come from the model."""


class Timed(NamedTuple, Generic[Model]):
    """A model and the timer of its passes, which counts over all images."""

    model: Model
    timer: PassTimer


class RuleWatcher(Protocol):
    """A `Rule` that decides as another one does, and learns of every verdict."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """Decide as the watched rule does."""
        ...

    def skipped(self, tree: DraftTree, probs: FloatArray) -> None:
        """Learn of a tree that was not verified; probs: [V], the target's distribution behind its root."""
        ...


class SessionTimers(NamedTuple):
    """The timers of a session's models; None where it has no such model."""

    target: PassTimer
    drafter: PassTimer | None = None
    resampler: PassTimer | None = None


class Preview(NamedTuple):
    """A model that draws a small preview of a picture before the picture, as GLM-Image does.

    small, large: the two grids. timer: of the passes. small_target: the preview as a target, at temperature 0 if asked.
    large_target: the picture as a target, behind a preview's tokens. enlarge: a preview's tokens as a draft of the
    picture's.
    """

    small: Grid
    large: Grid
    timer: PassTimer
    small_target: Callable[[bool], GridTarget]
    large_target: Callable[[IntArray], GridTarget]
    enlarge: Callable[[IntArray], IntArray]


class PipelineModels(Protocol):
    """What a method asks of a pipeline."""

    @property
    def grid(self) -> Grid:
        """The image as cells."""
        ...

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest tree that the target scores, its root included."""
        ...

    @property
    def tables(self) -> ModelTables:
        """The codebook and what belongs to it."""
        ...

    def target(self, condition: Condition, sampling: SamplingParams) -> Timed[Target]:
        """The target under a condition, until another is set."""
        ...

    def drafter(self, sampling: SamplingParams) -> Timed[Drafter]:
        """The drafter; it reads the condition from the target's features."""
        ...

    def grid_target(self, condition: Condition, sampling: SamplingParams, cells: int = 1) -> Timed[GridTarget]:
        """The target under a condition, cell by cell in any order.

        cells: of the largest pass that is expected; ValueError where the engine cannot pass over so many.
        """
        ...

    def low_target(
        self, condition: Condition, sampling: SamplingParams, ratio: int, cells: int = 1, int8: bool | None = None
    ) -> Timed[GridTarget]:
        """The target of pictures 1 / `ratio` as high and wide; ValueError where there is none.

        cells: as above. int8: whether it multiplies in 8 bits; None for where the models have such a one.
        """
        ...

    def preview(self, condition: Condition, sampling: SamplingParams) -> Preview | None:
        """The preview that the model draws of its pictures under a condition; None for a model without one."""
        ...

    def resampler(self, kind: str, ratio: int) -> Resampler:
        """Tokens between the low and this resolution, in the way named `kind`; ValueError where there is none."""
        ...


class DecodingResult(NamedTuple):
    """What a method says of one image; None where it does not apply.

    tokens: [cells]. accepted, depths, nodes: per cycle after the first pass (which has no draft), the drafted tokens
    accepted, the levels of the draft tree and its drafted nodes. kept_cells: the cells, ascending, that hold what was
    drafted for them. rejected: drafted tokens that the rule refused; what was redrawn around them is not in it.
    cycles, repairs, steps: how it was drawn, as the loop of the method's family keeps it: draft trees and verdicts;
    drafted rows and their repair; the cells decided in each step. One of the three.
    """

    tokens: IntArray
    accepted: tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None
    kept_cells: tuple[int, ...] | None = None
    rejected: int | None = None
    nodes: tuple[int, ...] | None = None
    cycles: tuple[Cycle, ...] | None = None
    repairs: tuple[RepairCycle, ...] | None = None
    steps: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of_cycles(cls, cycles: Iterator[Cycle]) -> DecodingSteps:
        """Yield the cycles of an image that is decoded draft by draft, then return what they came to."""
        done: list[Cycle] = []
        for cycle in cycles:
            done.append(cycle)
            yield cycle
        decoded = Decoded.of(done)
        drafted = decoded.cycles[1:]
        return cls(
            decoded.tokens,
            accepted=tuple(len(cycle.verdict.path) for cycle in drafted),
            depths=tuple(cycle.tree.depth for cycle in drafted),
            nodes=tuple(cycle.tree.size - 1 for cycle in drafted),
            cycles=decoded.cycles,
        )

    @classmethod
    def of_steps(cls, steps: Generator[CellStep, None, GridDecoded]) -> DecodingSteps:
        """Yield the steps of an image whose cells are decided in any order, then return what they came to."""
        decoded = yield from steps
        return cls(decoded.tokens, steps=decoded.steps)


DecodingSteps: TypeAlias = Generator[Any, None, DecodingResult]
"""One image on its way: it yields after every cycle, and returns the image."""


class DecodingSession:
    """A method on one condition: its models hold the condition until another session of the pipeline sets its own.

    `begin` starts an image; `step` until it returns False; then `result`. Images may follow each other.
    """

    def __init__(self, timers: SessionTimers, start: Callable[[Chance], DecodingSteps]) -> None:
        """Take what draws an image.

        Args:
            timers: Timers of the passes of the session's models.
            start: Starts an image under a source of random numbers.
        """
        self.timers = timers
        self._start = start
        self.cycle: Cycle | RepairCycle | CellStep | None = None
        """What the last step did; None before the first one, and once the image is finished."""
        self._steps: DecodingSteps | None = None
        self._result: DecodingResult | None = None

    def begin(self, chance: Chance) -> None:
        """Start an image; one that is under way is dropped."""
        self._steps, self._result, self.cycle = self._start(chance), None, None

    def step(self) -> bool:
        """Make one cycle of the method's loop.

        Returns:
            Whether the image may need another step.

        Raises:
            RuntimeError: No image was begun.
        """
        if self._steps is None:
            raise RuntimeError("session: no image is under way; call begin() before step()")
        try:
            self.cycle = next(self._steps)
        except StopIteration as stop:
            self._steps, self._result, self.cycle = None, stop.value, None
        return self._steps is not None

    def result(self) -> DecodingResult:
        """Return the image, once `step` has returned False.

        Raises:
            RuntimeError: The image is not finished.
        """
        if self._result is None:
            raise RuntimeError("session: no image is finished; call step() until it returns False")
        return self._result

    def decode(self, chance: Chance) -> DecodingResult:
        """Draw one image, from `begin` to `result`."""
        self.begin(chance)
        while self.step():
            pass
        return self.result()


@dataclass(frozen=True, slots=True)
class DecodingMethod(ABC):
    """A method ready to draw.

    name: what its figures stand under. config: what it was built from. lossless: whether the distribution of its
    pictures is the target's. drafts: whether it proposes tokens that it may reject.
    """

    name: str
    config: MethodConfig
    lossless: bool
    drafts: bool

    @property
    def drafts_rows(self) -> bool:
        """Whether it drafts whole rows and repairs them, so that a result has `repairs`."""
        return False

    @abstractmethod
    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Take the models from a pipeline.

        Raises:
            ValueError: The pipeline lacks a model, or the settings do not fit its grid.
        """

    def watched(self, watch: Callable[[Rule], RuleWatcher]) -> DecodingMethod | None:
        """Return this method with `watch` of its rule in the rule's place; None where there is nothing to watch."""
        return None
