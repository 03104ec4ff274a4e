"""MuLo-SD's pooled threshold: keeps a draft token if the target gives its codebook neighbourhood enough mass."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated

import numpy as np

from underpaint.algos.accept.lantern import check_settings, check_vocab
from underpaint.algos.accept.spec import RULES, RuleSpec, every_combination
from underpaint.algos.accept.walk import Choice, kept_ends
from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.batched.longest import HoldsMass, LongestPath
from underpaint.algos.batched.spec import BatchedRule
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.registry import Bounds, Codes, check_bounds
from underpaint.algos.tree import DRAWN, DraftTree, Drawn, Verdict


def pooled_mass(probs: FloatArray, tokens: IntArray, neighbours: IntArray) -> FloatArray:
    """Return the mass of each cell's token and its neighbours in that cell's distribution.

    The ball B_k(x) consists of x and its k nearest codes.

    Args:
        probs: [C, V], the distribution of each cell.
        tokens: [C], the token of each cell.
        neighbours: [V, k], the nearest codes of each code.

    Returns:
        [C] float64.
    """
    rows = np.arange(tokens.size)
    pooled = np.take_along_axis(probs, neighbours[tokens], axis=1).sum(axis=1, dtype=np.float64)
    mass: FloatArray = pooled + probs[rows, tokens]
    return mass


def passing_cells(probs: FloatArray, tokens: IntArray, neighbours: IntArray, tau: float) -> BoolArray:
    """Return [C] bool: which cells of a draft are kept, each by its own distribution (arXiv 2601.05149, eq. 5).

    Shapes as in `pooled_mass`. A cell may be kept after a rejected one, which local expansion relies on.
    """
    check_vocab(neighbours, probs)
    if probs.shape[0] != tokens.size:
        raise ValueError(f"passing_cells: expected one distribution per token, got {probs.shape} and {tokens.shape}")
    passed: BoolArray = pooled_mass(probs, tokens, neighbours) >= tau
    return passed


@dataclass(frozen=True, slots=True, eq=False)
class PooledThreshold:
    """Keep x if the mass of x and its k nearest codes is at least `tau`, along the longest such path.

    arXiv 2601.05149, eq. 5, on a tree; uses no draft distribution and no flip. The extra token is drawn from p after
    the last kept node.

    Attributes:
        neighbours: [V, columns] from `nearest_codes`.
        k: Columns used, 0 for all.
        tau: The smallest mass that keeps a token, > 0; infinity keeps no token.
        choose: Which of several passing siblings is kept, see `Choice`.
    """

    neighbours: IntArray
    k: Codes = 0
    tau: Annotated[float, Bounds(0.0, inf, above=True)] = 0.5
    choose: Choice = "longest"

    def __post_init__(self) -> None:
        check_settings("mulo", self.neighbours, self.k)
        check_bounds("mulo", self)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        check_vocab(self.neighbours, probs)
        near = self.neighbours[:, : self.k or None]

        def passing(node: int, children: Sequence[int]) -> list[int]:
            tokens = tree.tokens[list(children)]
            masses = pooled_mass(np.broadcast_to(probs[node], (tokens.size, probs.shape[1])), tokens, near)
            return [child for child, mass in zip(children, masses.tolist(), strict=True) if mass >= self.tau]

        end = kept_ends(tree, passing, self.choose)[0]
        return Verdict(tree.path_to(end), chance.draw(probs[end], At(Role.BONUS, end)))


def _batched(rule: PooledThreshold, drawn: Drawn) -> BatchedRule:
    near = rule.neighbours[:, : rule.k or None]
    return LongestPath(HoldsMass(near, rule.tau), first=rule.choose == "first", draw=True)


SPEC = RULES.register(
    RuleSpec(
        name="mulo",
        make=PooledThreshold,
        promise="unbounded",
        drawn=frozenset(DRAWN),
        source="arXiv 2601.05149 (MuLo-SD), eq. 5; no released code",
        bound="none: a kept x misses p by 1 - p(x), and its ball holds at least tau of p",
        deviations=(
            "Written for trees beside cells. Whether x is in its own ball is open: it is. A rejected token may be "
            "drawn again, as the residual of a deterministic rejection is p itself"
        ),
        codebook=True,
        batched=_batched,
        lossless_when=lambda settings: settings["tau"] == inf,
        examples=every_combination(tau=(0.0713, 0.2371, 0.5237, 0.93, inf)),
    )
)
