"""Measures passes and host work inside real decoding loops: the `in_cycle` part of a cost curve.

Plain autoregression and the given loops take turns, one image each, with the decoding loop, the policies and the rules
of the methods. Every pass is timed by its size; the rest of a cycle is host time. The machine's speed drifts within
seconds, so plain autoregression runs before every few loops, and `samples.at_mean_speed` brings their times to its mean
speed. The slowest 5 % of every size are left out of its mean.

    plain: {target_ms, host_ms} of a step of plain autoregression
    target_ms: [[T, ms], ...] of target passes in cycles that draft; see `samples.curve` on how they are averaged
    draft_ms: [[expanded nodes, ms], ...] of drafter passes
    chain_ms: [[levels, ms], ...] of chains drafted in one call; empty if the drafter cannot
    tree_ms: for trees drafted in one call, by whether siblings are "sampled" or "ranked": {call, levels}, ms of a call
        and [[expanded nodes, ms], ...] of each level in it; empty if the drafter cannot
    window_ms: [[T, ms], ...] of target passes over Jacobi windows, in loops without a drafter
    host_ms: by how the host drafts, {cycle, level, node, pooled}: ms per cycle, per drafted level, per scored node, and
        per cycle whose rule pools codes
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Final

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import FusedTreeLevel, FusedTreeSpec, Grid
from underpaint.algos.spatial.jacobi import jacobi_cycles
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.step import Scored, cycles
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.conditions import EncodedCondition
from underpaint.runtime.costs.loops import MOST_NODES, PLAIN, CostLoop
from underpaint.runtime.costs.samples import CycleKind, CycleSamples, TreeCall, at_mean_speed
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.target import EngineTarget

MOST_CYCLES: Final = 512
"""Largest number of timed cycles per image; a large image is left unfinished."""
WARM_UP: Final = 24
"""Number of cycles of each loop before samples are kept."""
PLAIN_EVERY: Final = 3
"""Number of loops that run between two images of plain autoregression."""


@dataclass(slots=True)
class PassTimes:
    """Collects samples in ms by kind and size of pass, and the seconds in graphs since they were last set to 0."""

    samples: CycleSamples
    seconds: float = 0.0

    def add(self, what: str, size: int, seconds: float) -> None:
        self.seconds += seconds
        self.samples.passes[what, size].append(1e3 * seconds)

    def add_call(self, call: TreeCall, seconds: float) -> None:
        self.seconds += seconds
        self.samples.tree_calls[call].append(1e3 * seconds)


@dataclass(slots=True)
class TimedTreeTarget:
    """A `Target` that times its passes."""

    target: EngineTarget
    timed: PassTimes
    what: str
    vocab_size: int = field(init=False)
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.grid = self.target.vocab_size, self.target.grid

    def begin(self) -> Scored:
        return self.target.begin()

    def score(self, tree: DraftTree) -> Scored:
        before = self.target.engine.cost.seconds
        scored = self.target.score(tree)
        self.timed.add(self.what, tree.size, self.target.engine.cost.seconds - before)
        return scored

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        self.target.commit(tree, verdict)


@dataclass(slots=True)
class TimedTreeDrafter:
    """A `Drafter`, and a `ChainExpander` if the drafter can, that times its passes.

    Attributes:
        drafter: The drafter.
        timed: Collects the times.
        fuses_trees: Whether trees may be drafted in one call.
        levels: Number of levels drafted since last set to 0.
        grown: Whether some of them were drafted one by one.
        vocab_size: The number of codes, V.
        fuses_chains: Whether the drafter can draft a greedy chain in one call.
    """

    drafter: EngineDrafter
    timed: PassTimes
    fuses_trees: bool
    levels: int = 0
    grown: bool = False
    vocab_size: int = field(init=False)
    fuses_chains: bool = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.fuses_chains = self.drafter.vocab_size, self.drafter.fuses_chains

    def begin(self, scored: Scored) -> None:
        self.drafter.begin(scored)

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        before = self.drafter.engine.cost.seconds
        distributions = self.drafter.expand(tokens, parents)
        self.timed.add("draft", tokens.size, self.drafter.engine.cost.seconds - before)
        self.levels += 1
        self.grown = True
        return distributions

    def expand_chain(self, root: int, levels: int) -> IntArray:
        before = self.drafter.engine.cost.seconds
        tokens = self.drafter.expand_chain(root, levels)
        self.timed.add("chain", levels, self.drafter.engine.cost.seconds - before)
        self.levels += levels
        return tokens

    def expand_tree(self, root: int, growth: FusedTreeSpec) -> list[FusedTreeLevel]:
        before = self.drafter.engine.cost.seconds
        levels = self.drafter.expand_tree(root, growth)
        self.timed.add_call(
            TreeCall("sampled" if growth.drawn else "ranked", len(levels), growth.places.shape[1]),
            self.drafter.engine.cost.seconds - before,
        )
        self.levels += len(levels)
        return levels

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        self.drafter.commit(tree, verdict, scored)


def measure(
    target: EngineTarget,
    drafter: EngineDrafter,
    run: tuple[CostLoop, ...],
    rounds: int,
    conditions: Sequence[EncodedCondition],
    report: Callable[[], None],
    most_seconds: float = inf,
    finished: list[list[CycleSamples]] | None = None,
    keep: Callable[[], None] = lambda: None,
) -> tuple[CycleSamples, int]:
    """Time images of every loop and of plain autoregression, after a warm-up that is not kept.

    Leaves out loops whose trees are too large for the engines.

    Args:
        target: The target.
        drafter: Its drafter.
        run: The loops.
        rounds: Largest number of images of each loop.
        conditions: Conditions of the images, used in turn.
        report: Called for every image, `turns(len(run))` times per round; less often once loops are left out.
        most_seconds: Seconds since the call after which no further round begins. The first round always runs, and a
            started round is finished.
        finished: Bursts of the rounds of an earlier measurement, which count; new rounds are appended.
        keep: Called after each round that counts.

    Returns:
        The samples, and the number of rounds.
    """
    finished = [] if finished is None else finished
    loops, rounds_done, started = list(run), len(finished), perf_counter()
    for _ in range(turns(len(run)) * rounds_done):
        report()
    for turn in (0, *range(rounds_done + 1, rounds + 1)) if rounds_done < rounds else ():
        if turn and rounds_done and perf_counter() - started > most_seconds:
            break
        bursts = list[CycleSamples]()
        target.prepare(conditions[turn % len(conditions)])
        for some in grouped(loops):
            samples, refused = burst(target, drafter, some, turn, MOST_CYCLES if turn else WARM_UP, report)
            loops = [loop for loop in loops if loop not in refused]
            if turn:
                bursts.append(samples)
        if turn:
            finished.append(bursts)
            rounds_done = turn
            keep()
    return at_mean_speed([burst for bursts in finished for burst in bursts]), rounds_done


def grouped(run: Sequence[CostLoop]) -> list[Sequence[CostLoop]]:
    """Split the loops into bursts; there is at least one burst."""
    return [run[first : first + PLAIN_EVERY] for first in range(0, len(run), PLAIN_EVERY)] or [()]


def burst(
    target: EngineTarget,
    drafter: EngineDrafter,
    run: Sequence[CostLoop],
    image: int,
    most_cycles: int = MOST_CYCLES,
    report: Callable[[], None] = lambda: None,
) -> tuple[CycleSamples, list[CostLoop]]:
    """Draw one image with plain autoregression and one with each loop.

    Args:
        target: The target, which must hold its condition.
        drafter: Its drafter.
        run: The loops.
        image: Number of the image, which selects its random numbers.
        most_cycles: Largest number of timed cycles per image.
        report: Called for every image.

    Returns:
        The samples, and the loops that the engines refused.
    """
    samples, refused = CycleSamples(), list[CostLoop]()
    for loop in (PLAIN, *run):
        try:
            draw(target, None if loop is PLAIN or loop.window else drafter, loop, image, samples, most_cycles)
        except EngineError:
            refused.append(loop)
        report()
    return samples, refused


def turns(loops: int) -> int:
    """Number of images in a round of `loops` loops, including those of plain autoregression."""
    return loops + max(1, -(-loops // PLAIN_EVERY))


def draw(
    target: EngineTarget,
    drafter: EngineDrafter | None,
    loop: CostLoop,
    image: int,
    samples: CycleSamples,
    most_cycles: int,
) -> None:
    """Draw one image and add the times of its cycles. The first pass, over the condition only, is left out."""
    timed = PassTimes(samples)
    watched = TimedTreeTarget(target, timed, "target" if drafter is not None else loop.family)
    drafting = None
    if drafter is not None:
        fuses_trees = drafter.fuses_trees and not loop.by_level
        drafting = TimedTreeDrafter(drafter, timed, fuses_trees)
    chance, most = sampling(0, image), min(MOST_NODES, target.engine.config.capacity)
    if loop.window:
        decoding = jacobi_cycles(watched, loop.rule, chance, JacobiWindow(loop.window))
    else:
        decoding = cycles(watched, drafting, loop.policy, loop.rule, chance, most)
    started = perf_counter()
    for cycle in decoding:
        spent = perf_counter() - started
        if cycle.number and not (loop.by_level or loop.window):
            levels = drafting.levels if drafting is not None else 0
            grown = drafting is not None and drafting.grown
            family = "cost_aware" if grown and loop.family == "cost_aware_chain" else loop.family
            kind = CycleKind(family, levels, cycle.tree.size, loop.pooled and cycle.tree.size > 1)
            samples.host[kind].append(1e3 * (spent - timed.seconds))
        timed.seconds = 0.0
        if drafting is not None:
            drafting.levels, drafting.grown = 0, False
        if cycle.number >= most_cycles:
            return
        started = perf_counter()
