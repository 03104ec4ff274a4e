"""Acceptance rules on grid cells: a registered rule judges a drafted cell as a draft tree with one draft node."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol, Self, TypeAlias

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.accept.mulo import passing_cells
from underpaint.algos.accept.neighbours import check_neighbours
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance
from underpaint.algos.protocols import Rule
from underpaint.algos.registry import build
from underpaint.algos.tree import NO_TOKEN, DraftTree, Drawn

Kind: TypeAlias = Literal["pooled", "lantern", "exact"]
_PLUGGED: Final = {"lantern": ("lantern", "lantern_greedy"), "exact": ("point", "greedy")}
"""The registered rules used for a kind, above temperature 0 and at 0."""


class CellRule(Protocol):
    """Judges the tokens drafted for cells, one by one."""

    def judge(
        self,
        cells: IntArray,
        tokens: IntArray,
        draft_distributions: FloatArray | None,
        distributions: FloatArray,
        chance: Chance,
    ) -> Iterator[bool]:
        """Yield in order whether each of `tokens` [n] may be kept, given its row of `distributions` [n, V].

        Verdicts are computed on demand, so a caller that stops early uses no randomness for the others.

        Args:
            cells: [n], the raster indices of the drafted cells.
            tokens: [n], the token drafted for each cell.
            draft_distributions: [n, V], the distributions the tokens were drawn from; None for point proposals.
            distributions: [n, V], the target's distributions of the cells.
            chance: The randomness of the image.
        """
        ...

    def residual(
        self, cell: int, token: int, draft_distribution: FloatArray | None, distribution: FloatArray
    ) -> FloatArray:
        """Return the weights [V] to redraw the cell from, given its current `distribution` and the rejected `token`."""
        ...


@dataclass(slots=True)
class _OneCell:
    """The randomness given to a rule: maps its addresses to the cell's, and records the extra token's weights only."""

    chance: Chance | None
    cell: int
    weights: FloatArray | None = None

    def cycle(self, index: int) -> Self:
        raise RuntimeError("cell rule: a rule does not change the cycle")

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        if self.chance is None:
            return False
        return self.chance.flip(chance_of, At(at.role, 2 * self.cell + at.node), out_of)

    def draw(self, weights: FloatArray, at: At) -> int:
        self.weights = weights
        return int(np.argmax(weights))


@dataclass(frozen=True, slots=True)
class TreeRuleOnCells:
    """Applies `rule` to trees of a root and one child: "top_k" trees for point proposals, "iid" trees for others.

    Its flips use the addresses (role, 2 cell + node).
    """

    rule: Rule

    def judge(
        self,
        cells: IntArray,
        tokens: IntArray,
        draft_distributions: FloatArray | None,
        distributions: FloatArray,
        chance: Chance,
    ) -> Iterator[bool]:
        for place, (cell, token) in enumerate(zip(cells.tolist(), tokens.tolist(), strict=True)):
            distribution, drafted = (
                distributions[place],
                None if draft_distributions is None else draft_distributions[place],
            )
            pair = _pair(token, drafted, distribution.size)
            yield bool(
                self.rule(pair, np.broadcast_to(distribution, (2, distribution.size)), _OneCell(chance, cell)).path
            )

    def residual(
        self, cell: int, token: int, draft_distribution: FloatArray | None, distribution: FloatArray
    ) -> FloatArray:
        """See `CellRule`. Returns the distribution itself if the rule can only accept under it."""
        seen = _OneCell(None, cell)
        verdict = self.rule(
            _pair(token, draft_distribution, distribution.size),
            np.broadcast_to(distribution, (2, distribution.size)),
            seen,
        )
        if verdict.path or seen.weights is None or not seen.weights.any():
            return distribution
        return seen.weights


@dataclass(frozen=True, slots=True, eq=False)
class PooledCells:
    """MuLo-SD's rule: keep x if the mass of x and its nearest codes is at least `tau` (arXiv 2601.05149, eq. 5).

    A rejected cell is redrawn from its distribution at that time.

    Attributes:
        neighbours: [V, k], from `nearest_codes`; [V, 0] pools nothing.
        tau: The threshold, >= 0. 0 keeps all tokens, above 1 none.

    Raises:
        ValueError: `tau` is negative or NaN, or the table of neighbours is invalid.
    """

    neighbours: IntArray
    tau: float

    def __post_init__(self) -> None:
        if self.neighbours.shape[1:] != (0,):
            check_neighbours(self.neighbours, "pooled cells")
        if not self.tau >= 0.0:
            raise ValueError(f"pooled cells: expected a threshold tau >= 0, got {self.tau!r}")

    def judge(
        self,
        cells: IntArray,
        tokens: IntArray,
        draft_distributions: FloatArray | None,
        distributions: FloatArray,
        chance: Chance,
    ) -> Iterator[bool]:
        yield from passing_cells(distributions, tokens, self.neighbours, self.tau).tolist()

    def residual(
        self, cell: int, token: int, draft_distribution: FloatArray | None, distribution: FloatArray
    ) -> FloatArray:
        return distribution


def pooled_codes(neighbours: IntArray, k: int | None) -> IntArray:
    """Return the first `k` columns of a table of near codes [V, K], which are pooled; 0 means all, None means none."""
    return neighbours[:, : 0 if k is None else k or None]


def cell_rule(kind: Kind, neighbours: IntArray, tau: float, delta: float, greedy: bool) -> CellRule:
    """Return a rule of MuLo-SD by its kind.

    Args:
        kind: "pooled" keeps a token by `tau`, see `PooledCells`; "lantern" by its probability and that of near codes
            up to `delta`; "exact" by its probability alone.
        neighbours: [V, k], the near codes of each code.
        tau: The threshold of kind "pooled", >= 0.
        delta: The limit of kind "lantern", in 0..1.
        greedy: Decoding at temperature 0.

    Raises:
        ValueError: A setting is out of range; checked for every kind, even if the kind does not use it.
    """
    pooled = PooledCells(neighbours, tau)
    if not 0.0 <= delta <= 1.0:
        raise ValueError(f"delta must be in [0, 1], got {delta}")
    if kind == "pooled":
        return pooled
    spec = RULES[_PLUGGED[kind][greedy]]
    settings = {"neighbours": neighbours, "k": 0, "delta": delta} if spec.codebook else {}
    return TreeRuleOnCells(build(spec.make, settings, f"rule '{spec.name}'"))


def _pair(token: int, draft_distribution: FloatArray | None, vocab_size: int) -> DraftTree:
    drawn: Drawn = "top_k" if draft_distribution is None else "iid"
    return DraftTree(
        tokens=np.array([NO_TOKEN, token], dtype=np.int64),
        parents=np.array([-1, 0], dtype=np.int64),
        drawn=drawn,
        draft_probs=np.empty((0, vocab_size)) if draft_distribution is None else draft_distribution[None],
        draft_rows=np.array([-1 if draft_distribution is None else 0, -1], dtype=np.int64),
    )
