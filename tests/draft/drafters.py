"""Drafters that the policies' tests look through."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from algos.arrays import FloatArray, IntArray
from algos.tree import DraftTree
from tests.strategies import laws

Path = tuple[int, ...]


@dataclass
class PathDrafter:
    """The law after a path (the root token included) is one of `pool` [P, V], picked by the path; passes are kept."""

    pool: FloatArray
    held: list[Path] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)

    @property
    def vocab_size(self) -> int:
        return int(self.pool.shape[1])

    def law(self, path: Path) -> FloatArray:
        digest = 0
        for token in path:
            digest = (digest * 31 + token + 1) % 1_000_003
        law: FloatArray = self.pool[digest % len(self.pool)]
        return law

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        assert tokens.shape == parents.shape
        assert tokens.dtype == parents.dtype == np.int64
        held = list(self.held)
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            assert (parent == -1) == (not held), "the first pass of a cycle adds the root, alone"
            assert parent < len(held), "a node's parent was added in a pass before"
            self.held.append((*held[parent], token) if held else (token,))
        self.passes.append(len(tokens))
        return np.stack([self.law(path) for path in self.held[len(held) :]])


@dataclass
class ChainingDrafter(PathDrafter):
    """The same, which drafts a chain of its likeliest tokens in one call; `asked` keeps the levels of each call."""

    chains: bool = True
    asked: list[int] = field(default_factory=list)

    def expand_chain(self, root: int, levels: int) -> IntArray:
        assert not self.held, "a chain starts a cycle"
        assert levels >= 1
        self.asked.append(levels)
        path: Path = (root,)
        for _ in range(levels):
            path = (*path, int(self.law(path).argmax()))
        return np.array(path[1:], dtype=np.int64)


def path_of(tree: DraftTree, node: int) -> Path:
    """Tokens from the root's to the node's."""
    return tuple(tree.tokens[[0, *tree.path_to(node)]].tolist())


@st.composite
def drafters(draw: st.DrawFn, most: int = 5) -> PathDrafter:
    """Few tokens, few laws, with ties, zeros and one-hot rows."""
    vocab_size = draw(st.integers(1, most))
    return PathDrafter(np.stack([draw(laws(vocab_size)) for _ in range(draw(st.integers(1, 4)))]))


def dense(seed: int, vocab_size: int, rows: int = 31) -> PathDrafter:
    """Laws without zeros or ties."""
    return PathDrafter(np.random.default_rng(seed).dirichlet(np.ones(vocab_size), rows))
