"""The drafts of a Jacobi window: its settings, its tree, and the lookup of earlier target distributions.

The tree is a chain of held drafts, with additional candidates for the first cells (SJD-PAC, arXiv 2603.18599, proactive
drafting).

The first cells of a window are where the last pass stopped, so drafts are most likely to fail there. Each of them gets
more candidates, drawn without replacement from the distribution of its held draft. The same candidates of the next
cell are below every candidate of a cell: a draft's distribution was computed in one context, the held one, and is used
in all of them.

Token-wise rules stay lossless, because the walk sees the candidates of a cell only once, below the node it has reached.
A rule that looks ahead would see them below one candidate, and then treat them as new below the next one.

Lookup needs no pass. A draft after a changed token was computed after a token that is no longer there. Two other
distributions are often closer to the target's next one: that of the same cell in an earlier pass, after the token that
is now there; or that of a decided cell with the same neighbours (n-gram lookup as in prompt lookup decoding, but of
target distributions instead of tokens). All of them depend only on tokens before the cell, or on decided cells. So a
draft still has the distribution by which it is judged, given all drafts before it.
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
"""How a draft is made from its cell's new distribution. "independent": A new draw (SJD, arXiv 2410.01699). "maximal":
Maximal coupling with the old draft. "gumbel": A race with noise fixed per cell (both SCD, arXiv 2510.24211).
"confidence": Keep the old draft if its probability does not fall much, else draw; biased (SJD++, arXiv 2512.07503)."""

Refill: TypeAlias = Literal["uniform", "random", "left", "above", "lookup"]
"""The drafts of the window's new cells. "uniform": A uniform draw, judged as such. "random": A uniform draw, judged as
a point proposal, as in the released code of SJD and SCD. "left", "above": A copy of that cell, a point proposal; at the
start of a row, or in the first row, the other one is copied. "lookup": A draw from the target's distribution of the
last decided cell with the same neighbours (see `LookupTable`), or a copy if there is none."""


@dataclass(frozen=True, slots=True)
class JacobiWindow:
    """The settings of a Jacobi window.

    Attributes:
        length: Drafts in the window, >= 1. The released code of SJD counts the committed token too: its 16 is 15 here.
        candidates: Tokens proposed for each of the first `levels` cells, >= 1; 1 gives a chain.
        levels: 1..length.
        passes: If the token left of a draft has changed, draw it from an earlier pass over the cell after the token
            that is now on the left. False, as published: from the last pass.
        beside: Otherwise use the last decided cell with the same tokens to the left and above, with this weight in
            0..1; the last pass has the remaining weight. As published: 0.
        last_row: After a rejection, draft the first cell after the window from the pass's last distribution, as in the
            released loops of SJD, SCD and GSD: after m committed tokens, m - 1 cells are refilled, instead of m.
        confidence: Only for coupling "confidence": a draft x stays if p_new(x) / p_old(x) is above it.
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
        """Whether each draft has the distribution by which it is judged."""
        return self.coupling != "confidence"

    @property
    def looks_up(self) -> bool:
        """Whether drafts use more distributions than those of the last pass."""
        return self.refill == "lookup" or self.passes or self.beside > 0.0

    @property
    def nodes(self) -> int:
        """The number of nodes of the window's largest tree, including the root."""
        return tree_nodes(self.length, self.candidates, self.levels)

    def check_pass(self, most: int, who: str, holds: str) -> None:
        """Raise ValueError, starting with `who`, if passes of `most` positions are too small for the window."""
        if self.nodes <= most:
            return
        beside = self.nodes - self.length
        fewer = f"window={most - beside} or less" if most > beside else "fewer candidates"
        of = f" of {self.candidates} candidates in {self.levels} cells" if self.candidates > 1 else ""
        raise ValueError(
            f"{who}: window {self.length}{of} needs passes of {self.nodes} positions, {holds} {most}; set {fewer}"
        )


def drawn_for(rule: RuleSpec, coupling: Coupling, candidates: int = 1) -> Drawn:
    """Return how the window's drafts count as drawn for `rule`.

    Raises ValueError, with the reason, if `rule` does not support the window's tree, or does not keep its promise with
    this coupling and number of candidates.
    """
    if rule.looks_ahead and coupling != "independent":
        raise ValueError(
            f"jacobi: rule '{rule.name}' looks at the drafts behind a token before it decides, so the drafts that "
            f"coupling '{coupling}' carries over would be biased; choose coupling 'independent', or a rule that "
            "decides token by token, such as 'chain'"
        )
    if candidates == 1:
        options: tuple[Drawn, ...] = ("iid", "without_replacement")
        fits = [drawn for drawn in options if drawn in rule.drawn]
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
    """Return the most nodes, including the root, of a window of `length` drafts with `candidates` in its first cells.

    Args:
        length: Drafts in the window, >= 1.
        candidates: Tokens proposed for each of the first cells, >= 1.
        levels: The number of these first cells, >= 1; above `length`, it counts as `length`.
    """
    levels = min(levels, length)
    beside: int = sum(candidates**level for level in range(1, levels + 1))
    return 1 + beside + length - levels


def window_tree(
    root: int, drafts: Sequence[WindowDraft], candidates: int, levels: int, drawn: Drawn, cell: int, chance: Chance
) -> DraftTree:
    """Return the window's tree below `root`.

    Node i + 1 holds drafts[i], and its parent is node i. The additional candidates' nodes come after all of these.
    Candidates are drawn at At(CANDIDATE, cell * candidates + k), k >= 1.

    Args:
        root: The last decided token.
        drafts: The held drafts, at least one.
        candidates: Tokens proposed for each of the first `levels` cells, starting with the held draft; fewer if its
            distribution has fewer tokens.
        levels: The number of first cells with more candidates.
        drawn: "iid" or "without_replacement". More than one candidate needs "without_replacement", while a chain is
            the same with both.
        cell: Raster index of the window's first cell.
        chance: The randomness of the candidates.
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
            on_chain = node == place
            below += [place + 1] if on_chain else []
            for token in proposals[place][on_chain:]:
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
    """Return the held token, then others drawn one by one, without replacement, from its distribution."""
    tokens = [draft.token]
    weights = draft.distribution.copy()
    for place in range(1, candidates):
        weights[tokens[-1]] = 0.0
        if not weights.any():
            break
        tokens.append(chance.draw(weights, At(Role.CANDIDATE, address + place)))
    return tokens


def tail_nodes(tree: DraftTree, path: Sequence[int], length: int) -> list[int]:
    """Return the nodes whose distributions give the drafts after an accepted `path`, for places from len(path) + 1 on.

    The nodes follow the first proposals below the last accepted node; where that branch ends, they are those of the
    held chain.

    Args:
        tree: The window's tree.
        path: The accepted nodes, without the root.
        length: Drafts in the window.
    """
    below = tree.children()
    nodes, node = list[int](), path[-1] if path else 0
    for place in range(len(path) + 1, length):
        node = below[node][0] if below[node] else place
        nodes.append(node)
    return nodes


@dataclass(slots=True)
class LookupTable:
    """The target's distributions [V] of one image, by the tokens next to their cells.

    Attributes:
        grid: The size of the image in cells.
        use_passes: `passes` of `JacobiWindow`.
        weight: `beside` of `JacobiWindow`.
    """

    grid: Grid
    use_passes: bool = False
    weight: float = 0.0
    _passes: dict[int, dict[int, FloatArray]] = field(default_factory=dict)
    _beside: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    _left: dict[int, FloatArray] = field(default_factory=dict)
    _above: dict[int, FloatArray] = field(default_factory=dict)

    def see(self, cell: int, left: int, distribution: FloatArray) -> None:
        """Store the distribution that a pass gave for the undecided `cell` after the token `left`."""
        if self.use_passes:
            self._passes.setdefault(cell, {})[left] = distribution

    def decide(self, tokens: list[int], distribution: FloatArray) -> None:
        """Store the target's distribution of the last of `tokens`, which was drawn from it and is decided."""
        cell = len(tokens) - 1
        row, column = divmod(cell, self.grid.width)
        self._passes.pop(cell, None)
        if column:
            self._left[tokens[-2]] = distribution
        if row:
            self._above[tokens[cell - self.grid.width]] = distribution
        if row and column:
            self._beside[tokens[-2], tokens[cell - self.grid.width]] = distribution

    def redraft(self, tokens: list[int], stale_left: int, distribution: FloatArray) -> FloatArray:
        """Return the distribution [V] for drafting the next cell after `tokens`.

        Args:
            tokens: The decided and drafted tokens before the cell.
            stale_left: The token before the cell in the last pass.
            distribution: [V], from the last pass.
        """
        cell, left = len(tokens), tokens[-1]
        if left == stale_left:
            return distribution
        again = self._passes.get(cell, {}).get(left)
        if again is not None:
            return again
        row, column = divmod(cell, self.grid.width)
        weight = self.weight
        entry = self._beside.get((left, tokens[cell - self.grid.width])) if weight and row and column else None
        return distribution if entry is None else weight * entry + (1.0 - weight) * distribution

    def guess(self, tokens: list[int]) -> FloatArray | None:
        """Return a distribution for a cell that no pass has covered: by left and above, by left, or by above."""
        row, column = divmod(len(tokens), self.grid.width)
        above = tokens[len(tokens) - self.grid.width] if row else None
        entry = self._beside.get((tokens[-1], above)) if column and above is not None else None
        if entry is None and column:
            entry = self._left.get(tokens[-1])
        return self._above.get(above) if entry is None and above is not None else entry
