"""Speculative Jacobi decoding: the window of drafts is the target's own last guess, and no drafter is needed.

Each pass over the window gives a new distribution for every cell; the drafts are judged by the distributions they were
drawn from, one pass stale. What lies behind the first rejection is drafted anew from the new distributions:
independently (SJD), or coupled to what stood there, so that most of it stays (SCD).

A lossless rule for chains stays lossless if, given the drafts before it and all that was decided, each draft has the
distribution that its cell is judged by. Drafts drawn anew have it under every rule. Drafts coupled to what stood there
have it under rules that decide token by token, which have not looked at them. A rule that looks ahead (block and
traversal verification) has: where it stopped says something of the drafts behind, and their coupled successors are
biased. Such a pair is refused.

With more than one candidate for the window's first cells the window is a tree (SJD-PAC; see `window_tree`). What held
beyond the last pass is coupled on from the nodes that follow the accepted path.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from underpaint.algos.accept.spec import spec_of
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.coupling import Noise
from underpaint.algos.draft.tree_builder import fuses_chains, fuses_trees
from underpaint.algos.protocols import Budget, Expander, FusedTreeLevel, FusedTreeSpec, Grid, Rule, has_window
from underpaint.algos.spatial.jacobi_window import HeldWindow, JacobiWindow, drawn_for
from underpaint.algos.step import Cycle, Decoded, Drafter, Scored, Target, check_probs, cycles
from underpaint.algos.tree import DraftTree, Drawn, Verdict


@dataclass(slots=True)
class WindowDrafter:
    """A drafter, or none, with a Jacobi window beside it: an `Expander`, and a `WindowExpander`."""

    window: HeldWindow
    drafter: Drafter | None = None
    drafted: DraftTree | None = None
    """The last tree that the window drafted."""
    draws_siblings: bool = False
    """Whether a policy may draw siblings, as a rule for those stands by."""

    @property
    def vocab_size(self) -> int:
        return self.window.vocab_size

    @property
    def window_length(self) -> int:
        return self.window.window.length

    @property
    def fuses_chains(self) -> bool:
        return self.drafter is not None and fuses_chains(self.drafter)

    @property
    def fuses_trees(self) -> bool:
        return self.drafter is not None and fuses_trees(self.drafter)

    def draft_window(self, length: int, chance: Chance) -> DraftTree:
        self.drafted = self.window.draft(length, chance)
        return self.drafted

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        assert self.drafter is not None
        return self.drafter.expand(tokens, parents)

    def expand_chain(self, root: int, levels: int) -> IntArray:
        assert self.drafter is not None
        assert fuses_chains(self.drafter)
        return self.drafter.expand_chain(root, levels)

    def expand_tree(self, root: int, growth: FusedTreeSpec) -> list[FusedTreeLevel]:
        assert self.drafter is not None
        assert fuses_trees(self.drafter)
        return self.drafter.expand_tree(root, growth)


class WindowPlan(NamedTuple):
    """A window beside a tree policy.

    rule: what judges it. likeliest: its drafts are the likeliest tokens, as the rule decides by these. drawn_rules:
    what judges drawn siblings of the policy, by how they were drawn; empty where it is not to draw any.
    """

    window: JacobiWindow
    rule: Rule
    likeliest: bool
    drawn_rules: Mapping[Drawn, Rule] = MappingProxyType({})

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the window, then of drawn siblings."""
        return self.rule, *self.drawn_rules.values()


@dataclass(frozen=True, slots=True)
class WindowedCycles:
    """The `Verification` of decoding with a Jacobi window: one target pass over every tree, the window's or another.

    window_rule judges the window, drawn_rules the drafter's trees by how their siblings were drawn, rule all others.
    """

    target: Target
    drafter: WindowDrafter
    rule: Rule
    window_rule: Rule
    drawn_rules: Mapping[Drawn, Rule] = field(default_factory=dict)
    reserved_nodes: int = 0

    def __post_init__(self) -> None:
        self.drafter.draws_siblings = {"iid", "without_replacement"} <= self.drawn_rules.keys()

    def begin(self, scored: Scored, verdict: Verdict) -> None:
        if self.drafter.drafter is not None:
            self.drafter.drafter.begin(scored)
        self.drafter.window.begin(scored.probs, verdict.token)

    def decide(self, tree: DraftTree, number: int, chance: Chance) -> tuple[Verdict, bool]:
        scored = self.target.score(tree)
        probs, window = scored.probs, self.drafter.window
        check_probs(probs, tree, self.target.vocab_size)
        is_window = tree is self.drafter.drafted
        rule = self.window_rule if is_window else self.drawn_rules.get(tree.drawn, self.rule)
        verdict = rule(tree, probs, chance)
        self.target.commit(tree, verdict)
        if self.drafter.drafter is not None:
            self.drafter.drafter.commit(tree, verdict, scored)
        if is_window:
            window.redraft(tree, verdict, probs, chance)
        else:
            window.pass_over(tree, verdict, probs)
        return verdict, True


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """The policy of Jacobi decoding: every tree is the window, as long as it goes."""

    def begin(self, grid: Grid) -> None:
        """The drafter holds the window."""

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """ValueError where the drafter has no window."""
        if not has_window(drafter):
            raise ValueError("jacobi: this drafter has no window to draft from")
        return drafter.draft_window(budget.max_depth, chance)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """The length is fixed: nothing is learnt."""


def jacobi_cycles(
    target: Target, rule: Rule, chance: Chance, window: JacobiWindow, noise: Noise | None = None
) -> Iterator[Cycle]:
    """Decode one image in Jacobi windows, cycle by cycle.

    rule: any rule that covers chains of drawn tokens: "chain" is SJD's own, "gsd" is GSD. One that looks ahead needs
        coupling "independent". With more than one candidate, a token-wise rule for siblings without replacement. A rule
        that no registered spec made is not checked; it is given "iid" chains, and trees "without_replacement".
    noise: the cells' noise, for coupling "gumbel" only.
    Raises ValueError where the noise is missing or not wanted, and where rule and coupling do not fit each other.
    """
    spec = spec_of(rule)
    drawn: Drawn = "iid" if window.candidates == 1 else "without_replacement"
    if spec is not None:
        drawn = drawn_for(spec, window.coupling, window.candidates)
    if (window.coupling == "gumbel") != (noise is not None):
        raise ValueError(f"jacobi: coupling '{window.coupling}' {'needs' if noise is None else 'takes no'} noise")
    drafter = WindowDrafter(HeldWindow(window, target.grid, target.vocab_size, drawn, noise))
    verification = WindowedCycles(target, drafter, rule, rule)
    yield from cycles(target, None, WindowPolicy(), rule, chance, window.nodes, verification)


def jacobi_decode(
    target: Target, rule: Rule, chance: Chance, window: JacobiWindow, noise: Noise | None = None
) -> Decoded:
    """Decode one image (see `jacobi_cycles`). One target pass a cycle, cycle 0 included."""
    return Decoded.of(jacobi_cycles(target, rule, chance, window, noise))
