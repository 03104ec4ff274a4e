"""Find the fastest method for a trace on a machine within a bound on bias, and what would change the answer.

A coarse sweep finds candidates. The fastest candidate of each policy is then simulated again with other noise, so that
its interval has no selection bias. Changed prices need no new simulation.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft import POLICIES as POLICY_SPECS
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.transport import overlap
from underpaint.sim.batched.decoding import Scheme, run_lockstep, run_loop
from underpaint.sim.latency.machines import RooflineCosts
from underpaint.sim.latency.run_times import RepeatedTimes, RunTimes
from underpaint.sim.replay.acceptance_log import AcceptanceLog
from underpaint.sim.replay.trace import Trace, dense, replay
from underpaint.sim.report.statistics import Estimate, Runs, ratio, tokens_per_cycle
from underpaint.sim.sweep.plan import Job, SweepPlan, scheme_of
from underpaint.sim.synthetic.table_model import TableModel

POLICIES: Final = ("chain", "eagle1", "eagle2", "adt")
LOSSLESS: Final[tuple[str, ...]] = ("chain", "block", "without_replacement", "point")
PLAIN: Final = "plain autoregression"
FINALISTS: Final = 5
_VARY: Final[Mapping[str, tuple[Any, ...]]] = {
    "policy.length": (1, 2, 3, 4, 6, 8),
    "policy.widths": ((4,), (4, 4), (4, 4, 4, 4), (8, 16, 14, 11, 8)),
    "policy.depth": (1, 2, 3, 5),
    "policy.top_k": (4, 10),
    "policy.total_tokens": (15, 59),
}
_POOLED: Final = 100
"""Number of nearest codes that a relaxed rule pools, if the model has as many."""
_SCREEN_IMAGES: Final = 32
_DECODINGS: Final = {True: 128, False: 16}
"""Smallest total number of decodings of a finalist, by whether many images run in lockstep."""
_GAP: Final = 0.2
"""Share by which the drafter's distributions are moved towards the target's, or towards the uniform distribution."""
_FACTORS: Final = 2.0 ** (np.arange(1, 17) / 4.0)
"""Factors up to 16 by which the bandwidth is multiplied or divided."""
_EXTRA: Final = 2.0 ** (np.arange(-28, 9) / 4.0)
"""Additional host time per cycle, in plain steps: from a hundredth to four."""


def screening_plan(
    trace: str, model: TableModel, machine: str, bias: float, precision: float, seed: int, *, greedy: bool = False
) -> SweepPlan:
    """Plan the coarse sweep for a trace. Drafts are at most as deep as the trace has draft depths.

    Args:
        trace: Path of the trace.
        model: The replayed trace.
        machine: A machine, as for `simulate sweep --machines`.
        bias: The largest total variation of the next token's distribution; 0 allows only lossless rules.
        precision: Half the 95 % interval of each speedup, as a share of the speedup.
        seed: Seed of the noise.
        greedy: Whether the images were drawn at temperature 0, where greedy decoding verifies the drafts.

    Returns:
        A plan with one model and one machine.

    Raises:
        ValueError: A bias is allowed at temperature 0, where it is 0 or 1 at every token, or without a codebook.
    """
    vary, rules = within_limits(len(model.draft), model.vocab_size), LOSSLESS
    policies: tuple[str, ...] = POLICIES
    if greedy and bias > 0.0:
        raise ValueError(
            "--quality: expected lossless for a trace at temperature 0, where a relaxed rule changes a token or does "
            f"not, got {bias:g}; leave it out, or pass a trace at another temperature"
        )
    if greedy:
        policies = tuple(POLICY_SPECS[name].greedy_variant or name for name in POLICIES)
        rules = ("greedy",)
    elif bias > 0.0 and model.codebook.shape[1]:
        rules = (*rules, "lantern")
        vary |= {
            "rule.k": (min(_POOLED, model.vocab_size - 1),),
            "rule.delta": tuple(sorted({min(1.0, bias * factor) for factor in (1.0, 2.0)})),
        }
    elif bias > 0.0:
        raise ValueError(
            "--quality: expected a trace with a codebook, as the bias of relaxed rules without one is unknown; add the "
            "array 'codebook' [V, E], or leave it out"
        )
    return SweepPlan((trace,), policies, rules, (machine,), vary, precision, _SCREEN_IMAGES, seed)


def within_limits(depths: int, codes: int) -> dict[str, tuple[Any, ...]]:
    """Return the settings to vary, without drafts of more levels than `depths`, or of more siblings than `codes`.

    One level always stays, and for each setting one value that fits.
    """
    vary = dict(_VARY)
    for name in ("policy.length", "policy.depth"):
        vary[name] = tuple(levels for levels in _VARY[name] if levels <= max(1, depths))
    fitting = (widths for widths in _VARY["policy.widths"] if len(widths) <= max(1, depths) and max(widths) <= codes)
    vary["policy.widths"] = tuple(fitting) or ((codes,),)
    vary["policy.top_k"] = tuple(siblings for siblings in _VARY["policy.top_k"] if siblings <= codes) or (codes,)
    return vary


class MethodOption(NamedTuple):
    """A candidate method and its statistics over I images.

    Attributes:
        name: Policy and rule, or the length of the chain.
        settings: Settings as plain JSON values.
        token_bias: Total variation of the next token's distribution; 0 is lossless.
        tokens_per_cycle: Mean tokens per cycle, see `sim.report.statistics`.
        tokens: [I] number of drawn tokens.
        cycles: [I] number of cycles with a draft.
        ms: Maps prices to [I] ms.
        job: The simulation; None if the method comes from an acceptance log.
    """

    name: str
    settings: Mapping[str, Any]
    token_bias: float
    tokens_per_cycle: Estimate
    tokens: IntArray | FloatArray
    cycles: IntArray
    ms: Callable[[RunTimes], FloatArray]
    job: Job | None = None

    def speedup(self, prices: RunTimes, extra_ms: float = 0.0) -> Estimate:
        """Return the speedup over plain decoding, with an interval over images.

        Args:
            prices: Prices of decoding runs on the machine.
            extra_ms: Additional host time per cycle, in ms.
        """
        return ratio(self.tokens * prices.plain_ms, self.ms(prices) + extra_ms * self.cycles)


class Change(NamedTuple):
    """A changed condition, the answer's speedup under it, and the method that would be fastest then."""

    what: str
    change: str
    speedup: Estimate
    fastest: str
    fastest_speedup: float


def finalists(lines: Sequence[Mapping[str, Any]], machine: str, bias: float) -> list[Job]:
    """The fastest job of each policy within the bound on bias, sorted by speedup, at most `FINALISTS` jobs."""
    best: dict[str, Mapping[str, Any]] = {}
    for line in sorted(lines, key=lambda line: -float(line["speedup"][machine][0])):
        if line["token_bias"] is not None and line["token_bias"] <= bias:
            best.setdefault(line["policy"], line)
    return [Job.of(line) for line in list(best.values())[:FINALISTS]]


def simulated(model: TableModel, job: Job, token_bias: float, seed: int, chains: bool = False) -> MethodOption:
    """Decode every recorded image of the model several times. Intervals are over images, not over decodings."""
    scheme = scheme_of(model, job)
    runs = _decoded(model, scheme, seed, chains)
    settings = json.loads(job.policy_settings) | json.loads(job.rule_settings)
    return MethodOption(
        f"{job.policy} + {job.rule}",
        settings,
        token_bias,
        tokens_per_cycle(runs),
        np.full(runs.images, runs.decodings * runs.cells),
        runs.cycles,
        lambda prices: prices.times(scheme, runs).total,
        job,
    )


def _decoded(model: TableModel, scheme: Scheme, seed: int, chains: bool) -> Runs:
    images = model.images * ceil(_DECODINGS[scheme.vectorised] / model.images)
    if scheme.vectorised:
        return run_lockstep(model, scheme, images, seed, chains=chains).runs.pooled(model.images)
    return run_loop(model, scheme, images, seed, chains=chains).pooled(model.images)


def chains_of(log: AcceptanceLog) -> list[MethodOption]:
    """Candidate chains of every length up to the log's, from its drafts cut to that length."""
    reached = np.stack([log.reached(position) for position in range(1, log.positions + 1)], axis=1)
    return _chains(log.steps, reached)


def _chains(steps: IntArray, reached: IntArray | FloatArray) -> list[MethodOption]:
    """steps: [R] verifications per request. reached: [R, K], those that accepted at least 1 to K draft tokens."""
    options = []
    for length in range(1, reached.shape[1] + 1):
        tokens = steps + reached[:, :length].sum(axis=1)
        statistics = ratio(tokens, steps), tokens, steps, _chain_ms(steps, length)
        options.append(MethodOption(f"chain of {length}", {"length": length}, 0.0, *statistics))
    return options


def _chain_ms(steps: IntArray, length: int) -> Callable[[RunTimes], FloatArray]:
    def ms(prices: RunTimes) -> FloatArray:
        assert isinstance(prices, RepeatedTimes)
        costs = prices.costs
        cycle = costs.verify_ms(np.array([length + 1])) + length * costs.draft_ms(np.array([1])) + costs.overhead_ms
        total: FloatArray = steps * float(cycle[0])
        return total

    return ms


def fastest(candidates: Sequence[MethodOption], prices: RunTimes, extra_ms: float = 0.0) -> tuple[str, float]:
    """The name and the speedup of the fastest candidate, or of plain decoding if none is faster."""
    best = max(((one.speedup(prices, extra_ms).mean, one.name) for one in candidates), default=(0.0, ""))
    return (PLAIN, 1.0) if best[0] <= 1.0 else (best[1], best[0])


def price_changes(candidates: Sequence[MethodOption], answer: MethodOption, prices: RunTimes) -> Iterator[Change]:
    """Yield changes of price: half and twice the bandwidth, more host time, and the smallest that change the answer."""
    plain = prices.plain_ms
    name = fastest(candidates, prices)[0]

    def change(what: str, description: str, at: RunTimes, extra_ms: float = 0.0) -> Change:
        return Change(what, description, answer.speedup(at, extra_ms), *fastest(candidates, at, extra_ms))

    costs = prices.costs if isinstance(prices, RepeatedTimes) else None
    if isinstance(costs, RooflineCosts):
        bandwidth = costs.machine.bandwidth

        def at(factor: float) -> RunTimes:
            machine = dataclasses.replace(costs.machine, bandwidth=bandwidth * factor)
            return RepeatedTimes(dataclasses.replace(costs, machine=machine))

        for factors in (1.0 / _FACTORS, _FACTORS):
            turn = next((float(one) for one in factors if fastest(candidates, at(float(one)))[0] != name), None)
            for factor in sorted({float(factors[3]), *([] if turn is None else [turn])}):
                yield change("bandwidth", f"{factor:.2f} x ({bandwidth * factor:,.0f} GB/s)", at(factor))
    turn = next((float(one) for one in _EXTRA if fastest(candidates, prices, float(one) * plain)[0] != name), None)
    for share in sorted({0.25, *([] if turn is None else [turn])}):
        yield change("host", f"+{share * plain:.3g} ms a cycle", prices, share * plain)


def drafter_changes(
    trace: Trace, candidates: Sequence[MethodOption], answer: MethodOption, prices: RunTimes, seed: int
) -> Iterator[Change]:
    """Yield two changed drafters: one a fifth nearer to the target, one a fifth nearer to the uniform distribution."""
    for direction, towards_target in (("better", True), ("worse", False)):
        other, mean_overlap = with_drafter(trace, _GAP, towards_target)
        model = replay(other)
        again = [
            simulated(model, one.job, one.token_bias, seed, prices.fuses_chains)
            for one in candidates
            if one.job is not None
        ]
        (new_answer,) = (one for one in again if one.job == answer.job)
        yield Change(
            "drafter", f"{direction}: overlap {mean_overlap:.3f}", new_answer.speedup(prices), *fastest(again, prices)
        )


def with_drafter(trace: Trace, share: float, towards_target: bool) -> tuple[Trace, float]:
    """Change a trace's drafter; return the new trace, and its mean overlap 1 - TV with the target right after the root.

    Args:
        trace: A trace with a drafter.
        share: Share of each of the drafter's distributions to replace.
        towards_target: Whether the target's distribution replaces it; then the total variation from the target shrinks
            by exactly this share. Otherwise the uniform distribution replaces it.
    """
    tokens, probs = trace.draft_tokens.copy(), trace.draft_probs.copy()
    images, depths, _, top_k = probs.shape
    overlaps = []
    for image in range(images):
        target = dense(trace.target_tokens[image], trace.target_probs[image], trace.vocab_size)
        for depth in range(depths):
            drafted = dense(tokens[image, depth], probs[image, depth], trace.vocab_size)
            drafted += share * ((target if towards_target else 1.0 / trace.vocab_size) - drafted)
            likeliest = top(drafted, top_k)
            tokens[image, depth], probs[image, depth] = likeliest.tokens, likeliest.probs
            if depth == 0:
                overlaps.append(float(overlap(target[1:], drafted[1:]).mean()))
    return dataclasses.replace(trace, draft_tokens=tokens, draft_probs=probs), float(np.mean(overlaps))


def chain_changes(log: AcceptanceLog, answer: MethodOption, prices: RunTimes) -> Iterator[Change]:
    """Yield the same changes for an acceptance log: a fifth fewer rejections, or acceptances, at every position."""
    shares = [log.acceptance(position).mean for position in range(1, log.positions + 1)]
    for direction, moved in (
        ("better", [share + _GAP * (1.0 - share) for share in shares]),
        ("worse", [share * (1.0 - _GAP) for share in shares]),
    ):
        again = _chains(np.ones(1, dtype=np.int64), np.cumprod(moved)[None])
        (new_answer,) = (one for one in again if one.name == answer.name)
        change = f"{direction}: first kept {moved[0]:.3f}"
        yield Change("drafter", change, new_answer.speedup(prices), *fastest(again, prices))
