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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from underpaint.algos.accept.proposals import excess, normalised
from underpaint.algos.accept.spec import Rule, RuleSpec, spec_of
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.coupling import Noise
from underpaint.algos.enumeration import emitted
from underpaint.algos.spatial.lookup import NO_LOOKUP, Lookup, LookupTable
from underpaint.algos.spatial.window_tree import WindowDraft, tail_nodes, tree_nodes, window_tree
from underpaint.algos.step import Cycle, Decoded, Target, check_probs
from underpaint.algos.tree import NO_TOKEN, Drawn, root_only

Coupling: TypeAlias = Literal["independent", "maximal", "gumbel"]
"""How a draft is made from its cell's new distribution: anew (SJD, arXiv 2410.01699); by maximal coupling with the
draft that stood there, or by a race over noise that stays with the cell (SCD, arXiv 2510.24211)."""

Refill: TypeAlias = Literal["uniform", "left", "above", "lookup"]
"""What the window's new cells hold: a uniform draw, or a copy of the cell to the left or above (point proposals).
At the start of a row there is no left cell, in the first row none above; the other is copied then. "lookup" draws
from what the target said of the last decided cell with the same neighbours (see `lookup`), or copies."""


@dataclass(frozen=True, slots=True)
class JacobiWindow:
    """Settings.

    length: drafts in the window, >= 1 (the released code of SJD holds 16, of SCD 64).
    candidates: tokens proposed for each of the first `levels` cells, >= 1; 1 is a chain. levels: 1..length.
    lookup: what drafts are drawn from where their left token has changed; as published, from the last pass alone.
    """

    length: int = 16
    coupling: Coupling = "independent"
    refill: Refill = "uniform"
    candidates: int = 1
    levels: int = 1
    lookup: Lookup = NO_LOOKUP

    def __post_init__(self) -> None:
        for name, number in (("length", self.length), ("candidates", self.candidates), ("levels", self.levels)):
            if number < 1:
                raise ValueError(f"window: {name} must be >= 1, got {number}")
        if self.candidates > 1 and self.levels > self.length:
            raise ValueError(f"window: levels must be at most the window's {self.length} drafts, got {self.levels}")
        for name, value, known in (("coupling", self.coupling, Coupling), ("refill", self.refill, Refill)):
            if value not in get_args(known):
                raise ValueError(f"window: {name} must be one of {', '.join(get_args(known))}, got {value!r}")

    @property
    def looks_up(self) -> bool:
        """Whether drafts are drawn from more than the last pass."""
        return self.refill == "lookup" or self.lookup.any

    @property
    def nodes(self) -> int:
        """Nodes of its largest tree, the root included."""
        return tree_nodes(self.length, self.candidates, self.levels)


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
    grid, vocab_size = target.grid, target.vocab_size
    tree, probs = root_only(NO_TOKEN, vocab_size), target.begin().probs
    check_probs(probs, tree, vocab_size)
    verdict = rule(tree, probs, chance.cycle(0))
    yield Cycle(0, 0, tree, verdict)
    tokens, drafts, index = [verdict.token], list[WindowDraft](), 1
    table = LookupTable(grid, window.lookup)
    if window.looks_up:
        table.decide(tokens, normalised(probs[0]))
    while len(tokens) < grid.cells:
        here, cell = chance.cycle(index), len(tokens)
        wanted = min(window.length, grid.cells - cell - 1)
        drafts = _refilled(tokens, drafts, wanted, table, window.refill, vocab_size, here)
        tree = (
            window_tree(tokens[-1], drafts, window.candidates, window.levels, drawn, cell, here)
            if drafts
            else root_only(tokens[-1], vocab_size)
        )
        tree.check(vocab_size)
        probs = target.score(tree).probs
        check_probs(probs, tree, vocab_size)
        verdict = rule(tree, probs, here)
        target.commit(tree, verdict)
        yield Cycle(index, cell, tree, verdict)
        for token, node in zip(emitted(tree, verdict), (0, *verdict.path), strict=True):
            tokens.append(token)
            if window.looks_up:
                table.decide(tokens, normalised(probs[node]))
        done = len(verdict.path) + 1
        nodes = tail_nodes(tree, verdict.path, len(drafts))
        held, known, last = drafts[done:], list(tokens), len(drafts)
        drafts = []
        for place, (draft, node) in enumerate(zip(held, nodes, strict=True), start=done):
            row, left = normalised(probs[node]), int(tree.tokens[node])
            table.see(cell + place, left, row)
            distribution = table.redraft(known, left, row)
            drafts.append(_redrawn(draft, distribution, cell + place, here, window.coupling, noise))
            known.append(drafts[-1].token)
        if window.lookup.last_row and held and len(known) < grid.cells - 1:
            row, left = normalised(probs[last]), held[-1].token
            table.see(len(known), left, row)
            distribution = table.redraft(known, left, row)
            drafts.append(_drawn(distribution, len(known), here, noise))
        index += 1


def _redrawn(
    draft: WindowDraft, distribution: FloatArray, cell: int, chance: Chance, coupling: Coupling, noise: Noise | None
) -> WindowDraft:
    if coupling != "maximal":
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
    """`drafts` cut or filled up to `wanted` cells."""
    drafts, width = drafts[:wanted], table.grid.width
    known = tokens + [draft.token for draft in drafts]
    for cell in range(len(known), len(tokens) + wanted):
        if refill == "uniform":
            distribution = np.full(vocab_size, 1.0 / vocab_size)
            token = chance.draw(distribution, At(Role.REFILL, cell))
        elif refill == "lookup" and (found := table.guess(known)) is not None:
            distribution = found
            token = chance.draw(distribution, At(Role.REFILL, cell))
        else:
            row, column = divmod(cell, width)
            above = row > 0 and (refill == "above" or column == 0)
            token = known[cell - width if above else cell - 1]
            distribution = np.eye(1, vocab_size, token)[0]
        known.append(token)
        drafts.append(WindowDraft(token, distribution))
    return drafts


def jacobi_decode(
    target: Target, rule: Rule, chance: Chance, window: JacobiWindow, noise: Noise | None = None
) -> Decoded:
    """Decode one image (see `jacobi_cycles`). One target pass a cycle, cycle 0 included."""
    done = tuple(jacobi_cycles(target, rule, chance, window, noise))
    tokens = [token for cycle in done for token in emitted(cycle.tree, cycle.verdict)]
    return Decoded(np.array(tokens, dtype=np.int64), done)
