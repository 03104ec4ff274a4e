"""What a Jacobi window drafts: its settings, its tree, and distributions looked up in what the target said before.

The tree is a chain of held drafts, with candidates beside the first of them (SJD-PAC, arXiv 2603.18599, proactive
drafting).

The first cells of a window are where the last pass broke off, so a draft is likeliest to fail there. Each of them
gets more candidates, drawn without replacement from the distribution that its held draft was drawn from. Below every
candidate of a cell stand the same candidates of the next one: a draft's distribution was made in one context, the
held one, and says the same in all of them.

That stays lossless under a rule that decides token by token, because the walk sees the candidates of a cell once, below
the one node it stands at. A rule that looks ahead would see them below one candidate and then take them for fresh
below the next.

Lookup costs no pass. A draft behind a changed token was judged beside a token that is gone. What the target said of the
same cell in an earlier pass beside the token that now stands there, or of a decided cell between the same neighbours
(n-gram lookup as in prompt lookup decoding, with the target's distributions in place of tokens), is often nearer to
what it will say. Everything that is looked up was said of the cell itself, by tokens before it, or of decided cells, so
a draft still has the distribution that it is judged by, given all drafts before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np

from underpaint.algos.accept.spec import RuleSpec
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.numbers import MOST_FACTOR
from underpaint.algos.protocols import Grid
from underpaint.algos.registry import Bounds, Cells, Nodes, Share, Tune, check_bounds
from underpaint.algos.tree import DraftTree, Drawn

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


class WindowDraft(NamedTuple):
    """A cell of the window: its token, and the distribution [V] it was drawn from."""

    token: int
    distribution: FloatArray


def tree_nodes(length: int, candidates: int, levels: int) -> int:
    """The most nodes, the root included, of a window of `length` drafts with `candidates` in each of its first cells.

    length, candidates, levels: >= 1; levels beyond the window count as the window.
    """
    levels = min(levels, length)
    beside: int = sum(candidates**level for level in range(1, levels + 1))
    return 1 + beside + length - levels


def window_tree(
    root: int, drafts: Sequence[WindowDraft], candidates: int, levels: int, drawn: Drawn, cell: int, chance: Chance
) -> DraftTree:
    """The tree below `root`, of one draft or more: node i + 1 holds drafts[i], its parent is node i; the candidates'
    nodes come after them.

    candidates: tokens proposed for each of the first `levels` cells, the held draft first; fewer where its
    distribution has fewer. drawn: "iid" or "without_replacement", the latter with more than one candidate; what a chain
    is called does not matter to what it is.
    cell: raster index of the window's first cell. Candidates are drawn at At(CANDIDATE, cell * candidates + k), k >= 1.
    """
    count = len(drafts)
    proposals = [
        _proposals(draft, candidates if place < levels else 1, (cell + place) * candidates, chance)
        for place, draft in enumerate(drafts)
    ]
    tokens = [root, *(draft.token for draft in drafts)]
    parents, rows = list(range(-1, count)), [*range(count), -1]
    level = [0]
    for place in range(min(levels, count)):
        below = list[int]()
        for node in level:
            rows[node] = place
            held = node == place
            below += [place + 1] if held else []
            for token in proposals[place][held:]:
                below.append(len(tokens))
                tokens.append(token)
                parents.append(node)
                rows.append(-1)
        level = below
    return DraftTree(
        tokens=np.array(tokens, dtype=np.int64),
        parents=np.array(parents, dtype=np.int64),
        drawn=drawn,
        draft_probs=np.stack([draft.distribution for draft in drafts]),
        draft_rows=np.array(rows, dtype=np.int64),
    )


def _proposals(draft: WindowDraft, candidates: int, address: int, chance: Chance) -> list[int]:
    """The held token, and others drawn one by one from what it leaves of its distribution."""
    tokens = [draft.token]
    left = draft.distribution.copy()
    for place in range(1, candidates):
        left[tokens[-1]] = 0.0
        if not left.any():
            break
        tokens.append(chance.draw(left, At(Role.CANDIDATE, address + place)))
    return tokens


def tail_nodes(tree: DraftTree, path: Sequence[int], length: int) -> list[int]:
    """The nodes whose distributions the drafts behind an accepted `path` are made from, by place len(path) + 1 and on.

    length: drafts in the window. Each is the context with the first proposals below the last accepted node; where
    the tree ends there, the held chain's.
    """
    below = tree.children()
    nodes, node = list[int](), path[-1] if path else 0
    for place in range(len(path) + 1, length):
        node = below[node][0] if below[node] else place
        nodes.append(node)
    return nodes


@dataclass(slots=True)
class LookupTable:
    """The distributions [V] of one image by the tokens beside their cells.

    use_passes, weight: `passes` and `beside` of `JacobiWindow`.
    """

    grid: Grid
    use_passes: bool = False
    weight: float = 0.0
    _passes: dict[int, dict[int, FloatArray]] = field(default_factory=dict)
    _beside: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    _left: dict[int, FloatArray] = field(default_factory=dict)
    _above: dict[int, FloatArray] = field(default_factory=dict)

    def see(self, cell: int, left: int, distribution: FloatArray) -> None:
        """Keep what a pass said of `cell`, not decided yet, behind the token `left`."""
        if self.use_passes:
            self._passes.setdefault(cell, {})[left] = distribution

    def decide(self, tokens: list[int], distribution: FloatArray) -> None:
        """Keep what the target said of the last of `tokens`, which was drawn from it and is decided."""
        cell = len(tokens) - 1
        row, column = divmod(cell, self.grid.width)
        self._passes.pop(cell, None)
        if column:
            self._left[tokens[-2]] = distribution
        if row:
            self._above[tokens[cell - self.grid.width]] = distribution
        if row and column:
            self._beside[tokens[-2], tokens[cell - self.grid.width]] = distribution

    def redraft(self, known: list[int], stale_left: int, distribution: FloatArray) -> FloatArray:
        """What to draft the next cell from, behind `known`: the tokens decided and drafted before it.

        distribution: [V], of the last pass, when `stale_left` stood before the cell.
        """
        cell, left = len(known), known[-1]
        if left == stale_left:
            return distribution
        again = self._passes.get(cell, {}).get(left)
        if again is not None:
            return again
        row, column = divmod(cell, self.grid.width)
        weight = self.weight
        found = self._beside.get((left, known[cell - self.grid.width])) if weight and row and column else None
        return distribution if found is None else weight * found + (1.0 - weight) * distribution

    def guess(self, known: list[int]) -> FloatArray | None:
        """What to draft the next cell from, of which no pass said anything: by left and above, left, or above."""
        row, column = divmod(len(known), self.grid.width)
        above = known[len(known) - self.grid.width] if row else None
        found = self._beside.get((known[-1], above)) if column and above is not None else None
        if found is None and column:
            found = self._left.get(known[-1])
        return self._above.get(above) if found is None and above is not None else found
