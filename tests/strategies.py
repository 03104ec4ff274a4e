"""What the tests share: Hypothesis strategies for distributions and tree shapes, and a policy that draws any shape."""

import zlib
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.tree import DraftTree, Drawn, Verdict
from underpaint.sim.synthetic.models import Prefix


@dataclass(frozen=True, slots=True)
class PooledDistribution:
    """Each prefix gets one of the `rows` [R, V] of a pool, picked by its hash."""

    rows: FloatArray
    seed: int = 0

    def __call__(self, prefix: Prefix) -> FloatArray:
        row: FloatArray = self.rows[zlib.crc32(repr((prefix, self.seed)).encode()) % self.rows.shape[0]]
        return row


@st.composite
def distributions(draw: st.DrawFn, vocab_size: int) -> FloatArray:
    """A distribution [V]: small whole weights, so that zeros, ties, one-hot and uniform rows all come up often."""
    kind = draw(st.sampled_from(["any", "any", "any", "any", "half", "one_hot"]))
    if kind == "one_hot":
        return np.eye(vocab_size)[draw(st.integers(0, vocab_size - 1))]
    weights = np.array(
        draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 8]), min_size=vocab_size, max_size=vocab_size)), dtype=np.float64
    )
    if kind == "half":  # together with its mirror image: disjoint supports
        weights[: vocab_size // 2] = 0.0
        weights = weights[::-1] if draw(st.booleans()) else weights
    if not weights.any():
        weights[:] = 1.0
    return weights / weights.sum()


@st.composite
def pools(draw: st.DrawFn, vocab_size: int, count: int = 3) -> PooledDistribution:
    """A distribution for each prefix, out of a few rows."""
    return PooledDistribution(
        np.stack([draw(distributions(vocab_size)) for _ in range(count)]), draw(st.integers(0, 9))
    )


def shapes(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """parents[1:] of a tree of up to `most` drafted nodes, in an order where parents come first, not level by level."""
    counts = st.sampled_from([1, *range(2, most + 1), most])
    return counts.flatmap(lambda count: st.tuples(*(st.integers(0, node) for node in range(count))))


def chains(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """parents[1:] of a chain of 1 to `most` drafted nodes."""
    return st.integers(1, most).map(lambda count: tuple(range(count)))


def ranked(distribution: FloatArray) -> list[int]:
    """Tokens by falling probability, the zero ones included: k may reach V and beyond the support."""
    return np.argsort(-distribution, kind="stable").tolist()


@dataclass(frozen=True, slots=True)
class ShapePolicy:
    """Draws a tree of the given shape, whatever the distributions: the reference for what `drawn` means.

    Without replacement, a distribution that has run out goes on uniformly over the untried tokens. A node for which no
    token is left, or that lies too deep, is dropped with its descendants.
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
        for wanted, above in enumerate(self.shape, start=1):
            parent = place.get(above)
            if parent is None or depth[parent] == budget.max_depth or len(tokens) == budget.max_nodes:
                continue
            token = self._propose(rows[parent], tried[parent], chance, At(Role.DRAFT, wanted))
            if token is None:
                continue
            place[wanted] = len(tokens)
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
        left = distribution.copy()
        left[tried] = 0.0
        if not left.any():
            left = np.ones(distribution.size)
            left[tried] = 0.0
        return chance.draw(left, at) if left.any() else None
