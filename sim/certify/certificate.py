"""Certify a verifier: is it lossless? If not: its bias, smallest failing case, failing node and nearest known slip."""

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from underpaint.algos.enumeration import total_variation
from underpaint.algos.tree import Drawn, Verdict
from underpaint.sim.certify.adapters import WalkVerifier
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.measure import EXACT, find_bits, measure
from underpaint.sim.certify.measurement import Effort, Kind, Measurement
from underpaint.sim.certify.search import cases_to_judge, fixed_cases, precision_case, shrink
from underpaint.sim.certify.session_slips import SESSION_SLIPS, SESSIONS
from underpaint.sim.certify.sessions import SessionVerifier
from underpaint.sim.certify.slips import BY_NAME, SLIPS
from underpaint.sim.certify.verifier import Fault, Verifier, VerifierStopped, find_impossible, session_uniforms

VerdictName: TypeAlias = Literal["lossless", "lossless but for a boundary", "within its bound", "biased", "faulty"]
"""The verdict of a certificate. "lossless": the target's distribution on every case. "lossless but for a boundary": the
same up to rounding, but a uniform at the end of its range emits a token of probability 0. "within its bound": biased by
no more than it promises. "biased": by more. "faulty": it raised an error, hung, or returned an invalid decision."""
KINDS: tuple[Kind, ...] = ("faulty", "biased", "boundary")
"""The kinds of failing cases, the worst first."""
FULL_EFFORT_CASES = 3
"""After this many biased cases, the remaining cases are only counted, so they are measured with less effort."""
KEPT_SHARE = 0.5
"""A smaller case replaces a biased one if it keeps at least this share of its total variation."""
NEAR = 0.25
"""A slip is reported as near if its distance is at most this share of its own total variation from the target."""
SLIP_EFFORT = Effort(checks=128)
"""Less effort, for measurements that are compared with a fully checked one: known slips and smaller cases."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """The known slips nearest to the verifier. same: whether they match it within tolerance on the cases."""

    names: tuple[str, ...]
    same: bool
    distance: float
    summary: str
    report: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The failing cases of one kind.

    Attributes:
        kind: What the cases show.
        count: Number of cases of this kind.
        worst: The case with the largest total variation.
        total_variation: The total variation of `worst`.
        case: The smallest case found that fails in the same way.
        measured: The measurement of `case`.
        shrunk: Whether no part of `case` can be removed.
    """

    kind: Kind
    count: int
    worst: VerifierCase
    total_variation: float
    case: VerifierCase
    measured: Measurement
    shrunk: bool


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of certifying a verifier.

    Attributes:
        verdict: The verdict.
        promise: The largest total variation that the verifier promises; None if it promises none.
        drawn: How siblings were drawn.
        chain: Whether only chains were tested.
        bits: The resolution of the test, see `Verifier.bits`.
        cycles: Number of consecutive cycles in each case.
        cases: Number of tested cases.
        asked: Number of decisions requested from the verifier.
        seconds: Duration of the test.
        how: The methods by which distributions were measured.
        largest: The largest total variation of a case that no fault stopped.
        unseen: The largest `Measurement.unseen` of a case.
        findings: One finding per kind of failing case, the worst kind first.
        looks_like: The nearest known slips; None if there is no finding, or none is near.
    """

    verdict: VerdictName
    promise: float | None
    drawn: Drawn
    chain: bool
    bits: int
    cycles: int
    cases: int
    asked: int
    seconds: float
    how: tuple[str, ...]
    largest: float
    unseen: float
    findings: tuple[Finding, ...] = ()
    looks_like: Likeness | None = None

    @property
    def lossless(self) -> bool:
        """Whether the verdict is "lossless", without reservation."""
        return self.verdict == "lossless"

    @property
    def first(self) -> Finding:
        """The finding of the worst kind; IndexError if there are no findings."""
        return self.findings[0]

    def count(self, kind: Kind) -> int:
        """Number of failing cases of one kind."""
        return sum(one.count for one in self.findings if one.kind == kind)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("how", "findings", "looks_like")}
        return {
            **plain,
            "how": list(self.how),
            "findings": [
                {
                    "kind": one.kind,
                    "count": one.count,
                    "worst": one.worst.to_dict(),
                    "total_variation": one.total_variation,
                    "case": one.case.to_dict(),
                    "finding": finding_to_dict(one.measured),
                    "shrunk": one.shrunk,
                }
                for one in self.findings
            ],
            "looks_like": None if self.looks_like is None else asdict(self.looks_like),
        }


@dataclass(slots=True)
class _Tally:
    cases: list[tuple[VerifierCase, Measurement]] = field(default_factory=list)

    def of(self, kind: Kind) -> list[tuple[VerifierCase, Measurement]]:
        """The cases of one kind, the largest total variation first."""
        cases = [one for one in self.cases if one[1].kind == kind]
        return sorted(cases, key=lambda one: -one[1].total_variation)

    def verdict(self, promise: float | None, bits: int) -> VerdictName:
        biased = self.of("biased")
        if self.of("faulty"):
            return "faulty"
        if biased:
            limit = -1.0 if promise is None else promise + EXACT[bits]
            return "within its bound" if max(one.at_least for _, one in biased) <= limit else "biased"
        return "lossless but for a boundary" if self.of("boundary") else "lossless"


def certify(
    verifier: Verifier,
    drawn: Drawn,
    chain: bool = False,
    count: int = 24,
    seed: int = 0,
    effort: Effort | None = None,
    shrink_seconds: float = 15.0,
    seconds: float = 300.0,
    promise: float | None = None,
) -> Certificate:
    """Test a verifier on fixed and random cases, and shrink the cases on which it fails.

    Args:
        verifier: The verifier to test.
        drawn: How siblings are drawn.
        chain: Test chains only.
        count: Number of cases.
        seed: Seed of the random cases.
        effort: Work per case; if its `bits` is None, the verifier's resolution is measured first.
        shrink_seconds: Time limit for shrinking the failing case of each kind.
        seconds: Start no further case after this time; `Certificate.cases` is the number of tested cases.
        promise: The largest total variation of a cycle's tokens that a relaxed verifier promises.
    """
    effort = effort or Effort(seed=seed)
    begun = time.monotonic()
    if effort.bits is None:
        effort = replace(effort, bits=find_bits(verifier, precision_case(drawn)))
    assert effort.bits is not None
    quick = replace(effort, checks=min(effort.checks, SLIP_EFFORT.checks))
    tally = _Tally()
    for case in cases_to_judge(drawn, chain, count, seed, effort.cycles):
        if time.monotonic() - begun > seconds and tally.cases:
            break
        enough = len(tally.of("biased")) >= FULL_EFFORT_CASES
        measurement = measure(case, verifier, quick if enough else effort)
        tally.cases.append((case, measurement))
        if measurement.fault is not None and measurement.fault.kind == "hang":
            break  # every further hang would cost a whole time-out
    findings = tuple(
        _finding(kind, tally.of(kind), verifier, effort, shrink_seconds) for kind in KINDS if tally.of(kind)
    )
    likeness = None
    if findings:
        first = findings[0]
        likeness = looks_like([*tally.of(first.kind)[:FULL_EFFORT_CASES], (first.case, first.measured)], effort.cycles)
    return Certificate(
        verdict=tally.verdict(promise, effort.bits),
        promise=promise,
        drawn=drawn,
        chain=chain,
        bits=effort.bits,
        cycles=effort.cycles,
        cases=len(tally.cases),
        asked=sum(one.asked for _, one in tally.cases),
        seconds=time.monotonic() - begun,
        how=tuple(sorted({one.how for _, one in tally.cases})),
        largest=max((one.total_variation for _, one in tally.cases if not one.stopped), default=0.0),
        unseen=max(one.unseen for _, one in tally.cases),
        findings=findings,
        looks_like=likeness,
    )


def _finding(
    kind: Kind, failing: list[tuple[VerifierCase, Measurement]], verifier: Verifier, effort: Effort, seconds: float
) -> Finding:
    """Shrink the case with the largest total variation; it must keep its kind."""
    worst, seen = failing[0]
    fault = seen.fault.kind if seen.fault and kind == "faulty" else None
    quick = replace(effort, checks=min(effort.checks, SLIP_EFFORT.checks))
    least = KEPT_SHARE * seen.total_variation if kind == "biased" else 0.0

    def fails(one: VerifierCase) -> bool:
        got = measure(one, verifier, quick)
        same = got.kind == kind and (fault is None or (got.fault is not None and got.fault.kind == fault))
        return same and got.total_variation >= least

    case, shrunk = shrink(fails, worst, 0.0 if fault == "hang" else seconds)
    measured = measure(case, verifier, effort)
    if measured.kind != kind:  # the verifier decided differently this time: keep the first measurement
        case, measured, shrunk = worst, seen, False
    return Finding(kind, len(failing), worst, seen.total_variation, case, measured, shrunk)


def check_first_call(verifier: Verifier, drawn: Drawn, chain: bool) -> None:
    """Raise ValueError if a verifier's first call raises an error or returns no valid decision. Then the function is no
    verifier, or needs another interface. Errors of later calls are findings instead.
    """
    case = fixed_cases(drawn, chain)[0]
    draft = case.drafts[0].draft
    noise = np.full((1, 1), 1.0) if verifier.noise == "seeds" else np.full((1, draft.tree.size + 1), 0.5)
    try:
        if verifier.noise == "decisions":
            reply: object = verifier.enumerate(draft)
        elif verifier.noise == "session":
            reply = next(iter(verifier.run(case, 1, np.full((1, session_uniforms(case)), 0.5))), None)
        else:
            reply = next(iter(verifier.decide([draft], noise)), None)
    except VerifierStopped as stopped:
        reply = stopped.fault
    if isinstance(reply, Fault) and reply.kind in ("crash", "noise", "bad reply"):
        remedy = "" if "mend it there" in reply.detail else ": mend it, or choose another --as"
        expected = "the cycle's tokens" if verifier.noise == "session" else "(path, token)"
        raise ValueError(
            f"its first call is no decision ({reply.kind}: {reply.detail}); expected {expected} as "
            f"docs/how-to/certify-a-verifier.md says{remedy}"
        )


def looks_like(failing: Sequence[tuple[VerifierCase, Measurement]], cycles: int = 1) -> Likeness | None:
    """Find the known slips whose decisions have the measured distributions, or the nearest ones. failing: the smallest
    case comes last. It is compared with every slip, the others only with the slips near it.
    """
    case, measurement = failing[-1]
    tolerance = 0.02 if any(measurement.how == "samples" for _, measurement in failing) else EXACT[24]
    if cycles > 1 or (measurement.decisions and not isinstance(next(iter(measurement.decisions[0])), Verdict)):
        descriptions = {slip.name: (slip.summary, slip.report) for slip in SESSION_SLIPS}
        tolerance = min(tolerance, 0.1 * measurement.total_variation)
    else:
        slips = [slip for slip in SLIPS if all(case.drawn in slip.drawn for case, _ in failing)]
        descriptions = {slip.name: (slip.summary, slip.report) for slip in slips}
    scores = dict.fromkeys(descriptions, 0.0)
    for case, measurement in reversed(failing):
        for name in scores:
            scores[name] = max(scores[name], _distance(case, measurement, _by_slip(name, case, cycles)))
        same = {name: score for name, score in scores.items() if score <= tolerance}
        near = {
            name: score
            for name, score in scores.items()
            if score <= NEAR * _by_slip(name, case, cycles).total_variation
        }
        scores = same or near
    if not scores:
        return None
    best = min(scores.values())
    names = tuple(name for name, score in scores.items() if score <= max(best, tolerance))
    return Likeness(names, best <= tolerance, best, *descriptions[names[0]])


@lru_cache(maxsize=512)
def _by_slip(name: str, case: VerifierCase, cycles: int) -> Measurement:
    if name in SESSIONS:
        return measure(case, SessionVerifier(SESSIONS[name].session), replace(SLIP_EFFORT, cycles=cycles))
    return measure(case, WalkVerifier(BY_NAME[name].verify), SLIP_EFFORT)


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


def finding_to_dict(measurement: Measurement) -> dict[str, Any]:
    """Convert a measurement to plain values for JSON, without its distributions of decisions."""
    return {
        "how": measurement.how,
        "total_variation": measurement.total_variation,
        "unseen": measurement.unseen,
        "node": failing_node(measurement),
        "fault": None if measurement.fault is None else asdict(measurement.fault),
        "fault_tokens": list(measurement.fault_tokens),
        "fault_noise": list(measurement.fault_noise),
        "difference": None if measurement.difference is None else asdict(measurement.difference),
    }


def failing_node(measurement: Measurement) -> int | None:
    """The node at which a case fails: where the distribution first differs, or else the node of the fault."""
    if measurement.difference is not None:
        return measurement.difference.node
    return measurement.fault.node if measurement.fault is not None else None
