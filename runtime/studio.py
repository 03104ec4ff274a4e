"""A studio: one set of models at one resolution, and everything that turns a prompt into a judged picture."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from algos.arrays import IntArray
from algos.chance import FromUniforms, sampling
from algos.draft import Grid
from algos.rows import Sampler
from algos.step import Drafter, Target, decode
from runtime.methods import Built, Codes, rule_sampler
from runtime.quality import Reading, Reference
from zoo.prompts import Prompt

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
    def sampler(self) -> Sampler:
        """How the models were meant to be sampled."""
        ...

    def described(self) -> Mapping[str, Any]:
        """The models and the engine, as JSON holds them; equal only if the pictures would be."""
        ...

    def target(self, prompt: Prompt, sampler: Sampler) -> Clocked[Target]:
        """The target on this prompt."""
        ...

    def drafter(self, sampler: Sampler) -> Clocked[Drafter]:
        """The drafter; it reads the prompt from the target's features."""
        ...

    def picture(self, tokens: IntArray) -> Picture:
        """The picture that tokens [cells] stand for."""
        ...

    def read(self, picture: Picture) -> Reading:
        """What the judge sees in a picture."""
        ...


@dataclass(frozen=True, slots=True)
class Drawing:
    """One drawn image, and what it cost.

    accepted, depths: per cycle after the first pass (which has no draft), the drafted tokens kept and the levels of
    the draft tree. seconds: from the condition to the last token; the picture's own decoding is not in it.
    target_seconds, drafter_seconds: within the forward passes.
    """

    method: str
    prompt: str
    seed: int
    tokens: tuple[int, ...]
    accepted: tuple[int, ...]
    depths: tuple[int, ...]
    target_nfe: int
    drafter_nfe: int
    seconds: float
    target_seconds: float
    drafter_seconds: float

    def tokens_array(self) -> IntArray:
        """[cells] int64."""
        return np.array(self.tokens, dtype=np.int64)


def randomness(prompt: Prompt, seed: int) -> FromUniforms:
    """The noise of a prompt's picture under a seed: the same in every command and for every method."""
    return sampling(seed, zlib.crc32(prompt.caption().encode()))


def draw(studio: Studio, built: Built, sampler: Sampler, prompt: Prompt, seed: int) -> Drawing:
    """Draw one image by one method."""
    used = rule_sampler(built.recipe, sampler)
    target = studio.target(prompt, used)
    drafter = studio.drafter(used) if built.drafts else None
    before = _Passes.of(target), _Passes.of(drafter)
    started = perf_counter()
    decoded = decode(
        target.model,
        drafter.model if drafter is not None else None,
        built.policy,
        built.rule,
        randomness(prompt, seed),
        studio.max_nodes,
    )
    seconds = perf_counter() - started
    verified, proposed = _Passes.of(target) - before[0], _Passes.of(drafter) - before[1]
    drafted = decoded.cycles[1:]
    return Drawing(
        method=built.name,
        prompt=prompt.caption(),
        seed=seed,
        tokens=tuple(decoded.tokens.tolist()),
        accepted=tuple(len(cycle.verdict.path) for cycle in drafted),
        depths=tuple(cycle.tree.depth for cycle in drafted),
        target_nfe=verified.passes,
        drafter_nfe=proposed.passes,
        seconds=seconds,
        target_seconds=verified.seconds,
        drafter_seconds=proposed.seconds,
    )


class _Passes(NamedTuple):
    """A reading of a clock; none of both where there is no model."""

    passes: int
    seconds: float

    @classmethod
    def of(cls, clocked: Clocked[Any] | None) -> _Passes:
        return cls(0, 0.0) if clocked is None else cls(clocked.spent.passes, clocked.spent.seconds)

    def __sub__(self, earlier: _Passes) -> _Passes:
        return _Passes(self.passes - earlier.passes, self.seconds - earlier.seconds)
