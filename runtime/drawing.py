"""Draw one image with one method, and record its cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import FromUniforms, sampling
from underpaint.algos.protocols import PassKind
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.strict_json import Within
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.engine import PassTimer
from underpaint.runtime.methods.method import DecodingMethod, DecodingSession, PipelineModels

MOST_COUNT: Final = 2**40
_MOST_SECONDS: Final = 1e9
"""Largest time of a record: thirty years."""
TRIAL_BATCHES: Final = 2
"""Number of batches that each of the two methods draws in a trial."""
Count: TypeAlias = Annotated[int, Within(0, MOST_COUNT)]
Seconds: TypeAlias = Annotated[float, Within(0.0, _MOST_SECONDS)]


class ImageTask(NamedTuple):
    """One picture to draw: its condition and the seed of its noise."""

    condition: Condition
    seed: int


def check_trial(method: DecodingMethod, batch: int, pictures: int) -> None:
    """Raise ValueError unless a method can be tried against plain autoregression with pictures left to draw after it.

    Args:
        method: The drafting method.
        batch: Number of images drawn together.
        pictures: Total number of pictures to draw.
    """
    if not (method.lossless and method.drafts):
        raise ValueError(
            f"--draft-if-faster: expected a lossless method that drafts, got '{method.name}': plain autoregression may "
            "draw in its place; name another with --method, or leave the option out"
        )
    least = 2 * TRIAL_BATCHES * batch + 1
    if pictures < least:
        raise ValueError(
            f"--draft-if-faster: expected at least {least} pictures in batches of {batch}, for a trial of both and one "
            f"picture more, got {pictures}; draw more, or leave the option out"
        )


Loop: TypeAlias = Literal["captured", "kernels", "host"]
"""See `Drawing.loop`."""
CAPTURED: Final[Loop] = "captured"
KERNELS: Final[Loop] = "kernels"
HOST: Final[Loop] = "host"


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """One drawn image and its cost.

    Attributes:
        accepted, depths, nodes, kept_cells, rejected: See `methods.method.DecodingResult`.
        seconds: Time from the condition to the last token; decoding the tokens to a picture is not included.
        target_seconds, drafter_seconds: Time inside the forward passes.
        resampler_seconds: Time spent resampling between two resolutions.
        batch: Number of images drawn together; the seconds are divided among them.
        device_seconds: Time inside the device's own program, which runs all models (target_seconds and
            drafter_seconds are then 0); None without a device.
        peak_bytes: Peak use of the device's memory.
        loop: "captured" (one CUDA graph per cycle), "kernels" (the device's kernels launched one by one) or "host"
            (Python around the passes of the models).
    """

    method: str
    prompt: str
    seed: Count
    tokens: tuple[Count, ...]
    accepted: tuple[Count, ...] | None
    depths: tuple[Count, ...] | None
    target_nfe: Annotated[int, Within(1, MOST_COUNT)]
    drafter_nfe: Count
    seconds: Annotated[float, Within(1e-9, _MOST_SECONDS)]
    target_seconds: Seconds
    drafter_seconds: Seconds
    kept_cells: tuple[Count, ...] | None = None
    rejected: Count | None = None
    resampler_seconds: Seconds = 0.0
    nodes: tuple[Count, ...] | None = None
    batch: Annotated[int, Within(1, MOST_COUNT)] = 1
    device_seconds: Seconds | None = None
    peak_bytes: Annotated[int, Within(0, 2**60)] | None = None
    loop: Loop = HOST

    def __repr__(self) -> str:
        return (
            f"<Drawing {self.prompt!r} by {self.method}, seed {self.seed}: {len(self.tokens)} tokens in "
            f"{self.target_nfe} target and {self.drafter_nfe} drafter passes, {self.seconds:.2f} s>"
        )

    def tokens_array(self) -> IntArray:
        """The tokens [cells] int64."""
        return np.array(self.tokens, dtype=np.int64)


def noise_of(condition: Condition, seed: int) -> FromUniforms:
    """The noise of a condition's picture for a seed: the same in every command and for every method."""
    return sampling(seed, condition.noise_key)


def draw(
    models: PipelineModels, method: DecodingMethod, params: SamplingParams, condition: Condition, seed: int
) -> Drawing:
    """Draw one image with one method."""
    return draw_in(method.open(models, condition, params), method.name, condition, seed)


def draw_in(session: DecodingSession, method: str, condition: Condition, seed: int) -> Drawing:
    """Draw one image in a session that was opened on its condition.

    Args:
        session: The method, opened on the condition.
        method: Name of the method, recorded in the drawing.
        condition: The condition that the session was opened on.
        seed: Seed of the noise.
    """
    before = [_Reading.of(timer) for timer in session.timers]
    started = perf_counter()
    result = session.decode(noise_of(condition, seed))
    seconds = perf_counter() - started
    target, drafter, resampler = (
        _Reading.of(timer) - earlier for timer, earlier in zip(session.timers, before, strict=True)
    )
    return Drawing(
        method=method,
        prompt=condition.caption(),
        seed=seed,
        tokens=tuple(result.tokens.tolist()),
        accepted=result.accepted,
        depths=result.depths,
        target_nfe=target.passes,
        drafter_nfe=drafter.passes,
        seconds=seconds,
        target_seconds=target.seconds,
        drafter_seconds=drafter.seconds,
        kept_cells=result.kept_cells,
        rejected=result.rejected,
        resampler_seconds=resampler.seconds,
        nodes=result.nodes,
    )


class CountedDrawing(NamedTuple):
    """A drawing, with the engine calls of its target and its drafter by kind."""

    drawing: Drawing
    target: Counter[PassKind]
    drafter: Counter[PassKind]

    @property
    def host_seconds(self) -> float:
        """Seconds that the drawing spent outside the models."""
        one = self.drawing
        return one.seconds - one.target_seconds - one.drafter_seconds - one.resampler_seconds


def draw_counted(session: DecodingSession, method: str, condition: Condition, seed: int) -> CountedDrawing:
    """Draw one image as `draw_in` does, and count the calls of the session's engines."""
    timers = session.timers.target, session.timers.drafter
    before = [Counter() if timer is None else timer.kinds.copy() for timer in timers]
    drawing = draw_in(session, method, condition, seed)
    after = [Counter() if timer is None else timer.kinds for timer in timers]
    return CountedDrawing(drawing, *(now - then for now, then in zip(after, before, strict=True)))


class _Reading(NamedTuple):
    """The state of a timer at one moment; zeros if there is no model."""

    passes: int
    seconds: float

    @classmethod
    def of(cls, timer: PassTimer | None) -> _Reading:
        return cls(0, 0.0) if timer is None else cls(timer.passes, timer.seconds)

    def __sub__(self, earlier: _Reading) -> _Reading:
        return _Reading(self.passes - earlier.passes, self.seconds - earlier.seconds)
