"""Which known mistake a verifier makes: the one whose decisions have the measured distributions, or the nearest."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from underpaint.algos.enumeration import total_variation
from underpaint.algos.tree import Verdict
from underpaint.sim.certify.adapters import WalkVerifier
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.measure import EXACT, measure
from underpaint.sim.certify.measurement import Effort, Measurement
from underpaint.sim.certify.mistakes import BY_NAME, MISTAKES
from underpaint.sim.certify.session_mistakes import SESSION_MISTAKES, SESSIONS
from underpaint.sim.certify.sessions import SessionVerifier
from underpaint.sim.certify.verifier import find_impossible

NEAR = 0.25
"""A mistake is reported as near if its distance is at most this share of its own total variation from the target."""
MISTAKE_EFFORT = Effort(checks=128)
"""Less effort, for measurements that are compared with a fully checked one: known mistakes and smaller cases."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """The known mistakes nearest to the verifier.

    Attributes:
        names: Names of the mistakes.
        same: Whether they match the verifier within tolerance on the cases.
        distance: Total variation from the nearest mistake's decisions, the largest over the cases; 1 if the faults
            differ.
        summary: Summary of the first mistake.
        report: Where the first mistake was reported, or "mutant".
    """

    names: tuple[str, ...]
    same: bool
    distance: float
    summary: str
    report: str


def looks_like(failing: Sequence[tuple[VerifierCase, Measurement]], cycles: int = 1) -> Likeness | None:
    """Find the known mistakes whose decisions have the measured distributions, or the nearest ones.

    Args:
        failing: Cases that show a fault, and their measurements. The smallest case comes last. It is compared with
            every mistake, the others only with the mistakes near it.
        cycles: Number of consecutive cycles of each case.

    Returns:
        The mistakes; None if none is near.
    """
    case, measurement = failing[-1]
    tolerance = 0.02 if any(measurement.how == "samples" for _, measurement in failing) else EXACT[24]
    decision = next((each for one in measurement.decisions for each in one), None)
    if cycles > 1 or (decision is not None and not isinstance(decision, Verdict)):
        descriptions = {one.name: (one.summary, one.report) for one in SESSION_MISTAKES}
        tolerance = min(tolerance, 0.1 * measurement.total_variation)
    else:
        mistakes = [one for one in MISTAKES if all(case.drawn in one.drawn for case, _ in failing)]
        descriptions = {one.name: (one.summary, one.report) for one in mistakes}
    scores = dict.fromkeys(descriptions, 0.0)
    for case, measurement in reversed(failing):
        for name in scores:
            scores[name] = max(scores[name], _distance(case, measurement, _by_mistake(name, case, cycles)))
        same = {name: score for name, score in scores.items() if score <= tolerance}
        near = {
            name: score
            for name, score in scores.items()
            if score <= NEAR * _by_mistake(name, case, cycles).total_variation
        }
        scores = same or near
    if not scores:
        return None
    best = min(scores.values())
    names = tuple(name for name, score in scores.items() if score <= max(best, tolerance))
    return Likeness(names, best <= tolerance, best, *descriptions[names[0]])


@lru_cache(maxsize=512)
def _by_mistake(name: str, case: VerifierCase, cycles: int) -> Measurement:
    if name in SESSIONS:
        return measure(case, SessionVerifier(SESSIONS[name].session), replace(MISTAKE_EFFORT, cycles=cycles))
    return measure(case, WalkVerifier(BY_NAME[name].verify), MISTAKE_EFFORT)


def _distance(case: VerifierCase, measurement: Measurement, other: Measurement) -> float:
    """Total variation between the decisions of two verifiers; 1 if they do not show the same fault."""
    kinds = [one.fault.kind if one.fault else None for one in (measurement, other)]
    if kinds[0] != kinds[1] or measurement.stopped or other.stopped:
        same = measurement.fault == other.fault and measurement.fault_noise == other.fault_noise
        return 0.0 if same and measurement.stopped and other.stopped else 1.0
    if len(measurement.decisions) != len(case.drafts):  # a session has one distribution, of the emitted tokens
        return total_variation(measurement.decisions[0], other.decisions[0])
    if _impossible(case, measurement.decisions) != _impossible(case, other.decisions) and measurement.how != "samples":
        return 1.0
    return sum(
        weight * total_variation(one, two)
        for (weight, _), one, two in zip(case.drafts, measurement.decisions, other.decisions, strict=True)
    )


def _impossible(case: VerifierCase, decisions: Sequence[Mapping[Hashable, float]]) -> set[tuple[int, Hashable]]:
    return {
        (item, verdict)
        for item, ((_, draft), one) in enumerate(zip(case.drafts, decisions, strict=True))
        for verdict in one
        if isinstance(verdict, Verdict) and find_impossible(draft, verdict) is not None
    }
