"""What passes and the host cost inside real decoding loops: the `in_cycle` part of a cost curve.

Plain autoregression and the loops asked for take turns, one image each, through the decoding loop, the policies and
the rules that the methods use. Every pass is timed by its size; what is left of a cycle is the host's. The slowest
twentieth of every size is left out of its mean.

    plain: {target_ms, host_ms} of a step of plain autoregression
    target_ms: [[T, ms], ...] of target passes in cycles that draft
    draft_ms: [[expanded nodes, ms], ...] of drafter passes
    chain_ms: [[levels, ms], ...] of chains drafted in one call; empty where the drafter cannot
    tree_ms: [[expanded nodes, ms], ...] of levels of trees grown in one call, whose time is shared out among them as
        passes of their sizes take alone; empty where the drafter cannot
    host_ms: by how the host drafts, {cycle, level, node, pooled}: ms of a cycle, of each drafted level, of each scored
        node, and of a cycle whose rule pools codes
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.draft.spec import FusedTreeLevel, FusedTreeSpec, Grid
from underpaint.algos.step import Scored, cycles
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.costs.loops import MOST_NODES, PLAIN, CostLoop
from underpaint.runtime.costs.passes import rising
from underpaint.runtime.engines.condition_encoder import EncodedCondition
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.target import EngineTarget

FEWEST: Final = 5
"""Samples of a size that count."""
ENOUGH: Final = 200
"""Samples from which on a mean is taken."""
SLOWEST: Final = 95
"""Percentile of a size's samples beyond which they are left out."""
CHOOSING: Final = ("cost_aware", "cost_aware_chain")
"""Families whose policies choose by costs: what cycles they make is not known beforehand, so few of a kind count."""
MOST_CYCLES: Final = 512
"""Cycles of an image that are timed: a large image is left before its end."""
WARM_UP: Final = 24
"""Cycles of each loop before any is kept."""
HOST_PARTS: Final = ("cycle", "level", "node", "pooled")


@dataclass(slots=True)
class PassTimes:
    """Where samples go, in ms by what a pass is and its size, and the seconds within the graphs since last set to 0."""

    samples: defaultdict[tuple[str, int], list[float]]
    seconds: float = 0.0

    def add(self, what: str, size: int, seconds: float) -> None:
        self.seconds += seconds
        self.samples[what, size].append(1e3 * seconds)


@dataclass(slots=True)
class TimedTreeTarget:
    """A `Target` whose passes are timed."""

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
    """A `Drafter`, and a `ChainExpander` where it can, whose passes are timed.

    alone: [[expanded nodes, ms], ...] of passes by themselves. grows: whether trees may be grown in one call.
    levels: drafted since last set to 0; grown: whether some of them one by one.
    """

    drafter: EngineDrafter
    timed: PassTimes
    alone: list[list[float]]
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
        spent = self.drafter.engine.cost.seconds - before
        sizes = [1, *[growth.places.shape[1]] * (len(levels) - 1)]
        shares = np.interp(sizes, *np.transpose(self.alone))
        for size, share in zip(sizes, (shares / shares.sum()).tolist(), strict=True):
            self.timed.add("tree", size, spent * share)
        self.levels += len(levels)
        return levels

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        self.drafter.commit(tree, verdict, scored)


class CycleKind(NamedTuple):
    """Cycles that cost the host alike."""

    family: str
    levels: int
    nodes: int
    pooled: bool


@dataclass(frozen=True, slots=True)
class CycleSamples:
    """Samples in ms: of passes by "plain", "target", "draft", "chain" or "tree" and size, of the host by kind of cycle.

    alone: see `TimedTreeDrafter`.
    """

    alone: list[list[float]] = field(default_factory=list)

    passes: defaultdict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    host: defaultdict[CycleKind, list[float]] = field(default_factory=lambda: defaultdict(list))


def measure(
    target: EngineTarget,
    drafter: EngineDrafter,
    run: tuple[CostLoop, ...],
    rounds: int,
    alone: list[list[float]],
    conditions: Sequence[EncodedCondition],
    report: Callable[[], None],
) -> CycleSamples:
    """Time `rounds` images of plain autoregression and of every loop, after the start of one that is not kept.

    Loops whose trees the engines are too small for are left out. conditions: of the images, in turn. report: is told
    of every image.
    """
    found, left = CycleSamples(alone), [PLAIN, *run]
    for turn in range(rounds + 1):
        found = CycleSamples(alone) if turn == 1 else found
        target.prepare(conditions[turn % len(conditions)])
        for loop in tuple(left):
            try:
                draw(target, None if loop is PLAIN else drafter, loop, turn, found, MOST_CYCLES if turn else WARM_UP)
            except EngineError:
                left.remove(loop)
            report()
    return found


def draw(
    target: EngineTarget,
    drafter: EngineDrafter | None,
    loop: CostLoop,
    image: int,
    found: CycleSamples,
    most_cycles: int,
) -> None:
    """Draw one image, and add what its cycles took. The first pass, of the condition alone, is left out."""
    timed = PassTimes(found.passes)
    watched = TimedTreeTarget(target, timed, "target" if drafter is not None else "plain")
    drafting = None
    if drafter is not None:
        fuses_trees = drafter.fuses_trees and not loop.by_level
        drafting = TimedTreeDrafter(drafter, timed, found.alone, fuses_trees)
    most = min(MOST_NODES, target.engine.shape.capacity)
    started = perf_counter()
    for cycle in cycles(watched, drafting, loop.policy, loop.rule, sampling(0, image), most):
        spent = perf_counter() - started
        if cycle.number and not loop.by_level:
            levels = drafting.levels if drafting is not None else 0
            grown = drafting is not None and drafting.grown
            family = "cost_aware" if grown and loop.family == "cost_aware_chain" else loop.family
            kind = CycleKind(family, levels, cycle.tree.size, loop.pooled and cycle.tree.size > 1)
            found.host[kind].append(1e3 * (spent - timed.seconds))
        timed.seconds = 0.0
        if drafting is not None:
            drafting.levels, drafting.grown = 0, False
        if cycle.number >= most_cycles:
            return
        started = perf_counter()


def typical(samples: list[float]) -> float:
    """The mean, the slowest left out; the median of so few that one disturbance would move the mean."""
    held = np.array(samples)
    if held.size < ENOUGH:
        return float(np.median(held))
    return float(held[held <= np.percentile(held, SLOWEST)].mean())


def curve(found: CycleSamples, what: str) -> list[list[float]]:
    """[[size, ms], ...] of sizes with enough samples, never falling with the size.

    A target pass over the root alone is plain autoregression's where loops that draft lack it.
    """
    samples = {size: held for (kind, size), held in found.passes.items() if kind == what and len(held) >= FEWEST}
    if what == "target":
        samples.setdefault(1, found.passes["plain", 1])
    sizes = sorted(samples)
    return rising([[size, typical(samples[size])] for size in sizes], [len(samples[size]) for size in sizes])


def host_costs(found: CycleSamples, family: str) -> dict[str, float]:
    """ms of a cycle, a level, a node and of pooling: least squares over the family's kinds of cycles, none below 0."""
    kinds = {kind: held for kind, held in found.host.items() if kind.family == family}
    if family not in CHOOSING:  # an image's last cell has nothing to draft
        kinds = {kind: held for kind, held in kinds.items() if kind.levels and len(held) >= FEWEST}
    if not kinds:
        raise ValueError(f"in_cycle: too few cycles of '{family}' were timed; take more rounds")
    sums = np.array([[1.0, kind.levels, kind.nodes, kind.pooled] for kind in kinds])
    weights = np.sqrt([len(held) for held in kinds.values()])
    wanted = np.array([typical(held) for held in kinds.values()])
    costs, used = np.zeros(len(HOST_PARTS)), np.arange(len(HOST_PARTS))
    while used.size:
        fitted = np.linalg.lstsq(sums[:, used] * weights[:, None], wanted * weights, rcond=None)[0]
        if fitted.min() >= 0.0:
            costs[used] = fitted
            break
        used = np.delete(used, fitted.argmin())
    return {part: round(float(cost), 5) for part, cost in zip(HOST_PARTS, costs, strict=True)}


def to_dict(found: CycleSamples, rounds: int) -> dict[str, Any]:
    """What was found, as JSON holds it."""
    families = dict.fromkeys(kind.family for kind in found.host if kind.family != PLAIN.family)
    return {
        "rounds": rounds,
        "plain": {
            "target_ms": round(typical(found.passes["plain", 1]), 4),
            "host_ms": round(typical(found.host[CycleKind(PLAIN.family, 0, 1, False)]), 4),
        },
        **{f"{what}_ms": curve(found, what) for what in ("target", "draft", "chain", "tree")},
        "host_ms": {family: host_costs(found, family) for family in families},
    }
