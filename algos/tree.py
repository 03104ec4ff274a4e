"""The draft tree: flat arrays, parents before children."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray

Shape: TypeAlias = tuple[int, ...]
"""Parents of a tree's nodes, node 0 the root (parent -1), level by level; the children of a node stand together."""
Drawn: TypeAlias = Literal["iid", "without_replacement", "top_k"]
DRAWN: tuple[Drawn, ...] = get_args(Drawn)
NO_TOKEN = -1
"""The root's token before the first image token: the condition alone has been seen."""


class Verdict(NamedTuple):
    """What a rule decided about a tree."""

    path: tuple[int, ...]
    """Accepted nodes from the root's child downwards, the root excluded."""
    token: int
    """The one extra token: from the residual at the first rejection, or the bonus after the last node."""

    def committed(self) -> IntArray | slice:
        """The root and the accepted nodes, as an index; a slice where they stand side by side, so nothing is copied."""
        kept = (0, *self.path)
        return slice(0, len(kept)) if kept[-1] == len(self.path) else np.array(kept, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of proposed tokens below the last committed one.

    tokens: [N] int64; node 0 is the last committed token.
    parents: [N] int64; parents[0] == -1 and parents[i] < i. Siblings stand in the order they were drawn.
    drawn: how the children of a node were drawn from its distribution, which says what a rule may assume of them:
        "iid" independent draws; "without_replacement" each from the distribution with the tokens already tried taken
        out and renormalised; "top_k" a deterministic choice (point proposals).
    draft_probs: [M, V], the distributions that children were drawn from (top_k trees may have M = 0).
    draft_rows: [N] int64, the row of draft_probs that node i's children were drawn from; -1 where there is none.
    """

    tokens: IntArray
    parents: IntArray
    drawn: Drawn
    draft_probs: FloatArray
    draft_rows: IntArray

    @property
    def size(self) -> int:
        """N, the root included."""
        return int(self.tokens.size)

    def children(self) -> list[list[int]]:
        """For each node its children, in sibling order."""
        parents = self.parents.tolist()
        below: list[list[int]] = [[] for _ in parents]
        for node, parent in enumerate(parents):
            if parent >= 0:
                below[parent].append(node)
        return below

    def depths(self) -> IntArray:
        """[N] int64, edges from the root; read-only."""
        return _depths(tuple(self.parents.tolist()))

    @property
    def leaves(self) -> list[int]:
        """The nodes without children, ascending."""
        has_none = np.ones(self.size, dtype=np.bool_)
        has_none[self.parents[1:]] = False
        found: list[int] = np.flatnonzero(has_none).tolist()
        return found

    @property
    def depth(self) -> int:
        """Edges on the longest path."""
        return int(self.depths().max())

    def visible(self) -> BoolArray:
        """[N, N] bool: row i is True at i and at i's ancestors (the tree mask); read-only."""
        return _visible(tuple(self.parents.tolist()))

    def path_to(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to `node`; empty for the root."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = int(self.parents[node])
        return tuple(reversed(path))

    def draft_distribution(self, node: int) -> FloatArray:
        """The distribution [V] that `node`'s children were drawn from; ValueError where it was not kept."""
        row = int(self.draft_rows[node])
        if row < 0:
            raise ValueError(
                f"tree: node {node} keeps no draft distribution; a '{self.drawn}' rule needs one, use a "
                "policy that keeps it"
            )
        distribution: FloatArray = self.draft_probs[row]
        return distribution

    def check(self, vocab_size: int) -> None:
        """Raise ValueError, naming the array, unless this is a tree over `vocab_size` tokens."""
        count = self.size
        if count < 1 or self.parents.shape != (count,) or self.draft_rows.shape != (count,):
            raise ValueError(
                f"tree: tokens, parents and draft_rows must be [N] with N >= 1, got {self.tokens.shape}, "
                f"{self.parents.shape} and {self.draft_rows.shape}"
            )
        if self.drawn not in DRAWN:
            raise ValueError(f"tree: drawn must be one of {', '.join(DRAWN)}, got {self.drawn!r}")
        parents, drafted = self.parents.tolist(), self.tokens[1:].tolist()
        if parents[0] != -1 or not all(0 <= parent < node for node, parent in enumerate(parents[1:], start=1)):
            raise ValueError(
                "tree.parents: expected parents[0] == -1 and 0 <= parents[i] < i (parents before children), got "
                f"{parents}; sort the nodes by depth"
            )
        if drafted and (min(drafted) < 0 or max(drafted) >= vocab_size):
            raise ValueError(f"tree.tokens: expected 0 <= token < {vocab_size}, got {drafted}")
        distributions = self.draft_probs
        if distributions.ndim != 2 or (distributions.shape[0] and distributions.shape[1] != vocab_size):
            raise ValueError(f"tree.draft_probs: expected [M, {vocab_size}], got {distributions.shape}")
        if distributions.size and not are_distributions(distributions):
            raise ValueError(
                "tree.draft_probs: expected rows of non-negative numbers that sum to 1, got sums "
                f"{distributions.sum(axis=-1).tolist()}; pass the drafter's logits through rows.sampling_probs"
            )
        draft_rows = self.draft_rows.tolist()
        if min(draft_rows) < -1 or max(draft_rows) >= distributions.shape[0]:
            raise ValueError(f"tree.draft_rows: expected rows below {distributions.shape[0]} or -1, got {draft_rows}")
        if self.drawn != "iid" and len(set(zip(parents[1:], drafted, strict=True))) != len(drafted):
            raise ValueError(
                f"tree.tokens: a '{self.drawn}' tree must not hold duplicate siblings; draw them as 'iid' or drop them"
            )


@lru_cache(maxsize=256)
def _depths(parents: tuple[int, ...]) -> IntArray:
    """Kept, as `_visible` is."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    found = np.array(depths, dtype=np.int64)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=256)
def _visible(parents: tuple[int, ...]) -> BoolArray:
    """Kept, as chains and static trees come again and again."""
    mask = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    mask.flags.writeable = False
    return mask


def are_distributions(rows: FloatArray) -> bool:
    """Whether rows [M, V] (M, V >= 1) are non-negative and sum to 1, to 1e-4; False on NaN."""
    sums = np.add.reduce(rows, axis=-1).tolist()
    return min(sums) > 1.0 - 1e-4 and max(sums) < 1.0 + 1e-4 and float(np.minimum.reduce(rows, axis=None)) >= 0.0


def root_only(token: int, vocab_size: int) -> DraftTree:
    """The tree with no proposal: one target pass, one token (plain AR)."""
    return chain_tree(np.array([token]), vocab_size)


def chain_tree(tokens: IntArray, vocab_size: int) -> DraftTree:
    """Tokens [N] that are decided already as one path, as a target reads them many in one pass."""
    count = len(tokens)
    return DraftTree(
        tokens=np.asarray(tokens, dtype=np.int64),
        parents=np.arange(-1, count - 1, dtype=np.int64),
        drawn="top_k",
        draft_probs=np.empty((0, vocab_size)),
        draft_rows=np.full(count, -1, dtype=np.int64),
    )


def emitted(tree: DraftTree, verdict: Verdict) -> tuple[int, ...]:
    """The tokens that a verdict commits: those on its path, then the extra one."""
    return (*(int(tree.tokens[node]) for node in verdict.path), verdict.token)
