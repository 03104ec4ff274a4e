"""This project's own policy: each tree maximises the expected tokens per millisecond on the given engine."""

from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np

from underpaint.algos.chance import Chance
from underpaint.algos.draft.acceptance_estimator import AcceptanceEstimator, ChainForecast
from underpaint.algos.draft.backoff import Backoff
from underpaint.algos.draft.calibration import Calibration
from underpaint.algos.draft.choice import NOTHING, Choice, Kind
from underpaint.algos.draft.costs import MEASURED_DRAFT_MS, MEASURED_VERIFY_MS, Between, ChainCosts, DraftCosts
from underpaint.algos.draft.drawn_trees import NO_TREE, DrawnTrees
from underpaint.algos.draft.point_trees import PointTrees
from underpaint.algos.draft.roofline_costs import DraftingCosts, NetLoss, drafting_costs, likely_length
from underpaint.algos.draft.sequoia import StaticTree
from underpaint.algos.draft.settings import at_least
from underpaint.algos.draft.shape import within
from underpaint.algos.draft.spec import POLICIES, PolicySpec
from underpaint.algos.draft.tree_builder import draws_siblings, fuses_chains, likeliest_chain
from underpaint.algos.protocols import Budget, Expander, Grid, has_window
from underpaint.algos.registry import (
    MOST_CELLS,
    MOST_MS,
    MOST_NODES,
    MOST_WEIGHT,
    Bounds,
    Cells,
    CellsOrNone,
    Milliseconds,
    Nodes,
    NodesOrNone,
    Share,
    Tune,
    Weight,
    check_bounds,
)
from underpaint.algos.tree import DraftTree, Verdict, root_only

NO_CHAIN: Final = ChainForecast(0, 0.0)


@dataclass(slots=True)
class Roofline:
    """Draft another level while that raises the expected tokens per ms; then verify as many nodes as pay.

    **Trees.** The expected number of tokens of a tree is 1 (the extra token) plus the sum of its nodes' scores. A
    node's score is the product of the acceptance probabilities along its path. These are draft probabilities, corrected
    by what was learned over the image and in the cells to the left and above (see `Calibration`). A tree costs its
    drafter passes and one target pass over its nodes; both come from the engine's measured cost curve. Before a level
    is drafted, its candidates are forecast: the scores of the nodes to expand, times the mean probabilities by rank at
    the level above. Nodes that would not be in the best forecast tree are not expanded. Whether to draft at all is
    forecast in the same way from the neighbouring cells' draft probabilities.

    **Chains.** Some drafters draft a chain of their likeliest tokens in one call. If the cost of such a call is known,
    the best chain is forecast too, from the acceptance of such tokens in the image so far (see `AcceptanceEstimator`).
    It is drafted if it should give more tokens per ms than the forecast tree. The tree is forecast only once in
    `lookahead_interval` cycles, because its forecast takes longer, and neighbouring cells are similar.

    **Windows.** If the drafter also has a Jacobi window, the window is tried after the first tree. Its best length and
    rate follow from the acceptance of its drafts at each place and in the neighbourhood (see `AcceptanceEstimator`).
    The rate is compared with those of a plain step, the best chain and the forecast trees; the drafter does not run
    while the window is best. Slower options are re-evaluated after `second_look` cycles, then twice as many, and so on.

    **Drawn siblings.** If trees of drawn siblings have their own rule, Sequoia's tree is replanned as the acceptance
    changes (see `DrawnTrees`), and drafted if it should give more than all other options.

    **Limited loss.** If no draft pays, trials cost more than they give. The policy counts the image's net loss to plain
    decoding by the cost curve (see `NetLoss`). Once `loss_budget` plain steps are lost, the rest of the image is
    decoded plainly.

    All choices depend only on the past, so point proposals stay lossless. So do windows and drawn siblings, because the
    number of children of a node is fixed before any is drawn.

    Attributes:
        verify_ms, draft_ms, between: The engine's cost curve, see `CostCurve` and `draft_table`; measure it on your
            engine.
        chain_ms: (levels, ms) pairs, rising from 1 level, for a chain drafted in one call, including host time. The
            largest size is the longest chain. None: The cost is unknown, and all trees are drafted level by level.
        plain_ms: A cycle without drafts, > 0. None: The value of `verify_ms` for the root alone. It may be less,
            because no drafter pass evicts the caches before it.
        tree_ms: For a tree of drawn siblings drafted in one call: the call, and each level in it. None: Levels are
            drafted one by one, each at the cost of a pass over one node.
        top_k: The most nodes expanded per level, and children of each, >= 1.
        max_depth: The most levels drafted one by one, >= 1.
        prior, decay, above, band_prior: See `Calibration`; > 0, in [0, 1], >= 0, > 0.
        chain_prior, chain_decay: See `AcceptanceEstimator`, which shares the other two; > 0, in [0, 1].
        probe_first, probe_most: If drafting does not seem to pay, one level is drafted anyway after a number of cycles,
            which doubles with each such trial from `probe_first` up to `probe_most`; >= 1.
        lookahead_interval: Cycles between forecasts of slower options, >= 1: of a tree while a chain is drafted, and of
            chains and drawn siblings while the window is best.
        windows: Passes over the window in a trial, >= 0; 0 disables windows. The observations of the first half, which
            fill the window, are discarded.
        least_window: The fewest drafts in a pass over the window, >= 0: shorter passes would pay at once, but the later
            drafts would not improve for the next pass. 0: The length that pays best by the cost curve at an acceptance
            of 0.8, see `likely_length`.
        window_prior, window_decay: See `AcceptanceEstimator`.
        window_margin: The factor by which another option must be better, >= 1, because each pass over the window also
            improves its drafts. A plain step only has to be as good.
        second_look: Cycles until the slower of the window and the rest is re-evaluated, >= 1.
        siblings: The most siblings drawn at a node, >= 0; 0 disables drawn trees.
        sibling_prior: See `DrawnTrees`, > 0.
        sibling_trial: The number of trees of drawn siblings that are tried in any case, >= 0.
        with_replacement: Siblings are independent draws; needs a rule for "iid" trees.
        loss_budget: The number of plain steps that an image may lose in total, >= 0; one cycle may exceed it.
        trees: Whether to use trees of likeliest tokens. Only these run the drafter before they are decided; without
            them, all choices are made before drafting.
    """

    verify_ms: Annotated[tuple[tuple[int, float], ...], Bounds(0.0, MOST_MS, above=True)] = MEASURED_VERIFY_MS
    draft_ms: Annotated[DraftCosts, Bounds(0.0, MOST_MS)] = MEASURED_DRAFT_MS
    chain_ms: Annotated[ChainCosts | None, Bounds(0.0, MOST_MS)] = None
    plain_ms: Annotated[float, Bounds(0.0, MOST_MS, above=True)] | None = None
    tree_ms: tuple[Milliseconds, Milliseconds] | None = None
    between: Between = "line"
    top_k: Nodes = 16
    max_depth: Annotated[Nodes, Tune((4, 6, 8, 10))] = 8
    prior: Weight = 6.0
    decay: Share = 0.8
    above: Annotated[float, Bounds(0.0, MOST_WEIGHT)] = 0.5
    band_prior: Weight = 4.0
    chain_prior: Weight = 2.0
    chain_decay: Share = 0.6
    probe_first: Cells = 4
    probe_most: Cells = 16
    lookahead_interval: Cells = 8
    windows: Annotated[CellsOrNone, Tune((0, 8, 12, 20, 32))] = 20
    least_window: CellsOrNone = 0
    window_prior: Weight = 8.0
    window_decay: Share = 0.6
    window_margin: Annotated[float, Bounds(1.0, MOST_NODES)] = 1.5
    second_look: Cells = 12
    siblings: Annotated[NodesOrNone, Tune((0, 2, 4))] = 4
    sibling_prior: Weight = 2.0
    sibling_trial: CellsOrNone = 1
    with_replacement: bool = False
    loss_budget: Annotated[float, Bounds(0.0, MOST_CELLS)] = 10.0
    trees: bool = True
    _costs: DraftingCosts = field(init=False, repr=False)
    _plain_rate: float = field(init=False, repr=False)
    _calibration: Calibration = field(init=False, repr=False)
    _acceptance: AcceptanceEstimator = field(init=False, repr=False)
    _cell: int = field(init=False, repr=False, default=1)
    _plain_cycles: int = field(init=False, repr=False, default=0)
    _probe_wait: int = field(init=False, repr=False, default=1)
    _lookahead_wait: int = field(init=False, repr=False, default=0)
    _rival_rate: float = field(init=False, repr=False, default=0.0)
    _rival_wait: int = field(init=False, repr=False, default=0)
    _grid: Grid = field(init=False, repr=False)
    _window: AcceptanceEstimator = field(init=False, repr=False)
    _window_trials: int = field(init=False, repr=False, default=0)
    _trial_length: int = field(init=False, repr=False, default=1)
    _drafted: Kind = field(init=False, repr=False, default="plain")
    _trees: PointTrees = field(init=False, repr=False)
    _drawn: DrawnTrees = field(init=False, repr=False)
    _drawn_trials: int = field(init=False, repr=False, default=0)
    _again: Backoff = field(init=False, repr=False)
    _lost: NetLoss = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_bounds("policy 'roofline'", self)
        at_least("roofline", self.probe_first, probe_most=self.probe_most)
        curves = self.verify_ms, self.draft_ms, self.chain_ms, self.plain_ms, self.tree_ms
        self._costs = drafting_costs(*curves, self.between, self.top_k, self.least_window)
        self._plain_rate = 1.0 / self._costs.plain_ms
        self._trial_length = likely_length(np.array(self._costs.window.ms))
        self.begin(Grid(1, 1))

    @property
    def most_nodes(self) -> int:
        """The most nodes of any tree, including the root."""
        return self._costs.most + 1

    @property
    def longest_chain(self) -> int:
        """The most levels of a chain drafted in one call; 0 if the cost of such a call is unknown."""
        return len(self._costs.chain.ms)

    def begin(self, grid: Grid) -> None:
        self._calibration = Calibration(grid, self.prior, self.decay, self.above, self.band_prior)
        self._acceptance = AcceptanceEstimator(grid, self.chain_prior, self.chain_decay, self.above, self.band_prior)
        self._cell, self._plain_cycles, self._probe_wait, self._lookahead_wait = 1, 0, self.probe_first, 0
        self._trees = PointTrees(self._calibration, self._costs.verify, self._costs.draft, self.top_k)
        first = AcceptanceEstimator(grid, self.chain_prior, self.chain_decay, self.above, self.band_prior)
        costs, most = (self._costs.siblings, self._costs.call_ms), max(1, self.siblings)
        self._drawn = DrawnTrees(first, *costs, most, self.max_depth, self.sibling_prior, self.with_replacement)
        self._drawn_trials = self.sibling_trial
        self._grid, self._again, self._rival_wait = grid, Backoff(self.second_look), 0
        self._lost = NetLoss(self._costs.plain_ms, self.loss_budget)
        self._try_window()

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the next tree. Only the window and drawn siblings use random draws."""
        chosen = self.choose(drafter, budget)
        if chosen.kind == "window":
            assert has_window(drafter)
            return drafter.draft_window(chosen.levels, chance)
        if chosen.kind == "drawn":
            return self._drawn.draft_tree(drafter, root, chosen.shape, chance)
        if chosen.kind == "tree":
            most = min(self._costs.most, budget.max_nodes - 1)
            return self._trees.draft_tree(drafter, root, self._cell, chosen.levels, most)
        if chosen.kind == "chain":
            return likeliest_chain(drafter, root, chosen.levels)
        return root_only(root, drafter.vocab_size)

    def choose(self, drafter: object, budget: Budget) -> Choice:
        """Return the choice for the next tree, from the past alone; `drafter` is only asked for its capabilities."""
        chosen = self._choose(drafter, budget)
        self._drafted = chosen.kind
        return chosen

    def _choose(self, drafter: object, budget: Budget) -> Choice:
        most = min(self._costs.most, budget.max_nodes - 1)
        deepest = min(self.max_depth, budget.max_depth, most)
        if deepest <= 0 or self._lost.is_too_large:
            return NOTHING
        if self._drawn_trials and self._knows_enough and self._draws(drafter):
            self._drawn_trials -= 1  # before the window's trial, after which the drafter would have more to read
            return self._choice_of_drawn(self._drawn.trial_tree(), budget)
        longest = self._longest_window(drafter, budget, most)
        if longest and self._window_trials:
            self._window_trials -= 1
            if self._window_trials == self.windows // 2:  # discard what was learned while the window filled up
                self._window = self._new_estimator()
            return Choice("window", min(self._trial_length, longest))
        window = self._window.best_chain(self._cell, longest, self._costs.window)
        if window.rate > self._plain_rate and self._window_leads(self.window_margin * window.rate, drafter, budget):
            if self._again.is_due() and self._tree_pays(self.window_margin * window.rate, deepest, most):
                return Choice("tree", deepest)
            return Choice("window", window.levels)
        chain, drawn_tree = self._forecast_rivals(drafter, budget)
        rate = max(chain.rate, drawn_tree.rate, self._plain_rate)
        if longest and self._again.is_due():
            self._try_window()
        drafts = chain.levels > 0 or len(drawn_tree.shape) > 1
        if drafts and self._lookahead_wait:
            self._lookahead_wait -= 1
        elif self._looked_and_pays(drafts, rate, deepest, most):
            return Choice("tree", deepest)
        if rate > self._plain_rate:
            self._plain_cycles, self._probe_wait = 0, self.probe_first
            if drawn_tree.rate == rate:
                return self._choice_of_drawn(drawn_tree, budget)
            return Choice("chain", chain.levels)
        return Choice("tree", deepest) if self.trees and self._time_to_probe() else NOTHING

    def _window_leads(self, rate: float, drafter: object, budget: Budget) -> bool:
        """Return whether chains and drawn siblings are below this rate; forecasts both at intervals."""
        if self._drafted == "window" and self._rival_wait:
            self._rival_wait -= 1
        else:
            chain, drawn_tree = self._forecast_rivals(drafter, budget)
            self._rival_rate, self._rival_wait = max(chain.rate, drawn_tree.rate), self.lookahead_interval - 1
        return rate > max(self._rival_rate, self._plain_rate)

    def _forecast_rivals(self, drafter: object, budget: Budget) -> tuple[ChainForecast, StaticTree]:
        """Return the best chain in one call and the best tree of drawn siblings; with rate 0 if there is none."""
        chain, most = NO_CHAIN, min(self._costs.most, budget.max_nodes - 1)
        if self.longest_chain and fuses_chains(drafter):
            longest = min(self.longest_chain, budget.max_depth, most)
            chain = self._acceptance.best_chain(self._cell, longest, self._costs.chain)
        return chain, self._drawn.best(self._cell) if self._draws(drafter) else NO_TREE

    def _draws(self, drafter: object) -> bool:
        return self.siblings > 0 and draws_siblings(drafter)

    def _choice_of_drawn(self, planned: StaticTree, budget: Budget) -> Choice:
        shape = within(planned.shape, budget)
        return Choice("drawn", shape=shape, drawn=self._drawn.drawn_as(shape))

    def _try_window(self) -> None:
        """Restart the window's trial and discard its observations, because it improves as the image grows."""
        self._window, self._window_trials = self._new_estimator(), self.windows

    def _new_estimator(self) -> AcceptanceEstimator:
        return AcceptanceEstimator(self._grid, self.window_prior, self.window_decay, self.above, self.band_prior)

    def _longest_window(self, drafter: object, budget: Budget, most: int) -> int:
        """Return the most drafts the window can have now; 0 if none, or before the first tree."""
        if not (self.windows and has_window(drafter) and self._knows_enough):
            return 0
        return min(drafter.window_length, budget.max_depth, most)

    @property
    def _knows_enough(self) -> bool:
        """Whether options other than trees of likeliest tokens may be tried: after the first such tree, if enabled."""
        return self._calibration.knows_any or not self.trees

    def _tree_pays(self, rate: float, deepest: int, most: int) -> bool:
        """Return whether a tree of likeliest tokens should have a higher rate; if so, restart the probe wait."""
        pays = self.trees and self._trees.pay(self._cell, rate, deepest, most)
        if pays:
            self._plain_cycles, self._probe_wait = 0, self.probe_first
        return pays

    def _looked_and_pays(self, drafts: bool, rate: float, deepest: int, most: int) -> bool:
        """Return the same, with or without another option that drafts; with one, the next forecast of a tree waits."""
        if not drafts:
            return self._tree_pays(rate, 1, most)
        pays = self._tree_pays(rate, deepest, most)
        self._lookahead_wait = 0 if pays else self.lookahead_interval - 1
        return pays

    def _time_to_probe(self) -> bool:
        """Return whether to try drafting although it should not pay; the waits become longer."""
        self._plain_cycles += 1
        if self._plain_cycles < self._probe_wait:
            return False
        self._plain_cycles, self._probe_wait = 0, min(2 * self._probe_wait, self.probe_most)
        return True

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """Learn from the accepted tokens, and from the draft probabilities of trees of likeliest tokens."""
        accepted, drafted = len(verdict.path), self._drafted
        self._cell = cell + accepted + 1
        self._lost.add(self._costs.spent_ms(drafted, tree, self._trees.drafting_ms()), accepted + 1)
        if drafted == "window":
            self._window.learn(cell, [True] * accepted + [False] * (accepted < tree.size - 1))
        elif drafted == "drawn":
            self._drawn.learn(tree, verdict, cell)
        elif drafted == "tree":
            self._acceptance.learn(cell, self._trees.learn(tree, verdict, cell))
        else:
            hits = [True] * accepted
            if accepted < tree.size - 1:
                hits.append(verdict.token == int(tree.tokens[accepted + 1]))
            self._acceptance.learn(cell, hits)


SPEC = POLICIES.register(
    PolicySpec(
        name="roofline",
        make=Roofline,
        drawn="top_k",
        source="this project; the choice by cost follows Sequoia (arXiv 2402.12374), the neighbours ADT-Tree "
        "(arXiv 2512.21857), the scores EAGLE-2 (arXiv 2406.16858)",
        cost_aware=True,
        examples=({"top_k": 3, "max_depth": 2},),
    )
)
