"""Hypothesis strategies for tests of acceptance rules: distributions, tree shapes, chains, windows and test cases.

Import them from `underpaint.testing`. They need Hypothesis: `pip install "underpaint[testing]"`.
"""

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role, sampling
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.tree import DraftTree, Drawn, Verdict
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.search import build_case
from underpaint.sim.synthetic.models import Prefix


@dataclass(frozen=True, slots=True)
class PooledDistribution:
    """A model that returns one of the `rows` [R, V] for each prefix, chosen by a hash of the prefix."""

    rows: FloatArray
    seed: int = 0

    def __call__(self, prefix: Prefix) -> FloatArray:
        row: FloatArray = self.rows[zlib.crc32(repr((prefix, self.seed)).encode()) % self.rows.shape[0]]
        return row


@st.composite
def distributions(draw: st.DrawFn, vocab_size: int) -> FloatArray:
    """Draw a distribution [V] with small integer weights, so that zeros, ties, one-hot and uniform rows are common."""
    kind = draw(st.sampled_from(["any", "any", "any", "any", "half", "one_hot"]))
    if kind == "one_hot":
        point: FloatArray = np.eye(vocab_size)[draw(st.integers(0, vocab_size - 1))]
        return point
    weights = np.array(
        draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 8]), min_size=vocab_size, max_size=vocab_size)), dtype=np.float64
    )
    if kind == "half":  # a row and a mirrored row have disjoint supports
        weights[: vocab_size // 2] = 0.0
        weights = weights[::-1] if draw(st.booleans()) else weights
    if not weights.any():
        weights[:] = 1.0
    weights /= weights.sum()
    return weights


@st.composite
def pools(draw: st.DrawFn, vocab_size: int, count: int = 3) -> PooledDistribution:
    """Draw a model that picks one of `count` rows for each prefix."""
    return PooledDistribution(
        np.stack([draw(distributions(vocab_size)) for _ in range(count)]), draw(st.integers(0, 9))
    )


def shapes(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw parents[1:] of a tree of 1 to `most` drafted nodes: parents precede children, levels may be mixed."""
    counts = st.sampled_from([1, *range(2, most + 1), most])
    return counts.flatmap(lambda count: st.tuples(*(st.integers(0, node) for node in range(count))))


def chains(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw parents[1:] of a chain of 1 to `most` drafted nodes."""
    return st.integers(1, most).map(lambda count: tuple(range(count)))


@st.composite
def verifier_cases(draw: st.DrawFn, drawn: Drawn = "top_k", chain: bool = False, cycles: int = 1) -> VerifierCase:
    """Draw a test case for a verifier: a target, a drafter and a draft shape, over a vocabulary of 2 to 4 tokens.

    Args:
        draw: Passed by Hypothesis.
        drawn: How sibling tokens are drawn; see `DraftTree`.
        chain: Whether every node has at most one child.
        cycles: Number of consecutive cycles that the case is for; with more cycles the case is smaller.
    """
    return build_case(lambda low, high: draw(st.integers(low, high)), drawn, chain, cycles)


@st.composite
def draft_trees(
    draw: st.DrawFn, drawn: Drawn = "top_k", vocab_size: int = 3, most: int = 4, chain: bool = False
) -> tuple[DraftTree, FloatArray]:
    """Draw a draft tree that a drafter could propose, and the target's distributions [N, V] after its nodes."""
    shape = draw(chains(most) if chain else shapes(most))
    rows = [draw(distributions(vocab_size)) for _ in range(len(shape) + 1)]
    seed = draw(st.integers(0, 99))
    tree = ShapePolicy(shape, drawn).grow(Rows(rows), 0, Budget(99, 99), sampling(seed).cycle(0))
    return tree, np.stack([draw(distributions(vocab_size)) for _ in range(tree.size)])


class Window(NamedTuple):
    """A Jacobi window of n drafts.

    tokens: [n]. draft_probs: [n, V], the distributions of the previous pass, which the drafts were drawn from.
    target_probs: [n + 1, V], the distributions of the current pass.
    """

    tokens: tuple[int, ...]
    draft_probs: FloatArray
    target_probs: FloatArray


@st.composite
def windows(draw: st.DrawFn, vocab_size: int = 3, most: int = 4) -> Window:
    """Draw a window of 1 to `most` drafts; half the windows repeat the last pass, so all their drafts must stay."""
    length = draw(st.integers(1, most))
    rows = np.stack([draw(distributions(vocab_size)) for _ in range(2 * length + 1)])
    drafted, target = rows[:length], rows[length:]
    if draw(st.booleans()):
        target = np.concatenate([drafted, target[-1:]])
    tokens = tuple(draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in drafted)
    return Window(tokens, drafted, target)


class Rows:
    """A drafter that returns prepared rows [V] in order and ignores its arguments."""

    def __init__(self, rows: list[FloatArray]) -> None:
        self._rows = list(rows)
        self.vocab_size = rows[0].size

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        """Return [M, V], one row for each of M nodes."""
        return np.stack([self._rows.pop(0) for _ in tokens])


def ranked(distribution: FloatArray) -> list[int]:
    """Return all tokens by descending probability, those of probability 0 too, as k may exceed the support."""
    order: list[int] = np.argsort(-distribution, kind="stable").tolist()
    return order


@dataclass(frozen=True, slots=True)
class ShapePolicy:
    """A policy that draws a tree of a given shape from any distributions; the reference for the meaning of `drawn`.

    Without replacement, once a distribution has no mass left, the untried tokens are drawn uniformly. A node that has
    no token left, or lies too deep, is dropped with its descendants.
    """

    shape: tuple[int, ...]
    drawn: Drawn

    def begin(self, grid: Grid) -> None: ...

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        tokens, parents, depth = [root], [-1], [0]
        rows = [drafter.expand(np.array([root]), np.array([-1]))[0]]
        tried: list[list[int]] = [[]]
        place = {0: 0}
        for node, above in enumerate(self.shape, start=1):
            parent = place.get(above)
            if parent is None or depth[parent] == budget.max_depth or len(tokens) == budget.max_nodes:
                continue
            token = self._propose(rows[parent], tried[parent], chance, At(Role.DRAFT, node))
            if token is None:
                continue
            place[node] = len(tokens)
            tried[parent].append(token)
            tokens.append(token)
            parents.append(parent)
            depth.append(depth[parent] + 1)
            tried.append([])
            rows.append(drafter.expand(np.array([token]), np.array([parent]))[0])
        count = len(tokens)
        return DraftTree(np.array(tokens), np.array(parents), self.drawn, np.stack(rows), np.arange(count))

    def _propose(self, distribution: FloatArray, tried: list[int], chance: Chance, at: At) -> int | None:
        if self.drawn == "top_k":
            return ranked(distribution)[len(tried)] if len(tried) < distribution.size else None
        if self.drawn == "iid":
            return chance.draw(distribution, at)
        weights = distribution.copy()
        weights[tried] = 0.0
        if not weights.any():
            weights = np.ones(distribution.size)
            weights[tried] = 0.0
        return chance.draw(weights, at) if weights.any() else None
