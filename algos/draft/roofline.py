"""Our own policy: each tree maximises the expected tokens per millisecond on the engine at hand."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from algos.arrays import FloatArray
from algos.chance import Chance
from algos.draft.calibration import Calibration
from algos.draft.costs import (
    MEASURED_DRAFT_MS,
    MEASURED_VERIFY_MS,
    Between,
    ChainCosts,
    DraftCosts,
    chain_table,
    cost_curve,
    draft_table,
)
from algos.draft.foresight import best_choice, best_imaginable, foresee
from algos.draft.grow import Growing, Level, best_first, chains, likeliest_chain
from algos.draft.kept import Chain, Kept, best_chain
from algos.draft.settings import at_least
from algos.draft.spec import POLICIES, Budget, Expander, Grid, PolicySpec
from algos.tree import DraftTree, Verdict, root_only

NO_CHAIN: Final = Chain(0, 0.0)


@dataclass(slots=True)
class Roofline:
    """Draft another level while that should raise the tokens per millisecond; then verify as many nodes as pay.

    A tree's expected tokens are 1 (the extra token) plus the sum of its nodes' scores; a score is the product along
    the path of the chances to be kept, which are draft probabilities corrected by what was learned over the image and
    in the cells on the left and above (see `Calibration`). Its cost is what the drafter passes have cost plus the
    target pass over its nodes, both from the engine's measured curve. Before a level is drafted its candidates are
    foreseen: the frontier's scores times the mean probabilities by rank at the level above; nodes that no foreseen
    tree would hold are not expanded. Whether to draft at all is foreseen from the neighbours' draft probabilities.

    Where the drafter drafts a chain of its likeliest tokens in one call, and the price is known, a chain is foreseen
    too, from how often such tokens were kept in the image so far (see `Kept`), and drafted where it should yield more
    tokens per millisecond than the tree that the neighbours' draft probabilities promise. Such a tree is looked for
    only now and then: a look takes longer than a chain's forecast, and next cells are much alike.
    Everything follows from the past, so point proposals stay lossless.

    verify_ms, draft_ms, between: the engine's cost curve, see `CostCurve` and `draft_table`; measure them on yours.
    chain_ms: (levels, ms) pairs, rising from 1 level: a chain drafted in one call, the host's share of it included. The
        largest measured is the longest chain. None: no price is known, so every tree is grown level by level.
    plain_ms: a cycle that drafts nothing, > 0. None: as `verify_ms` says of the root alone; it may be cheaper, as
        no drafter pass empties the caches before it.
    top_k: nodes expanded a level at most, and children of each, >= 1.
    max_depth: levels grown one by one at most, >= 1.
    prior, decay, above, band_prior: see `Calibration`; > 0, in [0, 1], >= 0, > 0.
    chain_prior, chain_decay: those of `Kept`, which shares the others; > 0, in [0, 1].
    probe_first, probe_most: where drafting does not seem to pay, one level is drafted all the same after so many
        cycles; each such trial doubles the wait for the next, from the first number up to the second; >= 1.
    look_every: where a chain is foreseen, a tree that does not seem to pay is looked for again so many cycles later,
        >= 1.
    """

    verify_ms: tuple[tuple[int, float], ...] = MEASURED_VERIFY_MS
    draft_ms: DraftCosts = MEASURED_DRAFT_MS
    chain_ms: ChainCosts | None = None
    plain_ms: float | None = None
    between: Between = "line"
    top_k: int = 16
    max_depth: int = 8
    prior: float = 6.0
    decay: float = 0.8
    above: float = 0.5
    band_prior: float = 4.0
    chain_prior: float = 2.0
    chain_decay: float = 0.6
    probe_first: int = 4
    probe_most: int = 16
    look_every: int = 8
    _verify: FloatArray = field(init=False, repr=False)
    _draft: FloatArray = field(init=False, repr=False)
    _chain: FloatArray = field(init=False, repr=False)
    _least: FloatArray = field(init=False, repr=False)
    _plain_rate: float = field(init=False, repr=False)
    _known: Calibration = field(init=False, repr=False)
    _kept: Kept = field(init=False, repr=False)
    _cell: int = field(init=False, repr=False, default=1)
    _grown: Growing | None = field(init=False, repr=False, default=None)
    _idle: int = field(init=False, repr=False, default=0)
    _wait: int = field(init=False, repr=False, default=1)
    _unseen: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        at_least("roofline", 1, top_k=self.top_k, max_depth=self.max_depth, look_every=self.look_every)
        at_least("roofline", 1, probe_first=self.probe_first)
        at_least("roofline", self.probe_first, probe_most=self.probe_most)
        weights = {name: getattr(self, name) for name in ("prior", "band_prior", "chain_prior")}
        decays = {name: getattr(self, name) for name in ("decay", "chain_decay")}
        at_least("roofline", 0, above=self.above, **weights, **decays)
        if min(weights.values()) == 0 or max(decays.values()) > 1:
            raise ValueError(f"policy 'roofline': expected weights > 0 and decays <= 1, got {weights} and {decays}")
        self._verify = cost_curve(self.verify_ms, 0.0, self.between).table()
        self._draft = draft_table(self.draft_ms, self.between, self.top_k)
        self._chain = np.empty(0) if self.chain_ms is None else chain_table(self.chain_ms, self.between)
        deepest = min(self.max_depth, self._verify.size - 1)
        cheapest = np.minimum.accumulate(self._verify[::-1])[::-1]
        self._least = self._draft.min() * np.arange(1, deepest + 1) + cheapest[1 : deepest + 1]
        plain_ms = float(self._verify[0]) if self.plain_ms is None else self.plain_ms
        if not 0 < plain_ms < np.inf:
            raise ValueError(f"policy 'roofline': plain_ms must be a positive time, got {self.plain_ms!r}")
        self._plain_rate = 1.0 / plain_ms
        self.begin(Grid(1, 1))

    def begin(self, grid: Grid) -> None:
        """See `Policy`."""
        self._known = Calibration(grid, self.prior, self.decay, self.above, self.band_prior)
        self._kept = Kept(grid, self.chain_prior, self.chain_decay, self.above, self.band_prior)
        self._cell, self._idle, self._wait, self._unseen = 1, 0, self.probe_first, 0
        self._grown = None

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """See `Policy`; no draw is made."""
        most = max(0, min(self._verify.size, budget.max_nodes) - 1)
        deepest = min(self.max_depth, budget.max_depth, most)
        self._grown = None
        if deepest == 0:
            return root_only(root, drafter.vocab_size)
        chain = NO_CHAIN
        if self._chain.size and chains(drafter):
            likely = self._kept.chances(self._cell, min(budget.max_depth, most, self._chain.size))
            chain = best_chain(likely, self._chain, self._verify)
        if not self._tree_pays(chain, deepest, most):
            if chain.rate > self._plain_rate:
                self._idle, self._wait = 0, self.probe_first
                return likeliest_chain(drafter, root, chain.levels)
            if not self._time_to_probe():
                return root_only(root, drafter.vocab_size)
        return self._grow_tree(drafter, root, deepest, most)

    def _tree_pays(self, chain: Chain, deepest: int, most: int) -> bool:
        """Whether a tree should yield more than `chain` and than a plain step."""
        rate = max(chain.rate, self._plain_rate)
        if not chain.levels:
            return self._foreseen(rate, 1, most)
        if self._unseen:
            self._unseen -= 1
            return False
        pays = self._foreseen(rate, deepest, most)
        self._unseen = 0 if pays else self.look_every - 1
        return pays

    def _foreseen(self, rate: float, deepest: int, most: int) -> bool:
        """Whether a tree of at most `deepest` levels should have a higher rate, by the neighbours' draft probabilities.

        Every level is foreseen as the first: the mean probabilities by rank, and the trust at the coming cell.
        """
        probs = self._known.expected(self._cell)
        if probs is None:
            return True
        adjust = self._known.at(self._cell)
        row = probs[None]
        scores = adjust(row).reshape(-1)
        if deepest > 1 and best_imaginable(float(scores.sum()), self._least[:deepest]) <= rate:
            return False
        level = Level([-1], np.empty(row.shape, dtype=np.int64), row, scores, 0)
        spent, found = float(self._draft[0]), best_choice(scores, self._verify, float(self._draft[0]), most).rate
        for _ in range(1, deepest):
            if found > rate:
                break
            ahead = foresee(scores, level, adjust, self._verify, spent + self._draft, most)
            if ahead.rate <= found:
                break
            frontier = level.scores[best_first(level.scores, ahead.frontier)]
            level = level._replace(scores=(frontier[:, None] * adjust(row)).reshape(-1))
            scores, found = np.concatenate((scores, level.scores)), ahead.rate
            spent += float(self._draft[ahead.frontier - 1])
        if found > rate:
            self._idle, self._wait = 0, self.probe_first
        return found > rate

    def _time_to_probe(self) -> bool:
        """Whether to try drafting although it should not pay: after ever longer waits."""
        self._idle += 1
        if self._idle < self._wait:
            return False
        self._idle, self._wait = 0, min(2 * self._wait, self.probe_most)
        return True

    def _grow_tree(self, drafter: Expander, root: int, deepest: int, most: int) -> DraftTree:
        """Level by level."""
        growing = self._grown = Growing(drafter, root)
        growing.grow_level(1, self.top_k, self._known.at(self._cell))
        spent = float(self._draft[0])
        scores = growing.scores()
        choice = best_choice(scores, self._verify, spent, most)
        while growing.depth < deepest:
            adjust = self._known.at(self._cell + growing.depth)
            ahead = foresee(scores, growing.levels[-1], adjust, self._verify, spent + self._draft, most)
            if ahead.rate <= choice.rate:
                break
            growing.grow_level(ahead.frontier, self.top_k, adjust)
            spent += float(self._draft[ahead.frontier - 1])
            scores = growing.scores()
            choice = best_choice(scores, self._verify, spent, most)
        return growing.tree(choice.nodes)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """See `Policy`. Learns from every committed token whose parent was expanded, verified or not."""
        committed = [int(tree.tokens[node]) for node in verdict.path] + [verdict.token]
        self._cell = cell + len(committed)
        if self._grown is None:
            for step, (token, drafted) in enumerate(zip(committed, tree.tokens[1:].tolist(), strict=False)):
                self._kept.learn(cell + step, step, token == drafted)
            return
        number = -1
        for step, (token, level) in enumerate(zip(committed, self._grown.levels, strict=False)):
            if number not in level.expanded:
                break
            row = level.expanded.index(number)
            tokens, probs = level.tokens[row].tolist(), level.probs[row]
            offered = {token: column for column, token in enumerate(tokens) if probs[column] > 0.0}
            self._known.learn(cell + step, probs, offered.get(token))
            self._kept.learn(cell + step, step, token == tokens[0])
            if token not in offered:
                break
            number = level.first + row * len(tokens) + offered[token]
        self._grown = None


SPEC = POLICIES.register(
    PolicySpec(
        name="roofline",
        make=Roofline,
        drawn="top_k",
        source="this project; the choice by cost follows Sequoia (arXiv 2402.12374), the neighbours ADT-Tree "
        "(arXiv 2512.21857), the scores EAGLE-2 (arXiv 2406.16858)",
    )
)
