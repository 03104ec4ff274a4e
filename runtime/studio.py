"""A studio: one set of models at one resolution, and everything that turns a prompt into a judged picture."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import Chance, FromUniforms, sampling
from underpaint.algos.draft import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import Drafter, Target
from underpaint.runtime.codes import Codes
from underpaint.runtime.evaluation.quality import Reading, Reference
from underpaint.runtime.resampling.resampler import Resampler
from underpaint.zoo.prompts import Prompt

Picture = NDArray[np.uint8]
"""[side, side, 3] sRGB."""


class Spending(Protocol):
    """What the forward passes of a model took so far, over all images."""

    @property
    def passes(self) -> int:
        """Calls."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds within them."""
        ...


Model = TypeVar("Model")


class Clocked(NamedTuple, Generic[Model]):
    """A model and the clock of its passes."""

    model: Model
    spent: Spending


class Studio(Protocol):
    """The models behind a picture."""

    @property
    def side(self) -> int:
        """Side of the pictures in pixels."""
        ...

    @property
    def grid(self) -> Grid:
        """The image as cells."""
        ...

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest tree that the target scores, its root included."""
        ...

    @property
    def codes(self) -> Codes:
        """The codebook, and the nearest codes of each code."""
        ...

    @property
    def reference(self) -> Reference:
        """Real scenes as the judge sees them."""
        ...

    @property
    def sampler(self) -> SamplingParams:
        """How the models were meant to be sampled."""
        ...

    def fingerprint(self) -> Mapping[str, Any]:
        """The models and the engine, as JSON holds them; equal only if the pictures would be."""
        ...

    def target(self, prompt: Prompt, sampler: SamplingParams) -> Clocked[Target]:
        """The target on this prompt."""
        ...

    def drafter(self, sampler: SamplingParams) -> Clocked[Drafter]:
        """The drafter; it reads the prompt from the target's features."""
        ...

    def grid_target(self, prompt: Prompt, sampler: SamplingParams, cells: int = 1) -> Clocked[GridTarget]:
        """The target on this prompt, cell by cell in any order; ValueError where its engine cannot pass over `cells`.

        cells: of the largest pass that is foreseen.
        """
        ...

    def low_target(self, prompt: Prompt, sampler: SamplingParams, ratio: int, cells: int = 1) -> Clocked[GridTarget]:
        """The target of pictures 1 / `ratio` as high and wide; ValueError where there is none. cells: as above."""
        ...

    def resampler(self, kind: str, ratio: int) -> Resampler:
        """Tokens between the low and this resolution, in the way named `kind`; ValueError where there is none."""
        ...

    def picture(self, tokens: IntArray) -> Picture:
        """The picture that tokens [cells] stand for."""
        ...

    def read(self, picture: Picture) -> Reading:
        """What the judge sees in a picture."""
        ...


class Clocks(NamedTuple):
    """The clocks of a method's models; None where it has no such model."""

    target: Spending
    drafter: Spending | None = None
    resampler: Spending | None = None


class Outcome(NamedTuple):
    """What a method says of one image; None where it does not apply.

    tokens: [cells]. accepted, depths: per cycle after the first pass (which has no draft), the drafted tokens kept and
    the levels of the draft tree. kept: the cells, ascending, that hold what was drafted for them. rejected: drafted
    tokens that the rule refused; what was redrawn around them is not in it.
    """

    tokens: IntArray
    accepted: tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None
    kept: tuple[int, ...] | None = None
    rejected: int | None = None


class Session(Protocol):
    """A method on one prompt: models that hold a condition until another session of the studio sets theirs."""

    @property
    def clocks(self) -> Clocks:
        """Of its models."""
        ...

    def decode(self, chance: Chance) -> Outcome:
        """Draw one image."""
        ...


class Built(Protocol):
    """A method ready to draw."""

    @property
    def name(self) -> str:
        """What its figures stand under."""
        ...

    @property
    def recipe(self) -> Plain:
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

    def open(self, studio: Studio, prompt: Prompt, sampler: SamplingParams) -> Session:
        """Take the models from a studio; ValueError where it lacks one, or the settings do not fit its grid."""
        ...


class Plain(Protocol):
    """Something that JSON can hold."""

    def to_dict(self) -> dict[str, Any]:
        """It as JSON holds it."""
        ...


@dataclass(frozen=True, slots=True)
class Drawing:
    """One drawn image, and what it cost.

    accepted, depths, kept, rejected: see `Outcome`. seconds: from the condition to the last token; the picture's own
    decoding is not in it. target_seconds, drafter_seconds: within the forward passes; resampler_seconds: between two
    resolutions.
    """

    method: str
    prompt: str
    seed: int
    tokens: tuple[int, ...]
    accepted: tuple[int, ...] | None
    depths: tuple[int, ...] | None
    target_nfe: int
    drafter_nfe: int
    seconds: float
    target_seconds: float
    drafter_seconds: float
    kept: tuple[int, ...] | None = None
    rejected: int | None = None
    resampler_seconds: float = 0.0

    def tokens_array(self) -> IntArray:
        """[cells] int64."""
        return np.array(self.tokens, dtype=np.int64)


def randomness(prompt: Prompt, seed: int) -> FromUniforms:
    """The noise of a prompt's picture under a seed: the same in every command and for every method."""
    return sampling(seed, zlib.crc32(prompt.caption().encode()))


def draw(studio: Studio, built: Built, sampler: SamplingParams, prompt: Prompt, seed: int) -> Drawing:
    """Draw one image by one method."""
    session = built.open(studio, prompt, sampler)
    before = [_Passes.of(clock) for clock in session.clocks]
    started = perf_counter()
    outcome = session.decode(randomness(prompt, seed))
    seconds = perf_counter() - started
    verified, proposed, resampled = (
        _Passes.of(clock) - earlier for clock, earlier in zip(session.clocks, before, strict=True)
    )
    return Drawing(
        method=built.name,
        prompt=prompt.caption(),
        seed=seed,
        tokens=tuple(outcome.tokens.tolist()),
        accepted=outcome.accepted,
        depths=outcome.depths,
        target_nfe=verified.passes,
        drafter_nfe=proposed.passes,
        seconds=seconds,
        target_seconds=verified.seconds,
        drafter_seconds=proposed.seconds,
        kept=outcome.kept,
        rejected=outcome.rejected,
        resampler_seconds=resampled.seconds,
    )


class _Passes(NamedTuple):
    """A reading of a clock; none of both where there is no model."""

    passes: int
    seconds: float

    @classmethod
    def of(cls, spent: Spending | None) -> _Passes:
        return cls(0, 0.0) if spent is None else cls(spent.passes, spent.seconds)

    def __sub__(self, earlier: _Passes) -> _Passes:
        return _Passes(self.passes - earlier.passes, self.seconds - earlier.seconds)
