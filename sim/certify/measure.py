"""Measure a verifier on one case: the distribution of its decisions, compared with the target's."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import fsum, log, sqrt
from typing import Any, Final

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.enumeration import total_variation
from underpaint.sim.certify.case import SequenceDistribution, Tokens, VerifierCase, contexts, prefix_masses
from underpaint.sim.certify.measurement import DistributionDifference, Effort, How, Measurement
from underpaint.sim.certify.quantiles import TooManyBoxes, find_boxes
from underpaint.sim.certify.subjects import Cycles, Decisions, FaultError, Subject, round_to_bits, rounded_drafts
from underpaint.sim.certify.verifier import Fault, Verifier

EXACT: Final = {53: 1e-10, 24: 1e-5, 11: 4e-3, 8: 3e-2}
"""Largest total variation that rounding can explain, by the bits of a uniform (float64, float32, float16, bfloat16):
a few thresholds of a case may each be off by a few units in the last place."""
FALSE_ALARM = 1e-6
"""Probability that a lossless verifier fails on a case that is measured by samples."""
MISSED = 1e-3
"""Probability that samples miss a probability that is off by the requested margin."""
MOST_AT_BOUNDARY = 2
"""Samples of a token of probability 0 that uniforms of exactly 0 can explain; three have a probability below 1e-6."""


def measure(case: VerifierCase, verifier: Verifier, effort: Effort | None = None) -> Measurement:
    """Measure the distribution of a verifier's decisions on every draft of a case, and compare it with the target's."""
    effort = effort or Effort()
    bits = effort.bits or verifier.bits
    subject: Subject
    if verifier.noise == "session" or effort.cycles > 1:
        subject = Cycles(case, verifier, effort.cycles)
    else:
        subject = Decisions(case, verifier, rounded_drafts(case, bits))
    how: How = "decisions" if verifier.noise == "decisions" else "samples"
    try:
        if verifier.noise == "decisions":
            distributions = subject.exact()
            return _compared(case, subject, how, distributions, 0.0, sum(map(len, distributions)), EXACT[bits])
        if verifier.noise != "seeds":
            how = "quantiles"
            try:
                return _by_quantiles(case, subject, bits, effort)
            except TooManyBoxes:
                how = "samples"
        return _by_samples(case, subject, bits, verifier.noise == "seeds", effort)
    except FaultError as error:
        tokens = subject.tree_tokens(error.item)
        return Measurement(how, 1.0, 0.0, 0, fault=error.fault, fault_tokens=tokens, fault_noise=error.noise)


def sample_size(cells: int, margin: float, false_alarm: float = FALSE_ALARM, missed: float = MISSED) -> int:
    """The number of samples that detect a probability that is off by `margin`, except with probability `missed`.

    By Hoeffding's inequality, the mean of n variables in [0, 1] is off by sqrt(log(2 cells / false_alarm) / 2n) in some
    cell with probability at most `false_alarm`. It falls sqrt(log(1 / missed) / 2n) below its expectation with
    probability at most `missed`. The sum of both must fit into the margin.
    """
    return int(np.ceil((sqrt(log(2 * cells / false_alarm)) + sqrt(log(1 / missed))) ** 2 / (2 * margin**2)))


def find_bits(verifier: Verifier, case: VerifierCase) -> int:
    """Measure the resolution at which a verifier decides: 8, 11, 24 or 53 bits.

    A function that rounds its input shows it by its thresholds. Anything that only computes in float32 has a total
    variation of the size of float32's rounding.
    """
    if verifier.noise == "seeds" or verifier.bits != 53:
        return verifier.bits
    if verifier.noise == "uniforms" and (bits := _bits_of_thresholds(verifier, case)) is not None:
        return bits
    apart = measure(case, verifier, Effort(checks=64, margin=0.5, most=20_000)).total_variation
    return 24 if EXACT[53] < apart < 2.0**-20 else 53


def _bits_of_thresholds(verifier: Verifier, case: VerifierCase) -> int | None:
    """The resolution to which a function rounds its input; None if it rounds none. With too many thresholds: 53.

    All thresholds are located to the last bit of float64. If a function rounds its inputs, its decisions on both sides
    of every threshold stay the same when the probabilities, or the uniforms, are rounded first.
    """
    subject = Decisions(case, verifier, case.drafts)

    def ask(items: IntArray, points: IntArray) -> list[Hashable]:
        return list(subject.ask(items, points * 2.0**-53))

    try:
        boxes = find_boxes(ask, subject.weights, subject.dims, 53, 64, 20_000).boxes
    except TooManyBoxes:
        return 53
    except FaultError:  # float32 rounds a uniform next to 1 to 1, which such a function does not accept
        return 53 if measure(case, verifier, Effort(checks=64, bits=24)).kind == "faulty" else 24
    items = np.array([box.item for box in boxes])
    points = np.concatenate([[box.low for box in boxes], [box.high - 1 for box in boxes]]) * 2.0**-53
    outcomes = [box.outcome for box in boxes] * 2
    for bits in (8, 11, 24):
        rounded = Decisions(case, verifier, rounded_drafts(case, bits))
        for other, noise in ((rounded, points), (subject, np.minimum(round_to_bits(points, bits), 1.0 - 2.0**-bits))):
            try:
                if other.ask(np.concatenate([items, items]), noise) == outcomes:
                    return bits
            except FaultError:
                continue
    return None


def emitted_sequences(
    case: VerifierCase, subject: Subject, distributions: Sequence[Mapping[Any, float]]
) -> SequenceDistribution:
    """The distribution of sequences of `subject.length` tokens: the emitted ones, then tokens drawn from the target."""
    shares: dict[Tokens, list[float]] = {}
    for item, (weight, one) in enumerate(zip(subject.weights, distributions, strict=True)):
        for outcome, share in one.items():
            shares.setdefault(subject.emitted(item, outcome), []).append(weight * share)
    parts: dict[Tokens, list[float]] = {}
    for tokens, masses in shares.items():
        for sequence, rest in case.continued(tokens, subject.length).items():
            parts.setdefault(sequence, []).append(fsum(masses) * rest)
    return {sequence: fsum(masses) for sequence, masses in parts.items()}


def _by_quantiles(case: VerifierCase, subject: Subject, bits: int, effort: Effort) -> Measurement:
    def ask(items: IntArray, points: IntArray) -> list[Hashable]:
        return list(subject.ask(items, points * 2.0**-bits))

    boxes = find_boxes(ask, subject.weights, subject.dims, bits, effort.checks, effort.most, effort.seed)
    parts: list[dict[Any, list[float]]] = [{} for _ in subject.weights]
    for box in boxes.boxes:
        parts[box.item].setdefault(box.outcome, []).append(box.volume(bits))
    distributions = [{outcome: fsum(shares) for outcome, shares in one.items()} for one in parts]
    measured = _compared(case, subject, "quantiles", distributions, boxes.unseen, boxes.asked, EXACT[bits])
    for box in boxes.boxes if measured.fault is not None else ():
        fault = subject.impossible(box.item, box.outcome)
        if fault is not None and _is_of(fault, subject.tree_tokens(box.item), measured):
            return replace(measured, fault_noise=tuple((box.low * 2.0**-bits).tolist()))
    return measured


def _is_of(fault: Fault, tokens: Tokens, measured: Measurement) -> bool:
    """Whether a box's fault and the tokens of its tree are those of the measurement."""
    mine = measured.fault
    if mine is None or (mine.node, measured.fault_tokens) != (fault.node, tokens):
        return False
    return mine.detail.startswith(fault.detail)


def _by_samples(case: VerifierCase, subject: Subject, bits: int, seeds: bool, effort: Effort) -> Measurement:
    goal = case.continued((), subject.length)
    expected = prefix_masses(goal)
    cells = case.vocab_size ** (subject.length + 1)
    count = sample_size(cells, effort.margin)
    random = np.random.default_rng(effort.seed)
    weights = np.array(subject.weights)
    items = random.choice(len(weights), size=count, p=weights / weights.sum())
    if seeds:
        noise: FloatArray = random.integers(0, 2**31, size=(count, 1)).astype(np.float64)
    else:
        noise = random.integers(0, 1 << bits, size=(count, subject.dims)) * 2.0**-bits
    outcome_counts: list[dict[Any, int]] = [{} for _ in weights]
    for start in range(0, count, 4096):
        some = items[start : start + 4096]
        for item, outcome in zip(some.tolist(), subject.ask(some, noise[start : start + 4096]), strict=True):
            outcome_counts[item][outcome] = outcome_counts[item].get(outcome, 0) + 1
    # Dividing by the weight gives shares per draft: the samples were drawn by the drafts' weights.
    shares = [
        {outcome: times / count / weight for outcome, times in one.items()}
        for one, weight in zip(outcome_counts, weights, strict=True)
    ]
    sequences = emitted_sequences(case, subject, shares)
    got = prefix_masses(sequences)
    limit = log(2 * cells / FALSE_ALARM) / count
    mass_of = {prefix: got.get(prefix, 0.0) for prefix in {**expected, **got} if prefix}
    off = [
        prefix
        for prefix, mass in mass_of.items()
        if _divergence(mass, expected.get(prefix, 0.0)) > limit
        and (prefix in expected or mass * count > MOST_AT_BOUNDARY + 0.5)
        and (expected.get(prefix, 0.0) < 1.0 - 1e-9 or (1.0 - mass) * count > MOST_AT_BOUNDARY + 0.5)
    ]
    apart = total_variation(sequences, goal)
    fault, tokens = _impossible(subject, shares)
    if not off:
        return Measurement("samples", apart, effort.margin, count, tuple(shares), None, fault, tokens)
    shortest = min(map(len, off))
    worst = max(
        (one for one in off if len(one) == shortest), key=lambda one: abs(mass_of[one] - expected.get(one, 0.0))
    )
    # Hoeffding's bound for all sets of sequences at once (2 to the power of their number), Chernoff's for all prefixes.
    log_sets = case.vocab_size**subject.length * log(2.0)
    lowest = apart - sqrt((log_sets + log(1 / FALSE_ALARM)) / (2 * count))
    for one in off:
        share = expected.get(one, 0.0)
        lowest = max(lowest, abs(_nearest_share(mass_of[one], share, limit) - share))
    # McDiarmid's bound: `apart` is on average at least the total variation, and one sample moves it by 1 / count.
    highest = min(1.0, apart + sqrt(log(1 / FALSE_ALARM) / (2 * count)))
    difference = _difference_at(case, worst[:-1], got, apart, lowest, highest)
    return Measurement("samples", apart, effort.margin, count, tuple(shares), difference, fault, tokens)


def _divergence(mass: float, expected: float) -> float:
    """KL(mass || expected) of two coins; by Chernoff, n samples have this mean with probability at most exp(-n KL)."""
    if abs(mass - expected) < 1e-9:  # rounding; at a probability of 1 it would give infinity
        return 0.0
    parts = 0.0
    for one, other in ((mass, expected), (1.0 - mass, 1.0 - expected)):
        if one > 1e-15:
            parts += one * log(one / other) if other > 0.0 else np.inf
    return parts


def _nearest_share(mass: float, expected: float, limit: float) -> float:
    """The probability nearest to `expected` that samples with this mean leave possible, by `_divergence`."""
    ruled_out, possible = expected, mass
    for _ in range(60):
        middle = 0.5 * (ruled_out + possible)
        if _divergence(mass, middle) > limit:
            ruled_out = middle
        else:
            possible = middle
    return ruled_out


def _compared(
    case: VerifierCase,
    subject: Subject,
    how: How,
    distributions: Sequence[Mapping[Any, float]],
    unseen: float,
    decision_count: int,
    tolerance: float,
) -> Measurement:
    goal = case.continued((), subject.length)
    sequences = emitted_sequences(case, subject, distributions)
    apart = total_variation(sequences, goal)
    fault, tokens = _impossible(subject, distributions)
    if apart <= tolerance:
        return Measurement(how, apart, unseen, decision_count, tuple(distributions), None, fault, tokens)
    got = prefix_masses(sequences)
    moved: dict[Tokens, float] = {}
    for before in contexts(case.vocab_size, subject.length):
        mass = got.get(before, 0.0)
        if mass > 0.0 or not before:
            share = case.target_row(before)
            moved[before] = 0.5 * fsum(
                abs(got.get((*before, token), 0.0) - mass * float(share[token])) for token in range(case.vocab_size)
            )
    seen = [before for before, mass in moved.items() if mass > tolerance / (2 * len(moved))]
    before = max((one for one in seen if len(one) == len(seen[0])), key=lambda one: moved[one])
    difference = _difference_at(case, before, got, apart, apart, apart)
    return Measurement(how, apart, unseen, decision_count, tuple(distributions), difference, fault, tokens)


def _impossible(subject: Subject, distributions: Sequence[Mapping[Any, float]]) -> tuple[Fault | None, Tokens]:
    """The emitted token with target probability 0 that is nearest to the root, as a fault, and its tree's tokens."""
    seen: list[tuple[Fault, Tokens]] = []
    parts: list[float] = []
    for item, (weight, one) in enumerate(zip(subject.weights, distributions, strict=True)):
        for outcome, share in one.items():
            if (fault := subject.impossible(item, outcome)) is not None:
                seen.append((fault, subject.tree_tokens(item)))
                parts.append(weight * share)
    if not seen:
        return None, ()
    first, tokens = min(seen, key=lambda one: one[0].node or 0)
    return replace(first, detail=f"{first.detail}; so it happens with probability {fsum(parts):.3g}"), tokens


def _difference_at(
    case: VerifierCase, before: Tokens, got: Mapping[Tokens, float], apart: float, lowest: float, highest: float
) -> DistributionDifference:
    mass = got.get(before, 0.0)
    shares = tuple(got.get((*before, token), 0.0) / mass if mass > 0.0 else 0.0 for token in range(case.vocab_size))
    return DistributionDifference(
        apart, lowest, highest, before, node_at(case, before), tuple(map(float, case.target_row(before))), shares
    )


def node_at(case: VerifierCase, before: Tokens) -> int:
    """The node most often reached by these tokens; if no tree holds them all, by their longest prefix in a tree."""
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
