"""A Jacobi window between its passes: its settings, the drafts it holds, and how they are drafted anew."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import numpy as np

from underpaint.algos.accept.spec import RuleSpec
from underpaint.algos.accept.walk import excess, normalised
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.coupling import Noise
from underpaint.algos.numbers import MOST_FACTOR
from underpaint.algos.protocols import Grid
from underpaint.algos.registry import Bounds, Cells, Nodes, Share, Tune, check_bounds
from underpaint.algos.spatial.window_drafts import LookupTable, WindowDraft, tail_nodes, tree_nodes, window_tree
from underpaint.algos.tree import DraftTree, Drawn, Verdict, emitted, root_only

Coupling: TypeAlias = Literal["independent", "maximal", "gumbel", "confidence"]
"""How a draft is made from its cell's new distribution: anew (SJD, arXiv 2410.01699); by maximal coupling with the
draft that stood there, or by a race over noise that stays with the cell (SCD, arXiv 2510.24211); or that draft stays
while its probability does not fall much, else anew, which is biased (SJD++, arXiv 2512.07503)."""

Refill: TypeAlias = Literal["uniform", "random", "left", "above", "lookup"]
"""What the window's new cells hold. "uniform": a uniform draw, judged as such. "random": a uniform draw judged as a
point proposal, as in the released code of SJD and SCD. Or a copy of the cell to the left or above, a point proposal.
At the start of a row there is no left cell, in the first row none above; the other is copied then. "lookup" draws
from what the target said of the last decided cell with the same neighbours (see `lookup`), or copies."""


@dataclass(frozen=True, slots=True)
class JacobiWindow:
    """Settings.

    length: drafts in the window, >= 1. The released code of SJD counts the committed token too: its 16 is 15 here.
    candidates: tokens proposed for each of the first `levels` cells, >= 1; 1 is a chain. levels: 1..length.
    passes, beside: what a draft whose left token has changed is drawn from; as published (False, 0), from the last
        pass alone. passes: from what an earlier pass said of the cell beside the token that now stands on the left.
        beside: else from the last decided cell with the same tokens on the left and above; its distribution gets this
        weight, 0..1, and the last pass's the rest.
    last_row: after a rejection, the first cell behind the window is drafted from the pass's last distribution, as the
        released loops of SJD, SCD and GSD do: where m tokens are committed, m - 1 cells are refilled. Else m are.
    confidence: for coupling "confidence" only: a draft x stays where p_new(x) / p_old(x) is above it.
    """

    length: Annotated[Cells, Tune((4, 6, 8, 12, 16, 24))] = 16
    coupling: Coupling = "independent"
    refill: Annotated[Refill, Tune(("uniform", "random", "left", "above"))] = "uniform"
    candidates: Annotated[Nodes, Tune((2, 3, 4))] = 1
    levels: Cells = 1
    passes: bool = False
    beside: Share = 0.0
    last_row: Annotated[bool, Tune()] = False
    confidence: Annotated[float, Bounds(0.0, MOST_FACTOR)] = 0.5

    def __post_init__(self) -> None:
        check_bounds("window", self)
        if self.candidates > 1 and self.levels > self.length:
            raise ValueError(f"window: levels must be at most the window's {self.length} drafts, got {self.levels}")

    @property
    def is_exact(self) -> bool:
        """Whether each draft has the distribution that it is judged by."""
        return self.coupling != "confidence"

    @property
    def looks_up(self) -> bool:
        """Whether drafts are drawn from more than the last pass."""
        return self.refill == "lookup" or self.passes or self.beside > 0.0

    @property
    def nodes(self) -> int:
        """Nodes of its largest tree, the root included."""
        return tree_nodes(self.length, self.candidates, self.levels)

    def check_pass(self, most: int, who: str, holds: str) -> None:
        """Raise ValueError, which begins with `who`, where a pass of `most` positions is too small for the window."""
        if self.nodes <= most:
            return
        beside = self.nodes - self.length
        fewer = f"window={most - beside} or less" if most > beside else "fewer candidates"
        of = f" of {self.candidates} candidates in {self.levels} cells" if self.candidates > 1 else ""
        raise ValueError(
            f"{who}: window {self.length}{of} needs passes of {self.nodes} positions, {holds} {most}; set {fewer}"
        )


def drawn_for(rule: RuleSpec, coupling: Coupling, candidates: int = 1) -> Drawn:
    """How the window's drafts count as drawn for `rule`.

    Raises ValueError, with the reason, where `rule` is not what it promises in windows of this coupling and with so
    many candidates, or does not cover them.
    """
    if rule.looks_ahead and coupling != "independent":
        raise ValueError(
            f"jacobi: rule '{rule.name}' looks at the drafts behind a token before it decides, so the drafts that "
            f"coupling '{coupling}' carries over would be biased; choose coupling 'independent', or a rule that "
            "decides token by token, such as 'chain'"
        )
    if candidates == 1:
        known: tuple[Drawn, ...] = ("iid", "without_replacement")
        fits = [drawn for drawn in known if drawn in rule.drawn]
        if rule.greedy or not fits:
            raise ValueError(
                f"jacobi: rule '{rule.name}' does not judge drawn tokens; a Jacobi window is a chain of drawn tokens, "
                "choose a rule for those, such as 'chain'"
            )
        return fits[0]
    if rule.greedy or rule.needs_chain or rule.looks_ahead or "without_replacement" not in rule.drawn:
        raise ValueError(
            f"jacobi: rule '{rule.name}' does not fit {candidates} candidates a cell, which are drawn without "
            "replacement and stand below every candidate before them; choose a rule for those that decides token by "
            "token, such as 'without_replacement', or candidates=1"
        )
    return "without_replacement"


def maximal_coupling(held: int, draft: FloatArray, target: FloatArray, chance: Chance, at: At) -> int:
    """A draw from `target` [V] that is `held`, itself a draw from `draft` [V], with probability 1 - TV.

    Flips at `At(Role.COUPLE, at.node)` and draws at `at`. ValueError where `draft` could not have drawn `held`.
    """
    if not draft[held] > 0.0:
        raise ValueError(
            f"maximal_coupling: token {held} has no probability in the distribution it is said to be drawn from"
        )
    if chance.flip(float(target[held]), At(Role.COUPLE, at.node), out_of=float(draft[held])):
        return held
    rest = excess(target, draft)
    return chance.draw(rest, at) if rest.any() else held


@dataclass(slots=True)
class HeldWindow:
    """The window of one image between its passes: its drafts, and what the target said.

    drawn: how its drafts count as drawn, see `drawn_for`. noise: the cells' noise, for coupling "gumbel" only.
    likeliest: each draft is the likeliest token of its distribution, for rules that decide by the likeliest.
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
        """Start an image. probs: [1, V], of its first cell, which `token` was drawn for."""
        self._tokens, self._drafts = [token], []
        self._table = LookupTable(self.grid, self.window.passes, self.window.beside)
        if self.window.looks_up:
            self._table.decide(self._tokens, self._said(probs[0]))

    def draft(self, length: int, chance: Chance) -> DraftTree:
        """The window below the last decided token, filled up to `length` drafts, >= 0, or to its own length.

        What it holds behind a shorter length stays as it is.
        """
        cell, wanted = len(self._tokens), min(self.window.length, length)
        drafts = _refilled(
            self._tokens, self._drafts[:wanted], wanted, self._table, self.window.refill, self.vocab_size, chance
        )
        self._drafts[:wanted] = drafts
        if not drafts:
            return root_only(self._tokens[-1], self.vocab_size)
        window = self.window
        return window_tree(self._tokens[-1], drafts, window.candidates, window.levels, self.drawn, cell, chance)

    def pass_over(self, tree: DraftTree, verdict: Verdict, probs: FloatArray) -> None:
        """Take in a pass over another tree: drafts of the cells that it decided go, those behind them stay.

        Nobody has looked at these, so each still has the distribution that it is judged by.
        """
        self._decide(tree, verdict, probs)
        self._drafts = self._drafts[len(verdict.path) + 1 :]

    def redraft(self, tree: DraftTree, verdict: Verdict, probs: FloatArray, chance: Chance) -> None:
        """Take in a pass over `tree`, the window's own, and draft anew behind what it decided."""
        cell, drafts, table, window = len(self._tokens), self._drafts, self._table, self.window
        self._decide(tree, verdict, probs)
        done = len(verdict.path) + 1
        last = tree.depth
        nodes, behind = tail_nodes(tree, verdict.path, last), drafts[max(done, last) :]
        held, known = drafts[done:last], list(self._tokens)
        drafts = []
        for place, (draft, node) in enumerate(zip(held, nodes, strict=True), start=done):
            row, left = self._said(probs[node]), int(tree.tokens[node])
            table.see(cell + place, left, row)
            distribution = table.redraft(known, left, row)
            drafts.append(_redrawn(draft, distribution, cell + place, chance, window, self.noise))
            known.append(drafts[-1].token)
        if window.last_row and done <= last and len(known) < self.grid.cells - 1:
            row, left = self._said(probs[last]), int(tree.tokens[last])
            table.see(len(known), left, row)
            distribution, cell = table.redraft(known, left, row), len(known)
            if behind:
                drafts.append(_redrawn(behind.pop(0), distribution, cell, chance, window, self.noise))
            else:
                drafts.append(_drawn(distribution, cell, chance, self.noise))
        self._drafts = drafts + behind

    def _decide(self, tree: DraftTree, verdict: Verdict, probs: FloatArray) -> None:
        for token, node in zip(emitted(tree, verdict), (0, *verdict.path), strict=True):
            self._tokens.append(token)
            if self.window.looks_up:
                self._table.decide(self._tokens, self._said(probs[node]))

    def _said(self, row: FloatArray) -> FloatArray:
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
    """A draft by the cell's own noise, where it has some, or drawn anew."""
    token = chance.draw(distribution, At(Role.DRAFT, cell)) if noise is None else noise.race(distribution, cell)
    return WindowDraft(token, distribution)


def _refilled(
    tokens: list[int],
    drafts: list[WindowDraft],
    wanted: int,
    table: LookupTable,
    refill: Refill,
    vocab_size: int,
    chance: Chance,
) -> list[WindowDraft]:
    """`drafts`, at most `wanted`, filled up to so many cells."""
    drafts, width = list(drafts), table.grid.width
    known = tokens + [draft.token for draft in drafts]
    for cell in range(len(known), len(tokens) + wanted):
        if refill in ("uniform", "random"):
            distribution = np.full(vocab_size, 1.0 / vocab_size)
            token = chance.draw(distribution, At(Role.REFILL, cell))
            distribution = _certain(token, vocab_size) if refill == "random" else distribution
        elif refill == "lookup" and (found := table.guess(known)) is not None:
            distribution = found
            token = chance.draw(distribution, At(Role.REFILL, cell))
        else:
            token = known[_copied_cell(cell, width, refill)]
            distribution = _certain(token, vocab_size)
        known.append(token)
        drafts.append(WindowDraft(token, distribution))
    return drafts


def _copied_cell(cell: int, width: int, refill: Refill) -> int:
    """The cell that a new `cell` copies: the one to its left, or above it."""
    row, column = divmod(cell, width)
    return cell - width if row > 0 and (refill == "above" or column == 0) else cell - 1


def _certain(token: int, vocab_size: int) -> FloatArray:
    found: FloatArray = np.eye(1, vocab_size, token)[0]
    return found
