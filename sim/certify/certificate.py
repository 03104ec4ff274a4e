"""Judge a verifier: lossless or not, how far off, on which smallest case, at which node, and like which known slip."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from underpaint.algos.enumeration import total_variation
from underpaint.algos.tree import Drawn, Verdict
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.measure import EXACT, measure
from underpaint.sim.certify.measurement import Effort, Measurement
from underpaint.sim.certify.search import cases_to_judge, fixed_cases, shrink
from underpaint.sim.certify.slips import BY_NAME, SLIPS
from underpaint.sim.certify.token_wise import InProcess
from underpaint.sim.certify.verifier import Fault, Verifier, VerifierStopped, find_impossible

MOST_FAILING = 3
"""Failing cases that are collected before the smallest one is looked for."""
NEAR = 0.25
"""A slip is named as the nearest where the distance to it is at most this share of its distance from the right rule."""
SLIP_EFFORT = Effort(checks=128)
"""Enough for what is compared with a measurement that was checked: a slip, or a smaller case on the way."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """Known slips that decide as the verifier does. same: to rounding, on every failing case; else the nearest."""

    names: tuple[str, ...]
    same: bool
    distance: float
    summary: str
    report: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """The judgement of a verifier.

    cases: judged; asked: decisions asked for; seconds: taken. how: the ways its distributions were found. largest:
    total variation of any case that passed. unseen: see `Measurement`, the largest of any case. failing: the smallest
    failing case, None if lossless; shrunk: whether no part of it can be taken away.
    """

    lossless: bool
    drawn: Drawn
    chain: bool
    cases: int
    asked: int
    seconds: float
    how: tuple[str, ...]
    largest: float
    unseen: float
    failing: VerifierCase | None = None
    finding: Measurement | None = None
    looks_like: Likeness | None = None
    shrunk: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        plain = {
            name: getattr(self, name)
            for name in ("lossless", "drawn", "chain", "cases", "asked", "seconds", "largest", "unseen", "shrunk")
        }
        return {
            **plain,
            "how": list(self.how),
            "failing": None if self.failing is None else self.failing.to_dict(),
            "finding": None if self.finding is None else finding_to_dict(self.finding),
            "looks_like": None if self.looks_like is None else asdict(self.looks_like),
        }


@dataclass(slots=True)
class _Tally:
    failing: list[tuple[VerifierCase, Measurement]] = field(default_factory=list)
    how: set[str] = field(default_factory=set)
    asked: int = 0
    largest: float = 0.0
    unseen: float = 0.0
    cases: int = 0

    def add(self, case: VerifierCase, found: Measurement) -> None:
        self.cases += 1
        self.asked += found.asked
        self.how.add(found.how)
        self.unseen = max(self.unseen, found.unseen)
        if found.failed:
            self.failing.append((case, found))
        else:
            self.largest = max(self.largest, found.total_variation)


def certify(
    verifier: Verifier,
    drawn: Drawn,
    chain: bool = False,
    count: int = 24,
    seed: int = 0,
    effort: Effort | None = None,
    shrink_seconds: float = 15.0,
    seconds: float = 300.0,
) -> Certificate:
    """Judge `verifier` on `count` cases from `seed`, and shrink what it fails.

    No case is begun after `seconds`; `Certificate.cases` says how many were judged. Raises ValueError where none was.
    """
    effort = effort or Effort(seed=seed)
    begun = time.monotonic()
    tally = _Tally()
    for case in cases_to_judge(drawn, chain, count, seed):
        if time.monotonic() - begun > seconds or len(tally.failing) == MOST_FAILING:
            break
        found = measure(case, verifier, effort)
        tally.add(case, found)
        if found.fault is not None and found.fault.kind == "hang":
            break  # each costs its whole time-out
    if not tally.failing:
        return Certificate(True, drawn, chain, tally.cases, tally.asked, time.monotonic() - begun, *_summary(tally))
    case, found = tally.failing[0]
    kind = found.fault.kind if found.fault else None
    quick = replace(effort, checks=min(effort.checks, SLIP_EFFORT.checks))

    def fails(one: VerifierCase) -> bool:
        got = measure(one, verifier, quick)
        return got.failed and (got.fault.kind if got.fault else None) == kind

    case, shrunk = shrink(fails, case, 0.0 if kind == "hang" else shrink_seconds)
    finding = measure(case, verifier, effort)
    if not finding.failed:  # it decided otherwise when asked again: keep what was seen
        case, finding = tally.failing[0]
    likeness = looks_like([*tally.failing, (case, finding)])
    elapsed = time.monotonic() - begun
    return Certificate(
        False, drawn, chain, tally.cases, tally.asked, elapsed, *_summary(tally), case, finding, likeness, shrunk
    )


def check_first_call(verifier: Verifier, drawn: Drawn, chain: bool) -> None:
    """Raise ValueError where a verifier's first call raises or returns no decision: it is none, or is called otherwise.

    What it does later is judged.
    """
    draft = fixed_cases(drawn, chain)[0].drafts[0].draft
    noise = np.full((1, 1), 1.0) if verifier.noise == "seeds" else np.full((1, draft.tree.size + 1), 0.5)
    try:
        if verifier.noise == "decisions":
            reply: object = verifier.enumerate(draft)
        else:
            reply = next(iter(verifier.decide([draft], noise)), None)
    except VerifierStopped as stopped:
        reply = stopped.fault
    if isinstance(reply, Fault) and reply.kind in ("crash", "bad reply"):
        remedy = "" if "mend it there" in reply.detail else ": mend it, or choose another --as"
        raise ValueError(
            f"its first call is no decision ({reply.kind}: {reply.detail}); expected (path, token) as "
            f"docs/how-to/certify-a-verifier.md says{remedy}"
        )


def _summary(tally: _Tally) -> tuple[tuple[str, ...], float, float]:
    return tuple(sorted(tally.how)), tally.largest, tally.unseen


def looks_like(failing: Sequence[tuple[VerifierCase, Measurement]]) -> Likeness | None:
    """The known slips whose decisions are distributed as those of the failing cases, or are nearest to it.

    failing: the smallest case last. It is compared with every slip, the others with those that are near it.
    """
    tolerance = 0.02 if any(found.how == "samples" for _, found in failing) else EXACT[24]
    scores = {slip.name: 0.0 for slip in SLIPS if all(case.drawn in slip.drawn for case, _ in failing)}
    for case, found in reversed(failing):
        for name in scores:
            scores[name] = max(scores[name], _distance(case, found, _by_slip(name, case)))
        same = {name: score for name, score in scores.items() if score <= tolerance}
        near = {name: score for name, score in scores.items() if score <= NEAR * _by_slip(name, case).total_variation}
        scores = same or near
    if not scores:
        return None
    best = min(scores.values())
    names = tuple(name for name, score in scores.items() if score <= max(best, tolerance))
    first = BY_NAME[names[0]]
    return Likeness(names, best <= tolerance, best, first.summary, first.report)


@lru_cache(maxsize=512)
def _by_slip(name: str, case: VerifierCase) -> Measurement:
    return measure(case, InProcess(BY_NAME[name].verify), SLIP_EFFORT)


def _distance(case: VerifierCase, found: Measurement, other: Measurement) -> float:
    """The total variation between two verifiers' decisions; 1 where only one of them shows a fault of a kind."""
    kinds = [one.fault.kind if one.fault else None for one in (found, other)]
    if kinds[0] != kinds[1] or found.stopped or other.stopped:
        return 0.0 if kinds[0] == kinds[1] and found.stopped and other.stopped else 1.0
    if _impossible(case, found.decisions) != _impossible(case, other.decisions) and found.how != "samples":
        return 1.0
    return sum(
        weight * total_variation(one, two)
        for (weight, _), one, two in zip(case.drafts, found.decisions, other.decisions, strict=True)
    )


def _impossible(case: VerifierCase, decisions: Sequence[Mapping[Verdict, float]]) -> set[tuple[int, Verdict]]:
    return {
        (item, verdict)
        for item, ((_, draft), one) in enumerate(zip(case.drafts, decisions, strict=True))
        for verdict in one
        if find_impossible(draft, verdict) is not None
    }


def finding_to_dict(found: Measurement) -> dict[str, Any]:
    """What is wrong on a case, as JSON holds it; the distributions themselves are left to a replay."""
    return {
        "how": found.how,
        "total_variation": found.total_variation,
        "unseen": found.unseen,
        "node": failing_node(found),
        "fault": None if found.fault is None else asdict(found.fault),
        "fault_tokens": list(found.fault_tokens),
        "fault_noise": list(found.fault_noise),
        "difference": None if found.difference is None else asdict(found.difference),
    }


def failing_node(found: Measurement) -> int | None:
    """The node at which a case fails: where the distribution parts first, or else where the fault shows."""
    if found.difference is not None:
        return found.difference.node
    return found.fault.node if found.fault is not None else None
