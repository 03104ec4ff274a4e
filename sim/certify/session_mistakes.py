"""Known mistakes in the interplay of drafter and verifier: a correct session, and variants with one part changed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import index_of
from underpaint.sim.certify.case import Tokens
from underpaint.sim.certify.sessions import SessionModels, Step
from underpaint.sim.certify.subjects import round_to_bits
from underpaint.sim.certify.token_wise import residual_after


def _same(row: FloatArray) -> FloatArray:
    return row


@dataclass(frozen=True, slots=True)
class SpeculativeSession:
    """Speculative sampling of a chain, including its drafter; lossless with the default parts.

    Attributes:
        sampled: Maps the drafter's row to the row it draws from; the verifier gets the former.
        accept_noise: Picks the uniform of the accept test at a place, from the uniforms [2 n + 1], n and the place.
        recovery_noise: Picks the uniform of the draw after a rejection at a place, from the same arguments.
        carried: Whether a cycle's first accept test reuses the last rejected one's uniform.
    """

    sampled: Callable[[FloatArray], FloatArray] = _same
    accept_noise: Callable[[FloatArray, int, int], float] = lambda uniforms, length, place: uniforms[length + place]
    recovery_noise: Callable[[FloatArray, int, int], float] = lambda uniforms, length, place: uniforms[-1]
    carried: bool = False

    def __call__(self, models: SessionModels) -> Step:
        """Open a session."""
        length = models.length
        carried_noise: list[float] = []

        def step(before: Tokens, uniforms: FloatArray) -> Tokens:
            drafted: list[int] = []
            for place in range(length):
                drafted.append(index_of(self.sampled(models.draft((*before, *drafted))), float(uniforms[place])))
            for place, token in enumerate(drafted):
                context = (*before, *drafted[:place])
                target, draft = models.target(context), models.draft(context)
                noise = carried_noise.pop() if carried_noise else float(self.accept_noise(uniforms, length, place))
                if not noise * draft[token] < target[token]:
                    if self.carried:
                        carried_noise.append(noise)
                    residual = residual_after(target, draft, token)
                    return (*drafted[:place], index_of(residual, float(self.recovery_noise(uniforms, length, place))))
            return (*drafted, index_of(models.target((*before, *drafted)), float(uniforms[-1])))

        return step


class SessionMistake(NamedTuple):
    """A known mistake of a session.

    Attributes:
        name: Name of the mistake.
        summary: What the session does wrong, in words.
        report: Where it was reported, or "mutant".
        session: A session with this mistake.
        cycles: Number of consecutive cycles needed to reveal it.
    """

    name: str
    summary: str
    report: str
    session: SpeculativeSession
    cycles: int = 1


def _without_the_least(row: FloatArray) -> FloatArray:
    cut = row.copy()
    cut[int(np.argmin(np.where(row > 0.0, row, np.inf)))] = 0.0
    return cut if cut.any() else row


def _in_bfloat16(row: FloatArray) -> FloatArray:
    return round_to_bits(row, 8)


SESSION_MISTAKES: tuple[SessionMistake, ...] = (
    SessionMistake(
        "noise-shared-with-recovery",
        "the token after a rejection is drawn with the uniform that drew the rejected one",
        "mutant",
        SpeculativeSession(recovery_noise=lambda uniforms, length, place: uniforms[place]),
    ),
    SessionMistake(
        "top-k-not-reported",
        "the drafter draws from its likeliest tokens and reports the row before that cut",
        "mutant",
        SpeculativeSession(sampled=_without_the_least),
    ),
    SessionMistake(
        "temperature-not-reported",
        "the drafter draws at temperature 0.7 and reports the row at temperature 1",
        "mutant",
        SpeculativeSession(sampled=lambda row: row ** (1.0 / 0.7)),
    ),
    SessionMistake(
        "accept-uniform-reused",
        "the token after a rejection is drawn with the uniform of the failed accept test",
        "mutant",
        SpeculativeSession(recovery_noise=lambda uniforms, length, place: uniforms[length + place]),
    ),
    SessionMistake(
        "drawn-in-bfloat16",
        "the drafter draws from a row in bfloat16, the ratio is taken in full precision",
        "mutant",
        SpeculativeSession(sampled=_in_bfloat16),
    ),
    SessionMistake(
        "one-seed-for-all-tests",
        "every accept test of a cycle gets a generator with the same seed",
        "mutant",
        SpeculativeSession(accept_noise=lambda uniforms, length, place: uniforms[length]),
    ),
    SessionMistake(
        "noise-kept-between-cycles",
        "the first accept test of a cycle reads the uniform of the last cycle's rejected test",
        "mutant",
        SpeculativeSession(carried=True),
        cycles=2,
    ),
)
SESSIONS = {mistake.name: mistake for mistake in SESSION_MISTAKES}
RIGHT_SESSION = SpeculativeSession()
