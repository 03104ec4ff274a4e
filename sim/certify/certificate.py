"""Certify a verifier: is it lossless? If not: its bias, smallest failing case, failing node, nearest known mistake."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from underpaint.algos.tree import Drawn
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.likeness import MISTAKE_EFFORT, Likeness, looks_like
from underpaint.sim.certify.measure import EXACT, find_bits, measure
from underpaint.sim.certify.measurement import Effort, Kind, Measurement
from underpaint.sim.certify.search import cases_to_judge, fixed_cases, precision_case, shrink
from underpaint.sim.certify.verifier import Fault, Verifier, VerifierStopped, session_uniforms

VerdictName: TypeAlias = Literal["lossless", "lossless but for a boundary", "within its bound", "biased", "faulty"]
"""The verdict of a certificate. "lossless": the target's distribution on every case. "lossless but for a boundary": the
same up to rounding, but a uniform at the end of its range emits a token of probability 0. "within its bound": biased by
no more than it promises, as far as samples show. "biased": by more. "faulty": it raised an error, hung, or returned an
invalid decision."""
KINDS: tuple[Kind, ...] = ("faulty", "biased", "boundary")
"""The kinds of failing cases, the worst first."""
FULL_EFFORT_CASES = 3
"""After this many biased cases, the remaining cases are only counted, so they are measured with less effort."""
KEPT_SHARE = 0.5
"""A smaller case replaces a biased one if it keeps at least this share of its total variation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The failing cases of one kind.

    Attributes:
        kind: What the cases show.
        count: Number of cases of this kind.
        worst: The case with the largest total variation; if some break a promise, of those.
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
        at_most: The largest upper limit of the total variation of a biased case; 0 without one.
        findings: One finding per kind of failing case, the worst kind first.
        looks_like: The nearest known mistakes; None if there is no finding, or none is near.
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
    at_most: float
    findings: tuple[Finding, ...] = ()
    looks_like: Likeness | None = None

    @property
    def lossless(self) -> bool:
        """Whether the verdict is "lossless", without reservation."""
        return self.verdict == "lossless"

    @property
    def first(self) -> Finding:
        """The finding of the worst kind, but none that keeps the promise if there is another; else IndexError."""
        kept = "biased" if self.verdict == "within its bound" else None
        return next((one for one in self.findings if one.kind != kept), self.findings[0])

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


def verdict_of(measurements: Sequence[Measurement], promise: float | None, bits: int) -> VerdictName:
    """The verdict on a verifier that was measured at this precision; see `certify` for its promise."""
    kinds = {one.kind for one in measurements}
    if "faulty" in kinds:
        return "faulty"
    if "biased" in kinds:
        kept = max(one.at_least for one in measurements) <= _limit(promise, bits)
        return "within its bound" if kept else "biased"
    return "lossless but for a boundary" if "boundary" in kinds else "lossless"


def _limit(promise: float | None, bits: int) -> float:
    """The largest total variation that keeps a promise, rounding included; below 0 without a promise."""
    return -1.0 if promise is None else promise + EXACT[bits]


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
    quick = replace(effort, checks=min(effort.checks, MISTAKE_EFFORT.checks))
    tally = _Tally()
    for case in cases_to_judge(drawn, chain, count, seed, effort.cycles):
        if time.monotonic() - begun > seconds and tally.cases:
            break
        enough = len(tally.of("biased")) >= FULL_EFFORT_CASES
        measurement = measure(case, verifier, quick if enough else effort)
        tally.cases.append((case, measurement))
        if measurement.fault is not None and measurement.fault.kind == "hang":
            break  # every further hang would cost a whole time-out
    limit = _limit(promise, effort.bits)
    findings = tuple(
        _finding(kind, tally.of(kind), verifier, effort, shrink_seconds, limit) for kind in KINDS if tally.of(kind)
    )
    likeness = None
    if findings:
        first = findings[0]
        likeness = looks_like([*tally.of(first.kind)[:FULL_EFFORT_CASES], (first.case, first.measured)], effort.cycles)
    return Certificate(
        verdict=verdict_of([one for _, one in tally.cases], promise, effort.bits),
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
        at_most=max((one.difference.highest for _, one in tally.cases if one.difference), default=0.0),
        findings=findings,
        looks_like=likeness,
    )


def _finding(
    kind: Kind,
    failing: list[tuple[VerifierCase, Measurement]],
    verifier: Verifier,
    effort: Effort,
    seconds: float,
    limit: float,
) -> Finding:
    """Shrink the worst case of a kind; it must fail in the same way, and stay above the limit if it is above it."""
    above = [one for one in failing if one[1].at_least > limit]
    worst, seen = (above or failing)[0]
    quick = replace(effort, checks=min(effort.checks, MISTAKE_EFFORT.checks))
    least = KEPT_SHARE * seen.total_variation

    def fails_alike(got: Measurement) -> bool:
        if kind == "biased":
            return got.kind == kind and got.total_variation >= least and (not above or got.at_least > limit)
        return got.kind == kind and _name_of(got.fault) == _name_of(seen.fault)

    hangs = seen.fault is not None and seen.fault.kind == "hang"
    case, shrunk = shrink(lambda one: fails_alike(measure(one, verifier, quick)), worst, 0.0 if hangs else seconds)
    measured = measure(case, verifier, effort)
    if not fails_alike(measured):  # the verifier decided differently this time: keep the first measurement
        case, measured, shrunk = worst, seen, False
    return Finding(kind, len(failing), worst, seen.total_variation, case, measured, shrunk)


def _name_of(fault: Fault | None) -> str | None:
    """What a fault is called: its kind, and for a crash the exception."""
    if fault is None:
        return None
    return f"{fault.kind}: {fault.detail.partition(':')[0]}" if fault.kind == "crash" else fault.kind


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
