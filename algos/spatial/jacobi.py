"""Speculative Jacobi decoding: the target's last pass gives the window of drafts, so no drafter is needed.

Each pass over the window gives a new distribution for each cell. The drafts are judged by the distributions they were
drawn from, which are one pass old. Cells after the first rejection get new drafts from the new distributions: drawn
independently (SJD), or coupled to the old drafts, so that most of them stay (SCD).

A lossless rule for chains stays lossless if each draft, given the earlier drafts and the decided tokens, has the
distribution by which it is judged. Independent drafts have it under all rules. Coupled drafts have it under token-wise
rules, which have not looked at them. A rule that looks ahead (block and traversal verification) has looked: its stop
depends on the later drafts, so their coupled successors are biased. `drawn_for` rejects this combination.

If the window's first cells have more than one candidate, the window is a tree (SJD-PAC; see `window_tree`). The drafts
beyond the last pass are then coupled from the nodes that follow the accepted path.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from underpaint.algos.accept.spec import spec_of
from underpaint.algos.accept.walk import excess, normalised
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.coupling import Noise
from underpaint.algos.draft.tree_builder import fuses_chains, fuses_trees
from underpaint.algos.protocols import Budget, Expander, FusedTreeLevel, FusedTreeSpec, Grid, Rule, has_window
from underpaint.algos.spatial.jacobi_window import (
    JacobiWindow,
    LookupTable,
    Refill,
    WindowDraft,
    drawn_for,
    tail_nodes,
    window_tree,
)
from underpaint.algos.step import Cycle, Decoded, Drafter, Scored, Target, check_probs, cycles
from underpaint.algos.tree import DraftTree, Drawn, Verdict, emitted, root_only


def maximal_coupling(token: int, draft: FloatArray, target: FloatArray, chance: Chance, at: At) -> int:
    """Draw from `target` [V]; the result equals `token`, itself drawn from `draft` [V], with probability 1 - TV.

    Flips at `At(Role.COUPLE, at.node)` and draws at `at`. Raises ValueError if `token` has probability 0 in `draft`.
    """
    if not draft[token] > 0.0:
        raise ValueError(
            f"maximal_coupling: token {token} has no probability in the distribution it is said to be drawn from"
        )
    if chance.flip(float(target[token]), At(Role.COUPLE, at.node), out_of=float(draft[token])):
        return token
    rest = excess(target, draft)
    return chance.draw(rest, at) if rest.any() else token


@dataclass(slots=True)
class WindowState:
    """The window of one image between its passes: its drafts and their distributions.

    Attributes:
        window: The settings of the window.
        grid: The size of the image in cells.
        vocab_size: The vocabulary size V.
        drawn: How its drafts count as drawn, see `drawn_for`.
        noise: The cells' noise, only for coupling "gumbel".
        likeliest: Each draft is the likeliest token of its distribution, for greedy rules.
    """

    window: JacobiWindow
    grid: Grid
    vocab_size: int
    drawn: Drawn
    noise: Noise | None = None
    likeliest: bool = False
    _tokens: list[int] = field(init=False, default_factory=list)
    _drafts: list[WindowDraft] = field(init=False, default_factory=list)
    _table: LookupTable = field(init=False)

    def begin(self, probs: FloatArray, token: int) -> None:
        """Start an image.

        Args:
            probs: [1, V], the distribution of its first cell.
            token: The token drawn from it.
        """
        self._tokens, self._drafts = [token], []
        self._table = LookupTable(self.grid, self.window.passes, self.window.beside)
        if self.window.looks_up:
            self._table.decide(self._tokens, self._distribution(probs[0]))

    def draft(self, length: int, chance: Chance) -> DraftTree:
        """Return the window below the last decided token, refilled up to `length` >= 0 drafts or its own length.

        Drafts beyond a shorter `length` are not changed.
        """
        cell, count = len(self._tokens), min(self.window.length, length)
        drafts = _refilled(
            self._tokens, self._drafts[:count], count, self._table, self.window.refill, self.vocab_size, chance
        )
        self._drafts[:count] = drafts
        if not drafts:
            return root_only(self._tokens[-1], self.vocab_size)
        window = self.window
        return window_tree(self._tokens[-1], drafts, window.candidates, window.levels, self.drawn, cell, chance)

    def pass_over(self, tree: DraftTree, verdict: Verdict, probs: FloatArray) -> None:
        """Update the window after a pass over another tree: remove drafts of decided cells, and keep the later ones.

        The rule has not looked at the later drafts, so each still has the distribution by which it is judged.
        """
        self._decide(tree, verdict, probs)
        self._drafts = self._drafts[len(verdict.path) + 1 :]

    def redraft(self, tree: DraftTree, verdict: Verdict, probs: FloatArray, chance: Chance) -> None:
        """Update the window after a pass over its own `tree`: decide cells, and draft the following cells again."""
        cell, drafts, table, window = len(self._tokens), self._drafts, self._table, self.window
        self._decide(tree, verdict, probs)
        done = len(verdict.path) + 1
        last = tree.depth
        nodes, behind = tail_nodes(tree, verdict.path, last), drafts[max(done, last) :]
        old_drafts, prefix = drafts[done:last], list(self._tokens)
        drafts = []
        for place, (draft, node) in enumerate(zip(old_drafts, nodes, strict=True), start=done):
            row, left = self._distribution(probs[node]), int(tree.tokens[node])
            table.see(cell + place, left, row)
            distribution = table.redraft(prefix, left, row)
            drafts.append(_redrawn(draft, distribution, cell + place, chance, window, self.noise))
            prefix.append(drafts[-1].token)
        if window.last_row and done <= last and len(prefix) < self.grid.cells - 1:
            row, left = self._distribution(probs[last]), int(tree.tokens[last])
            table.see(len(prefix), left, row)
            distribution, cell = table.redraft(prefix, left, row), len(prefix)
            if behind:
                drafts.append(_redrawn(behind.pop(0), distribution, cell, chance, window, self.noise))
            else:
                drafts.append(_drawn(distribution, cell, chance, self.noise))
        self._drafts = drafts + behind

    def _decide(self, tree: DraftTree, verdict: Verdict, probs: FloatArray) -> None:
        for token, node in zip(emitted(tree, verdict), (0, *verdict.path), strict=True):
            self._tokens.append(token)
            if self.window.looks_up:
                self._table.decide(self._tokens, self._distribution(probs[node]))

    def _distribution(self, row: FloatArray) -> FloatArray:
        return _certain(int(row.argmax()), self.vocab_size) if self.likeliest else normalised(row)


def _redrawn(
    draft: WindowDraft, distribution: FloatArray, cell: int, chance: Chance, window: JacobiWindow, noise: Noise | None
) -> WindowDraft:
    before, now = float(draft.distribution[draft.token]), float(distribution[draft.token])
    if window.coupling == "confidence" and now > window.confidence * before:
        return WindowDraft(draft.token, distribution)
    if window.coupling != "maximal":
        return _drawn(distribution, cell, chance, noise)
    at = At(Role.DRAFT, cell)
    return WindowDraft(maximal_coupling(draft.token, draft.distribution, distribution, chance, at), distribution)


def _drawn(distribution: FloatArray, cell: int, chance: Chance, noise: Noise | None) -> WindowDraft:
    """Draw a draft with the cell's own noise, if there is any, or independently."""
    token = chance.draw(distribution, At(Role.DRAFT, cell)) if noise is None else noise.race(distribution, cell)
    return WindowDraft(token, distribution)


def _refilled(
    tokens: list[int],
    drafts: list[WindowDraft],
    count: int,
    table: LookupTable,
    refill: Refill,
    vocab_size: int,
    chance: Chance,
) -> list[WindowDraft]:
    """Return `drafts`, of which there are at most `count`, filled up to `count` cells."""
    drafts, width = list(drafts), table.grid.width
    prefix = tokens + [draft.token for draft in drafts]
    for cell in range(len(prefix), len(tokens) + count):
        if refill in ("uniform", "random"):
            distribution = np.full(vocab_size, 1.0 / vocab_size)
            token = chance.draw(distribution, At(Role.REFILL, cell))
            distribution = _certain(token, vocab_size) if refill == "random" else distribution
        elif refill == "lookup" and (guess := table.guess(prefix)) is not None:
            distribution = guess
            token = chance.draw(distribution, At(Role.REFILL, cell))
        else:
            token = prefix[_copied_cell(cell, width, refill)]
            distribution = _certain(token, vocab_size)
        prefix.append(token)
        drafts.append(WindowDraft(token, distribution))
    return drafts


def _copied_cell(cell: int, width: int, refill: Refill) -> int:
    """Return the cell that a new `cell` copies: the one to its left, or above it."""
    row, column = divmod(cell, width)
    return cell - width if row > 0 and (refill == "above" or column == 0) else cell - 1


def _certain(token: int, vocab_size: int) -> FloatArray:
    one_hot: FloatArray = np.eye(1, vocab_size, token)[0]
    return one_hot


@dataclass(slots=True)
class WindowDrafter:
    """An `Expander` and `WindowExpander`: a Jacobi window, with or without a drafter."""

    window: WindowState
    drafter: Drafter | None = None
    drafted: DraftTree | None = None
    """The last tree drafted by the window."""
    draws_siblings: bool = False
    """Whether a policy may draw siblings, because there are rules for them."""

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
    """A Jacobi window used in addition to a tree policy.

    Attributes:
        window: The settings of the window.
        rule: The rule that judges the window.
        likeliest: The window's drafts are the likeliest tokens, for greedy rules.
        drawn_rules: The rules for the policy's drawn siblings, by how they were drawn; empty if it must not draw any.
    """

    window: JacobiWindow
    rule: Rule
    likeliest: bool
    drawn_rules: Mapping[Drawn, Rule] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WindowedCycles:
    """The `Verification` of decoding with a Jacobi window: one target pass per tree, the window's or the policy's.

    Attributes:
        target: The target model.
        drafter: The window, with or without a drafter.
        rule: The rule that judges all trees that the other rules do not judge.
        window_rule: The rule that judges the window.
        drawn_rules: The rules that judge the drafter's trees, by how their siblings were drawn.
        reserved_nodes: Number of nodes of the next target pass that are not available to the draft tree.
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
    """The policy of Jacobi decoding: every tree is the whole window."""

    def begin(self, grid: Grid) -> None:
        """Do nothing; the drafter holds the window."""

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Return the window; raise ValueError if the drafter has none."""
        if not has_window(drafter):
            raise ValueError("jacobi: this drafter has no window to draft from")
        return drafter.draft_window(budget.max_depth, chance)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """Do nothing; the length is fixed."""


def jacobi_cycles(
    target: Target, rule: Rule, chance: Chance, window: JacobiWindow, noise: Noise | None = None
) -> Iterator[Cycle]:
    """Decode one image in Jacobi windows, cycle by cycle.

    Args:
        target: The target model.
        rule: Any rule for chains of drawn tokens: "chain" is SJD's own, "gsd" is GSD. A rule that looks ahead needs
            coupling "independent". More than one candidate needs a token-wise rule for siblings without replacement. A
            rule without registered spec is not checked; it gets "iid" chains and "without_replacement" trees.
        chance: The randomness of the image.
        window: The settings of the window.
        noise: The cells' noise, only for coupling "gumbel".

    Raises:
        ValueError: The noise is missing or not needed, or rule and coupling do not fit.
    """
    spec = spec_of(rule)
    drawn: Drawn = "iid" if window.candidates == 1 else "without_replacement"
    if spec is not None:
        drawn = drawn_for(spec, window.coupling, window.candidates)
    if (window.coupling == "gumbel") != (noise is not None):
        raise ValueError(f"jacobi: coupling '{window.coupling}' {'needs' if noise is None else 'takes no'} noise")
    drafter = WindowDrafter(WindowState(window, target.grid, target.vocab_size, drawn, noise))
    verification = WindowedCycles(target, drafter, rule, rule)
    yield from cycles(target, None, WindowPolicy(), rule, chance, window.nodes, verification)


def jacobi_decode(
    target: Target, rule: Rule, chance: Chance, window: JacobiWindow, noise: Noise | None = None
) -> Decoded:
    """Decode one image (see `jacobi_cycles`), with one target pass per cycle, including cycle 0."""
    return Decoded.of(jacobi_cycles(target, rule, chance, window, noise))
