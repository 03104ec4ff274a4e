"""What a verifier does on one case: the distribution of its decisions, beside the target's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum, log, sqrt

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.enumeration import total_variation
from underpaint.algos.tree import Verdict, emitted
from underpaint.sim.certify.case import SequenceDistribution, Tokens, VerifierCase, contexts, prefix_masses
from underpaint.sim.certify.measurement import DistributionDifference, Effort, How, Measurement
from underpaint.sim.certify.quantiles import TooManyBoxes, find_boxes
from underpaint.sim.certify.verifier import Fault, Verifier, VerifierStopped, find_fault, find_impossible

EXACT = {53: 1e-10, 24: 1e-5}
"""The largest total variation that rounding can explain, by the bits of a uniform: float64, and float32."""
FALSE_ALARM = 1e-6
"""The chance that a lossless verifier fails on a case that is judged by samples."""
MISSED = 1e-3
"""The chance that samples miss a probability that is off by the margin asked for."""


def sample_size(cells: int, margin: float, false_alarm: float = FALSE_ALARM, missed: float = MISSED) -> int:
    """Samples after which a probability that is off by `margin` is found but for the chance `missed`.

    Hoeffding: a mean of n variables in [0, 1] is off by sqrt(log(2 cells / false_alarm) / 2n) somewhere among the cells
    with probability false_alarm at most, and lags its expectation by sqrt(log(1 / missed) / 2n) with probability
    missed; both together have to fit into the margin.
    """
    return int(np.ceil((sqrt(log(2 * cells / false_alarm)) + sqrt(log(1 / missed))) ** 2 / (2 * margin**2)))


def measure(case: VerifierCase, verifier: Verifier, effort: Effort | None = None) -> Measurement:
    """Find the distribution of a verifier's decisions on every draft of a case, and compare it with the target's."""
    effort = effort or Effort()
    if verifier.noise == "decisions":
        return _by_decisions(case, verifier)
    if verifier.noise == "seeds":
        return _by_samples(case, verifier, effort)
    try:
        return _by_quantiles(case, verifier, effort)
    except TooManyBoxes:
        return _by_samples(case, verifier, effort)


def emitted_sequences(case: VerifierCase, decisions: Sequence[Mapping[Verdict, float]]) -> SequenceDistribution:
    """The distribution of `case.length` tokens: what is emitted, then as the target goes on."""
    parts: dict[Tokens, list[float]] = {}
    for (weight, draft), found in zip(case.drafts, decisions, strict=True):
        for verdict, share in found.items():
            for sequence, rest in case.continued(emitted(draft.tree, verdict)).items():
                parts.setdefault(sequence, []).append(weight * share * rest)
    return {sequence: fsum(shares) for sequence, shares in parts.items()}


def _by_decisions(case: VerifierCase, verifier: Verifier) -> Measurement:
    found: list[Mapping[Verdict, float]] = []
    for _, draft in case.drafts:
        try:
            shares = verifier.enumerate(draft)
        except VerifierStopped as stopped:
            shares = stopped.fault
        tokens = tuple(draft.tree.tokens.tolist())
        if isinstance(shares, Fault):
            return Measurement("decisions", 1.0, 0.0, len(found), fault=shares, fault_tokens=tokens)
        for verdict in shares:
            if (fault := find_fault(draft, verdict)) is not None:
                return Measurement("decisions", 1.0, 0.0, len(found), fault=fault, fault_tokens=tokens)
        found.append(shares)
    return _compared(case, "decisions", found, 0.0, sum(map(len, found)), EXACT[53])


class _Faulty(Exception):
    def __init__(self, fault: Fault, item: int, noise: tuple[float, ...]) -> None:
        super().__init__(fault.detail)
        self.fault, self.item, self.noise = fault, item, noise


def _decided(case: VerifierCase, verifier: Verifier, items: IntArray, noise: FloatArray) -> list[Verdict]:
    """The decisions, each checked on its own; `_Faulty` at the first that no verifier may make."""
    drafts = [case.drafts[item].draft for item in items.tolist()]
    try:
        replies = verifier.decide(drafts, noise)
    except VerifierStopped as stopped:
        at = stopped.item or 0
        raise _Faulty(stopped.fault, int(items[at]), tuple(noise[at].tolist())) from stopped
    if len(replies) != len(drafts):
        fault = Fault("bad reply", f"{len(drafts)} drafts got {len(replies)} decisions; each needs one")
        raise _Faulty(fault, int(items[0]), tuple(noise[0].tolist()))
    found: list[Verdict] = []
    for place, (draft, reply) in enumerate(zip(drafts, replies, strict=True)):
        wrong = reply if isinstance(reply, Fault) else find_fault(draft, reply)
        if wrong is not None or isinstance(reply, Fault):
            assert wrong is not None
            raise _Faulty(wrong, int(items[place]), tuple(noise[place].tolist()))
        found.append(reply)
    return found


def _faulty(case: VerifierCase, how: How, asked: int, error: _Faulty) -> Measurement:
    tokens = tuple(case.drafts[error.item].draft.tree.tokens.tolist())
    return Measurement(how, 1.0, 0.0, asked, fault=error.fault, fault_tokens=tokens, fault_noise=error.noise)


def _by_quantiles(case: VerifierCase, verifier: Verifier, effort: Effort) -> Measurement:
    asked = 0

    def ask(items: IntArray, points: IntArray) -> list[Verdict]:
        nonlocal asked
        asked += len(items)
        return _decided(case, verifier, items, points * 2.0**-verifier.bits)

    weights = [one.weight for one in case.drafts]
    try:
        boxes = find_boxes(ask, weights, len(case.parents) + 1, verifier.bits, effort.checks, effort.most, effort.seed)
    except _Faulty as error:
        return _faulty(case, "quantiles", asked, error)
    parts: list[dict[Verdict, list[float]]] = [{} for _ in weights]
    for box in boxes.found:
        assert box.outcome is not None
        parts[box.item].setdefault(box.outcome, []).append(box.volume(verifier.bits))
    found: list[Mapping[Verdict, float]] = [{verdict: fsum(shares) for verdict, shares in one.items()} for one in parts]
    measured = _compared(case, "quantiles", found, boxes.unseen, boxes.asked, EXACT[verifier.bits])
    for box in boxes.found:
        draft = case.drafts[box.item].draft
        if measured.fault is not None and box.outcome is not None and find_impossible(draft, box.outcome):
            noise = tuple((box.low * 2.0**-verifier.bits).tolist())
            return replace(measured, fault_tokens=tuple(draft.tree.tokens.tolist()), fault_noise=noise)
    return measured


def _by_samples(case: VerifierCase, verifier: Verifier, effort: Effort) -> Measurement:
    wanted = prefix_masses(case.wanted)
    cells = case.vocab_size ** (case.length + 1)
    count = sample_size(cells, effort.margin)
    random = np.random.default_rng(effort.seed)
    weights = np.array([one.weight for one in case.drafts])
    items = random.choice(len(weights), size=count, p=weights / weights.sum())
    if verifier.noise == "seeds":
        noise: FloatArray = random.integers(0, 2**31, size=(count, 1)).astype(np.float64)
    else:
        noise = random.integers(0, 1 << verifier.bits, size=(count, len(case.parents) + 1)) * 2.0**-verifier.bits
    found: list[dict[Verdict, int]] = [{} for _ in weights]
    try:
        for start in range(0, count, 4096):
            some = items[start : start + 4096]
            for item, verdict in zip(
                some.tolist(), _decided(case, verifier, some, noise[start : start + 4096]), strict=True
            ):
                found[item][verdict] = found[item].get(verdict, 0) + 1
    except _Faulty as error:
        return _faulty(case, "samples", count, error)
    # Shares of all samples: the drafts' weights are in them already.
    shares = [
        {verdict: times / count / weight for verdict, times in one.items()}
        for one, weight in zip(found, weights, strict=True)
    ]
    sequences = emitted_sequences(case, shares)
    got = prefix_masses(sequences)
    limit = log(2 * cells / FALSE_ALARM) / count
    far = {prefix: got.get(prefix, 0.0) for prefix in {**wanted, **got} if prefix}
    off = [prefix for prefix, mass in far.items() if _divergence(mass, wanted.get(prefix, 0.0)) > limit]
    apart = total_variation(sequences, case.wanted)
    slack = sqrt(log(2 * cells / FALSE_ALARM) / (2 * count))
    fault, tokens = _impossible(case, shares)
    if not off:
        return Measurement("samples", apart, effort.margin, count, tuple(shares), None, fault, tokens)
    shortest = min(map(len, off))
    worst = max((one for one in off if len(one) == shortest), key=lambda one: abs(far[one] - wanted.get(one, 0.0)))
    lowest = max(0.0, *(abs(far[one] - wanted.get(one, 0.0)) - slack for one in off))
    difference = _difference_at(case, worst[:-1], wanted, got, apart, lowest)
    return Measurement("samples", apart, effort.margin, count, tuple(shares), difference, fault, tokens)


def _divergence(found: float, wanted: float) -> float:
    """KL(found || wanted) of two coins: by Chernoff, n of it bounds how likely so far a mean is."""
    if abs(found - wanted) < 1e-9:  # rounding, which a probability of 1 would make infinite
        return 0.0
    parts = 0.0
    for one, other in ((found, wanted), (1.0 - found, 1.0 - wanted)):
        if one > 1e-15:
            parts += one * log(one / other) if other > 0.0 else np.inf
    return parts


def _compared(
    case: VerifierCase, how: How, found: list[Mapping[Verdict, float]], unseen: float, asked: int, tolerance: float
) -> Measurement:
    sequences = emitted_sequences(case, found)
    apart = total_variation(sequences, case.wanted)
    fault, tokens = _impossible(case, found)
    if apart <= tolerance:
        return Measurement(how, apart, unseen, asked, tuple(found), None, fault, tokens)
    wanted, got = prefix_masses(case.wanted), prefix_masses(sequences)
    moved: dict[Tokens, float] = {}
    for before in contexts(case.vocab_size, case.length):
        mass = got.get(before, 0.0)
        share = case.target_row(before)
        moved[before] = 0.5 * fsum(
            abs(got.get((*before, token), 0.0) - mass * float(share[token])) for token in range(case.vocab_size)
        )
    seen = [before for before, mass in moved.items() if mass > tolerance / (2 * len(moved))]
    before = max((one for one in seen if len(one) == len(seen[0])), key=lambda one: moved[one])
    difference = _difference_at(case, before, wanted, got, apart, apart)
    return Measurement(how, apart, unseen, asked, tuple(found), difference, fault, tokens)


def _impossible(case: VerifierCase, found: Sequence[Mapping[Verdict, float]]) -> tuple[Fault | None, Tokens]:
    """The emitted token of target probability 0 that is nearest to the root, and its tree's tokens."""
    seen: list[tuple[Fault, Tokens]] = []
    parts: list[float] = []
    for (weight, draft), one in zip(case.drafts, found, strict=True):
        for verdict, share in one.items():
            if (fault := find_impossible(draft, verdict)) is not None:
                seen.append((fault, tuple(draft.tree.tokens.tolist())))
                parts.append(weight * share)
    if not seen:
        return None, ()
    first, tokens = min(seen, key=lambda one: one[0].node or 0)
    return replace(first, detail=f"{first.detail}; so it happens with probability {fsum(parts):.3g}"), tokens


def _difference_at(
    case: VerifierCase,
    before: Tokens,
    wanted: Mapping[Tokens, float],
    got: Mapping[Tokens, float],
    apart: float,
    lowest: float,
) -> DistributionDifference:
    mass = got.get(before, 0.0)
    shares = tuple(got.get((*before, token), 0.0) / mass if mass > 0.0 else 0.0 for token in range(case.vocab_size))
    return DistributionDifference(
        apart, lowest, before, node_at(case, before), tuple(map(float, case.target_row(before))), shares
    )


def node_at(case: VerifierCase, before: Tokens) -> int:
    """The node that is most often reached by these tokens; the deepest above it where no tree spells them."""
    for length in range(len(before), 0, -1):
        mass: dict[int, float] = {}
        for weight, draft in case.drafts:
            tokens = tuple(draft.tree.tokens.tolist())
            for node in range(1, draft.tree.size):
                if case.context(node, tokens) == before[:length]:
                    mass[node] = mass.get(node, 0.0) + weight
        if mass:
            return max(mass, key=lambda node: mass[node])
    return 0
