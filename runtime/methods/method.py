"""The protocol of every method: `open` takes a pipeline's models, `step` runs one cycle, `result` returns the image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes, table_columns
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Cycle, Decoded, Drafter, Target
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.engine import PassTimer

if TYPE_CHECKING:
    from underpaint.algos.draft.costs import EngineCosts
    from underpaint.algos.protocols import Rule
    from underpaint.algos.spatial.mulo import RepairCycle
    from underpaint.algos.spatial.target import GridTarget
    from underpaint.algos.spatial.zipar import CellStep, GridDecoded
    from underpaint.runtime.methods.registry import MethodConfig
    from underpaint.runtime.resampling.resampler import Resampler

Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class ModelTables:
    """The tables of a model that rules and policies may use. Users cannot set settings of these names.

    Attributes:
        near: `neighbours`, or a function that finds them on first use.
        codebook: The vectors of the codes, [V, E].
        costs: Measured costs of the model's passes; None if they were not measured.
    """

    near: IntArray | Callable[[], IntArray]
    codebook: FloatArray
    costs: EngineCosts | None = None

    @classmethod
    def of(cls, codebook: FloatArray | None, codes: int, stored: Callable[[], IntArray] | None = None) -> ModelTables:
        """Return the tables of a codebook, whose nearest codes are found on first use, and then kept.

        Args:
            codebook: [V, E]; None if the model has none, and then there are no nearest codes.
            codes: The number of codes, V.
            stored: Reads the nearest codes; None computes them.
        """
        if codebook is None:
            return cls(np.empty((codes, 0), dtype=np.int64), np.empty((codes, 0)))
        return cls(cache(stored or partial(_nearest, codebook)), codebook)

    @property
    def neighbours(self) -> IntArray:
        """The nearest codes of each code, [V, k]; see `algos.accept.neighbours`."""
        return self.near() if callable(self.near) else self.near

    @property
    def vocab_size(self) -> int:
        """The number of codes, V."""
        return int(self.codebook.shape[0])


def _nearest(codebook: FloatArray) -> IntArray:
    columns = table_columns(len(codebook))
    return _nearest_of(codebook.tobytes(), codebook.dtype.str, codebook.shape, columns).copy()


@lru_cache(maxsize=2)
def _nearest_of(codes: bytes, dtype: str, shape: tuple[int, ...], k: int) -> IntArray:
    """`nearest_codes`, cached for models opened in turn with one tokenizer; the caller must copy it."""
    return nearest_codes(np.frombuffer(codes, dtype).reshape(shape), k)


GIVEN_BY_ENGINE: Final = ("neighbours", "codebook", "costs")
"""Settings of rules and policies that the model supplies."""


class Timed(NamedTuple, Generic[Model]):
    """A model and the timer of its passes, which accumulates over all images."""

    model: Model
    timer: PassTimer


class RuleWatcher(Protocol):
    """A `Rule` that decides as the rule it watches, and records every verdict."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """Decide as the watched rule does."""
        ...

    def skipped(self, tree: DraftTree, probs: FloatArray) -> None:
        """Record a tree that was not verified; probs: [V], the target's distribution after its root."""
        ...


class SessionTimers(NamedTuple):
    """The timers of a session's models; None for a model that the session does not use."""

    target: PassTimer
    drafter: PassTimer | None = None
    resampler: PassTimer | None = None


class Preview(NamedTuple):
    """The functions of a model that draws a small preview before each image, as GLM-Image does.

    Attributes:
        small: The grid of the preview.
        large: The grid of the image.
        timer: Timer of the passes.
        small_target: Returns the target of the preview, at temperature 0 if the argument is true.
        large_target: Returns the target of the image, which follows the given preview tokens.
        enlarge: Converts preview tokens into draft tokens of the image.
    """

    small: Grid
    large: Grid
    timer: PassTimer
    small_target: Callable[[bool], GridTarget]
    large_target: Callable[[IntArray], GridTarget]
    enlarge: Callable[[IntArray], IntArray]


class PipelineModels(Protocol):
    """The models and tables that a method takes from a pipeline."""

    @property
    def grid(self) -> Grid:
        """The grid of cells of an image."""
        ...

    @property
    def max_nodes(self) -> int:
        """Number of nodes, including the root, of the largest tree that the target can score."""
        ...

    @property
    def tables(self) -> ModelTables:
        """The codebook and the tables that belong to it."""
        ...

    def target(self, condition: Condition, sampling: SamplingParams) -> Timed[Target]:
        """Return the target, set to a condition until another one is set."""
        ...

    def drafter(self, sampling: SamplingParams) -> Timed[Drafter]:
        """Return the drafter, which reads the condition from the target's features."""
        ...

    def grid_target(self, condition: Condition, sampling: SamplingParams, cells: int = 1) -> Timed[GridTarget]:
        """Return the target set to a condition, for decoding cells in any order.

        Args:
            condition: The condition.
            sampling: The sampling parameters.
            cells: Number of cells in the largest pass.

        Raises:
            ValueError: The engine cannot run a pass of that size.
        """
        ...

    def low_target(
        self, condition: Condition, sampling: SamplingParams, ratio: int, cells: int = 1, int8: bool | None = None
    ) -> Timed[GridTarget]:
        """Return the target of images 1 / `ratio` as high and wide, set to a condition.

        Args:
            condition: The condition.
            sampling: The sampling parameters.
            ratio: The side of the image over that of the low image.
            cells: See `grid_target`.
            int8: Whether to take the 8-bit target; None takes it if the models have one.

        Raises:
            ValueError: There is no such target.
        """
        ...

    def preview(self, condition: Condition, sampling: SamplingParams) -> Preview | None:
        """Return the preview of a model that draws one before each image, else None."""
        ...

    def resampler(self, kind: str, ratio: int) -> Resampler:
        """Return the `kind` of resampler between the low and this resolution; raise ValueError if there is none."""
        ...


class DecodingResult(NamedTuple):
    """One decoded image and how it was decoded; a field is None where it does not apply.

    `cycles`, `repairs` or `steps` is the record of the decoding loop; one of the three is set, by the method's family.

    Attributes:
        tokens: [cells].
        accepted: Number of accepted draft tokens in each cycle after the first pass, which has no draft.
        depths: Number of levels of the draft tree in each of these cycles.
        kept_cells: The cells, ascending, whose draft token stayed.
        rejected: Number of draft tokens that the rule rejected, without the tokens that were redrawn around them.
        nodes: Number of drafted nodes in each of the cycles of `accepted`.
        cycles: Draft trees and verdicts.
        repairs: Drafted rows and their repairs.
        steps: The cells decided in each step.
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
        """Yield the cycles of an image that is decoded draft by draft, then return the result."""
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
        """Yield the steps of an image whose cells are decided in any order, then return the result."""
        decoded = yield from steps
        return cls(decoded.tokens, steps=decoded.steps)


DecodingSteps: TypeAlias = Generator[Any, None, DecodingResult]
"""A generator that decodes one image: it yields after every cycle, and returns the result."""


class DecodingSession:
    """A method opened on one condition, which its models keep until another session of the pipeline sets its own.

    Call `begin` to start an image, `step` until it returns False, then `result`. Repeat this for more images.
    """

    def __init__(self, timers: SessionTimers, start: Callable[[Chance], DecodingSteps]) -> None:
        """Create a session.

        Args:
            timers: Timers of the passes of the session's models.
            start: Starts an image with a source of random numbers.
        """
        self.timers = timers
        self._start = start
        self.cycle: Cycle | RepairCycle | CellStep | None = None
        """The cycle of the last step; None before the first step, and once the image is finished."""
        self._steps: DecodingSteps | None = None
        self._result: DecodingResult | None = None

    def begin(self, chance: Chance) -> None:
        """Start an image, and drop an unfinished one."""
        self._steps, self._result, self.cycle = self._start(chance), None, None

    def step(self) -> bool:
        """Run one cycle of the method's loop.

        Returns:
            Whether the image may need another step.

        Raises:
            RuntimeError: `begin` was not called.
        """
        if self._steps is None:
            raise RuntimeError("session: no image is under way; call begin() before step()")
        try:
            self.cycle = next(self._steps)
        except StopIteration as stop:
            self._steps, self._result, self.cycle = None, stop.value, None
        return self._steps is not None

    def result(self) -> DecodingResult:
        """Return the image, once `step` has returned False; raise RuntimeError if it is not finished."""
        if self._result is None:
            raise RuntimeError("session: no image is finished; call step() until it returns False")
        return self._result

    def decode(self, chance: Chance) -> DecodingResult:
        """Draw one image: call `begin`, `step` until it returns False, and `result`."""
        self.begin(chance)
        while self.step():
            pass
        return self.result()


@dataclass(frozen=True, slots=True)
class DecodingMethod(ABC):
    """A method that is ready to draw.

    Attributes:
        name: The name that reports use.
        config: The configuration that it was built from.
        lossless: Whether its images follow the target's distribution.
        drafts: Whether it proposes tokens that it may reject.
    """

    name: str
    config: MethodConfig
    lossless: bool
    drafts: bool

    @property
    def drafts_rows(self) -> bool:
        """Whether the method drafts whole rows and repairs them, so that a result has `repairs`."""
        return False

    @abstractmethod
    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Open a session on a pipeline's models and a condition.

        Raises:
            ValueError: The pipeline lacks a model, or the settings do not fit its grid.
        """

    def watched(self, watch: Callable[[Rule], RuleWatcher]) -> DecodingMethod | None:
        """Return this method with its rule replaced by `watch(rule)`, or None if it has no rule to watch."""
        return None
