"""Our own policy: each tree maximises the expected tokens per millisecond on the engine at hand."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from algos.arrays import FloatArray
from algos.chance import Chance
from algos.draft.calibration import Calibration
from algos.draft.costs import MEASURED_DRAFT_MS, MEASURED_VERIFY_MS, Between, cost_curve
from algos.draft.grow import Growing, Level, best_first, scaled
from algos.draft.settings import at_least
from algos.draft.spec import POLICIES, Budget, Expander, Grid, PolicySpec
from algos.tree import DraftTree, Verdict, root_only


class Choice(NamedTuple):
    """How many of the best candidates to verify, and what that should yield."""

    nodes: int
    rate: float
    """Expected tokens per ms."""


@dataclass(slots=True)
class Roofline:
    """Draft another level while that should raise the tokens per millisecond; then verify as many nodes as pay.

    A tree's expected tokens are 1 (the extra token) plus the sum of its nodes' scores; a score is the product along
    the path of draft probability times trust, where the trust at a cell is learned from the cells on the left of it
    and above it (see `Calibration`). Its cost is what the drafter passes have cost plus the target pass over its
    nodes, from the measured curve. Before a level is drafted its candidates are foreseen: the frontier's scores times
    the mean probabilities by rank at the level above, at the trust of the cell that the level is for.
    Everything follows from the past, so point proposals stay lossless.

    verify_ms, draft_ms, between: the engine's cost curve, see `CostCurve`; measure them on yours.
    top_k: nodes expanded a level, and children of each, >= 1.
    max_depth: levels at most, >= 1.
    prior, decay, above: see `Calibration`; > 0, in [0, 1], >= 0.
    probe_every: where drafting does not seem to pay, one level is drafted every so many cycles all the same, >= 1.
    """

    verify_ms: tuple[tuple[int, float], ...] = MEASURED_VERIFY_MS
    draft_ms: float = MEASURED_DRAFT_MS
    between: Between = "line"
    top_k: int = 8
    max_depth: int = 8
    prior: float = 2.0
    decay: float = 0.8
    above: float = 0.5
    probe_every: int = 8
    _costs: FloatArray = field(init=False, repr=False)
    _trust: Calibration = field(init=False, repr=False)
    _cell: int = field(init=False, repr=False, default=1)
    _grown: Growing | None = field(init=False, repr=False, default=None)
    _profile: FloatArray | None = field(init=False, repr=False, default=None)
    _idle: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        at_least("roofline", 1, top_k=self.top_k, max_depth=self.max_depth, probe_every=self.probe_every)
        at_least("roofline", 0, decay=self.decay, above=self.above, prior=self.prior)
        if self.prior == 0 or self.decay > 1:
            raise ValueError(f"policy 'roofline': expected prior > 0 and decay <= 1, got {self.prior} and {self.decay}")
        self._costs = cost_curve(self.verify_ms, self.draft_ms, self.between).table()
        self.begin(Grid(1, 1))

    def begin(self, grid: Grid) -> None:
        """See `Policy`."""
        self._trust = Calibration(grid, self.prior, self.decay, self.above)
        self._cell, self._idle = 1, 0
        self._grown, self._profile = None, None

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """See `Policy`; no draw is made."""
        most = max(0, min(self._costs.size, budget.max_nodes) - 1)
        deepest = min(self.max_depth, budget.max_depth, most)
        self._grown = None
        if deepest == 0 or not self._worth_starting(most):
            return root_only(root, drafter.vocab_size)
        growing = self._grown = Growing(drafter, root)
        growing.grow_level(1, self.top_k, self._trust.trust(self._cell))
        self._profile = growing.levels[0].probs
        choice = best_choice(growing.scores(), self._costs, self.draft_ms, most)
        while growing.depth < deepest:
            trust = self._trust.trust(self._cell + growing.depth)
            spent = self.draft_ms * (growing.depth + 1)
            foreseen = np.concatenate((growing.scores(), foresee(growing.levels[-1], self.top_k, trust)))
            if best_choice(foreseen, self._costs, spent, most).rate <= choice.rate:
                break
            if not growing.grow_level(self.top_k, self.top_k, trust):
                break
            choice = best_choice(growing.scores(), self._costs, spent, most)
        return growing.tree(choice.nodes)

    def _worth_starting(self, most: int) -> bool:
        """Whether one level should pay, judged by the last first level; now and then it is tried regardless."""
        if self._profile is None:
            return True
        scores = scaled(self._profile, self._trust.trust(self._cell)).reshape(-1)
        pays = best_choice(scores, self._costs, self.draft_ms, most).rate > 1.0 / float(self._costs[0])
        self._idle = 0 if pays or self._idle + 1 >= self.probe_every else self._idle + 1
        return self._idle == 0

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """See `Policy`. Learns from every committed token whose parent was expanded, verified or not."""
        committed = [int(tree.tokens[node]) for node in verdict.path] + [verdict.token]
        self._cell = cell + len(committed)
        if self._grown is None:
            return
        number = -1
        for step, (token, level) in enumerate(zip(committed, self._grown.levels, strict=False)):
            if number not in level.expanded:
                break
            row = level.expanded.index(number)
            tokens, probs = level.tokens[row].tolist(), level.probs[row].tolist()
            offered = {token: column for column, token in enumerate(tokens) if probs[column] > 0.0}
            self._trust.learn(cell + step, sum(probs), token in offered)
            if token not in offered:
                break
            number = level.first + row * len(tokens) + offered[token]
        self._grown = None


def best_choice(scores: FloatArray, costs: FloatArray, spent_ms: float, most: int) -> Choice:
    """The number of best `scores` [C], at most `most`, of most expected tokens per ms; ties: the fewer.

    costs: [>= most + 1] ms of a target pass by drafted nodes; spent_ms: what the drafter passes have cost.
    """
    falling = -np.sort(-scores)[:most]
    falling = falling[: np.count_nonzero(falling)]
    expected = np.ones(falling.size + 1)
    expected[1:] += falling.cumsum()
    rates = expected / (spent_ms + costs[: expected.size])
    nodes = int(rates.argmax())
    return Choice(nodes, float(rates[nodes]))


def foresee(level: Level, top_k: int, trust: float) -> FloatArray:
    """Scores [F * k] that the next level's candidates should have: the frontier's times the mean by rank so far."""
    frontier = level.scores[best_first(level.scores, top_k)]
    profile = scaled(level.probs.mean(axis=0, keepdims=True), trust)
    foreseen: FloatArray = (frontier[:, None] * profile).reshape(-1)
    return foreseen


SPEC = POLICIES.register(
    PolicySpec(
        name="roofline",
        make=Roofline,
        drawn="top_k",
        source="this project; the choice by cost follows Sequoia (arXiv 2402.12374), the neighbours ADT-Tree "
        "(arXiv 2512.21857), the scores EAGLE-2 (arXiv 2406.16858)",
    )
)
