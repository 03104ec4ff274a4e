"""Drafters that the policies' tests look through."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import FusedTreeLevel, FusedTreeSpec
from underpaint.algos.tree import DraftTree
from underpaint.strategies import distributions

Path = tuple[int, ...]


@dataclass
class PathDrafter:
    """The distribution after a path (the root token included) is one of `pool` [P, V], picked by the path; passes are
    kept."""

    pool: FloatArray
    held: list[Path] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    @property
    def vocab_size(self) -> int:
        return int(self.pool.shape[1])

    def distribution(self, path: Path) -> FloatArray:
        digest = 0
        for token in path:
            digest = (digest * 31 + token + 1) % 1_000_003
        distribution: FloatArray = self.pool[digest % len(self.pool)]
        return distribution

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        assert tokens.shape == parents.shape
        assert tokens.dtype == parents.dtype == np.int64
        earlier_paths = list(self.held)
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            assert (parent == -1) == (not earlier_paths), "the first pass of a cycle adds the root, alone"
            assert parent < len(earlier_paths), "a node's parent was added in a pass before"
            self.held.append((*earlier_paths[parent], token) if earlier_paths else (token,))
        self.passes.append(len(tokens))
        return np.stack([self.distribution(path) for path in self.held[len(earlier_paths) :]])


@dataclass
class ChainingDrafter(PathDrafter):
    """The same, which drafts a chain of its likeliest tokens in one call; `asked` keeps the levels of each call."""

    fuses_chains: bool = True
    asked: list[int] = field(default_factory=list)

    def expand_chain(self, root: int, levels: int) -> IntArray:
        assert not self.held, "a chain starts a cycle"
        assert levels >= 1
        self.asked.append(levels)
        path: Path = (root,)
        for _ in range(levels):
            path = (*path, int(self.distribution(path).argmax()))
        return np.array(path[1:], dtype=np.int64)


@dataclass
class GrowingDrafter(PathDrafter):
    """The same, which grows trees in one call, as a graph does: what has no probability among the rest."""

    fuses_trees: bool = True
    asked: list[FusedTreeSpec] = field(default_factory=list)

    def expand_tree(self, root: int, growth: FusedTreeSpec) -> list[FusedTreeLevel]:
        assert not self.held, "a tree starts a cycle"
        self.asked.append(growth)
        self.expand(np.array([root]), np.array([-1]))
        levels, nodes, count = growth.uniforms.shape
        paths, above, tree_levels, places = [(root,)], np.ones(1), [], np.zeros(1, dtype=np.int64)
        for level in range(levels):
            distributions = np.stack([self.distribution(path) for path in paths])
            choices = [
                self._taken(distribution, us, growth.drawn)
                for distribution, us in zip(distributions, growth.uniforms[level], strict=False)
            ]
            tokens, masses = (np.array(part) for part in zip(*choices, strict=True))
            tree_levels.append(FusedTreeLevel(places, distributions, tokens, masses))
            scores = (above[:, None] * masses).reshape(-1)
            places = (-scores).argsort(kind="stable")[:nodes] if growth.ranked else growth.places[level]
            paths = [(*paths[place // count], int(tokens.reshape(-1)[place])) for place in places.tolist()]
            above = scores[places]
        return tree_levels

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        if len(self.held) == 1 and parents.tolist() == [-1]:  # said again, without a pass
            return self.distribution(self.held[0])[None]
        return super().expand(tokens, parents)

    @staticmethod
    def _taken(distribution: FloatArray, uniforms: FloatArray, drawn: bool) -> tuple[list[int], list[float]]:
        if not drawn:
            best = (-distribution).argsort(kind="stable")[: uniforms.size]
            return best.tolist(), np.minimum(distribution[best], 1.0).tolist()
        remaining, tokens, masses = distribution.astype(np.float64), [], []
        for uniform in uniforms.tolist():
            summed = remaining.cumsum()
            token = min(int((summed <= uniform * summed[-1]).sum()), distribution.size - 1)
            tokens.append(token)
            masses.append(float(remaining[token]))
            remaining[token] = 0.0
        return tokens, masses


def path_of(tree: DraftTree, node: int) -> Path:
    """Tokens from the root's to the node's."""
    return tuple(tree.tokens[[0, *tree.path_to(node)]].tolist())


@st.composite
def drafters(draw: st.DrawFn, most: int = 5) -> PathDrafter:
    """Few tokens, few distributions, with ties, zeros and one-hot rows."""
    vocab_size = draw(st.integers(1, most))
    return PathDrafter(np.stack([draw(distributions(vocab_size)) for _ in range(draw(st.integers(1, 4)))]))


def dense(seed: int, vocab_size: int, rows: int = 31) -> PathDrafter:
    """Distributions without zeros or ties."""
    return PathDrafter(np.random.default_rng(seed).dirichlet(np.ones(vocab_size), rows))
