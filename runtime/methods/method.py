"""What a method is: it opens a pipeline's models under one condition, and then draws images with them."""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.mulo import RepairCycle
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import Cycle, Decoded, Drafter, Target
from underpaint.artifacts.cost_curve import EngineCosts
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.engine import PassTimer
from underpaint.runtime.resampling.resampler import Resampler

Model = TypeVar("Model")


class ModelTables(NamedTuple):
    """What rules and policies may ask of a model. Their settings of these names never come from a user.

    neighbours: [V, k] the nearest codes of each code, see `algos.accept.neighbours`. codebook: [V, E].
    costs: of the model's passes, as measured; None where they were not.
    """

    neighbours: IntArray
    codebook: FloatArray
    costs: EngineCosts | None = None

    @property
    def vocab_size(self) -> int:
        """V, the number of codes."""
        return int(self.codebook.shape[0])


GIVEN_BY_ENGINE: Final = ModelTables._fields
"""Settings of rules and policies that come from the model."""


class Timed(NamedTuple, Generic[Model]):
    """A model and the timer of its passes, which counts over all images."""

    model: Model
    timer: PassTimer


class SessionTimers(NamedTuple):
    """The timers of a session's models; None where it has no such model."""

    target: PassTimer
    drafter: PassTimer | None = None
    resampler: PassTimer | None = None


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
    def of_cycles(cls, decoded: Decoded) -> DecodingResult:
        """Of an image that was decoded draft by draft."""
        drafted = decoded.cycles[1:]
        return cls(
            decoded.tokens,
            accepted=tuple(len(cycle.verdict.path) for cycle in drafted),
            depths=tuple(cycle.tree.depth for cycle in drafted),
            nodes=tuple(cycle.tree.size - 1 for cycle in drafted),
            cycles=decoded.cycles,
        )


class DecodingSession(Protocol):
    """A method on one condition: models that hold it until another session of the pipeline sets its own."""

    @property
    def timers(self) -> SessionTimers:
        """Timers of the passes of the session's models."""
        ...

    def decode(self, chance: Chance) -> DecodingResult:
        """Draw one image."""
        ...


class ConfigDict(Protocol):
    """A configuration that JSON can hold."""

    def to_dict(self) -> dict[str, Any]:
        """It as JSON holds it."""
        ...


class DecodingMethod(Protocol):
    """A method ready to draw."""

    @property
    def name(self) -> str:
        """What its figures stand under."""
        ...

    @property
    def config(self) -> ConfigDict:
        """What it was built from."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether the distribution of its pictures is the target's."""
        ...

    @property
    def drafts(self) -> bool:
        """Whether it proposes tokens that it may reject."""
        ...

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Take the models from a pipeline; ValueError where it lacks one, or the settings do not fit its grid."""
        ...
