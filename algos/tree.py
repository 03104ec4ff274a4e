"""The draft tree: flat arrays, parents before children."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray

Shape: TypeAlias = tuple[int, ...]
"""The parents of a tree's nodes, level by level; node 0 is the root (parent -1), and siblings are adjacent."""
Drawn: TypeAlias = Literal["iid", "without_replacement", "top_k"]
DRAWN: tuple[Drawn, ...] = get_args(Drawn)
NO_TOKEN = -1
"""The root's token before the first image token, when the target has seen only the condition."""


class Verdict(NamedTuple):
    """The decision of a rule on a draft tree."""

    path: tuple[int, ...]
    """The accepted nodes from the root's child downwards, without the root."""
    token: int
    """The extra token: drawn from the residual at the first rejection, or the bonus token after the last node."""

    def committed(self) -> IntArray | slice:
        """Return an index of the root and the accepted nodes; a slice (no copy) if they are adjacent."""
        nodes = (0, *self.path)
        return slice(0, len(nodes)) if nodes[-1] == len(self.path) else np.array(nodes, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of draft tokens below the last committed token.

    Attributes:
        tokens: [N] int64; node 0 is the last committed token.
        parents: [N] int64; parents[0] == -1 and parents[i] < i. Siblings are in the order in which they were drawn.
        drawn: How a node's children were drawn from its draft distribution: "iid" (independent draws),
            "without_replacement" (each from the distribution without the tokens already tried, renormalised), or
            "top_k" (a deterministic choice: point proposals). Rules rely on it.
        draft_probs: [M, V], the distributions that the children were drawn from (M may be 0 for "top_k").
        draft_rows: [N] int64, the row of draft_probs that node i's children were drawn from; -1 if there is none.
    """

    tokens: IntArray
    parents: IntArray
    drawn: Drawn
    draft_probs: FloatArray
    draft_rows: IntArray

    @property
    def size(self) -> int:
        """The number of nodes N, including the root."""
        return int(self.tokens.size)

    def children(self) -> list[list[int]]:
        """Return the children of each node, in sibling order."""
        parents = self.parents.tolist()
        below: list[list[int]] = [[] for _ in parents]
        for node, parent in enumerate(parents):
            if parent >= 0:
                below[parent].append(node)
        return below

    def depths(self) -> IntArray:
        """Return the depth of each node in edges from the root: [N] int64, read-only."""
        return _depths(tuple(self.parents.tolist()))

    @property
    def leaves(self) -> list[int]:
        """The nodes without children, in ascending order."""
        has_none = np.ones(self.size, dtype=np.bool_)
        has_none[self.parents[1:]] = False
        leaves: list[int] = np.flatnonzero(has_none).tolist()
        return leaves

    @property
    def depth(self) -> int:
        """The number of edges on the longest path."""
        return int(self.depths().max())

    def visible(self) -> BoolArray:
        """Return the tree attention mask [N, N] bool: row i is True at i and i's ancestors; read-only."""
        return _visible(tuple(self.parents.tolist()))

    def path_to(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the root's child down to `node`; empty for the root."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = int(self.parents[node])
        return tuple(reversed(path))

    def draft_distribution(self, node: int) -> FloatArray:
        """Return the distribution [V] that `node`'s children were drawn from; raise ValueError if it was not kept."""
        row = int(self.draft_rows[node])
        if row < 0:
            raise ValueError(
                f"tree: node {node} keeps no draft distribution; a '{self.drawn}' rule needs one, use a "
                "policy that keeps it"
            )
        distribution: FloatArray = self.draft_probs[row]
        return distribution

    def check(self, vocab_size: int) -> None:
        """Raise ValueError, naming the array, unless this is a valid tree over `vocab_size` tokens."""
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
    """Cached for the same reason as `_visible`."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    depth_array = np.array(depths, dtype=np.int64)
    depth_array.flags.writeable = False
    return depth_array


@lru_cache(maxsize=256)
def _visible(parents: tuple[int, ...]) -> BoolArray:
    """Cached, because chains and static trees repeat the same shape."""
    mask = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    mask.flags.writeable = False
    return mask


def are_distributions(rows: FloatArray) -> bool:
    """Return whether rows [M, V] (M, V >= 1) are non-negative and sum to 1 within 1e-4; False on NaN."""
    sums = np.add.reduce(rows, axis=-1).tolist()
    return min(sums) > 1.0 - 1e-4 and max(sums) < 1.0 + 1e-4 and float(np.minimum.reduce(rows, axis=None)) >= 0.0


def root_only(token: int, vocab_size: int) -> DraftTree:
    """Return a tree without drafts: one target pass, one token (plain autoregression)."""
    return chain_tree(np.array([token]), vocab_size)


def chain_tree(tokens: IntArray, vocab_size: int) -> DraftTree:
    """Return tokens [N] that are already decided as a chain, so that a target can read them in one pass."""
    count = len(tokens)
    return DraftTree(
        tokens=np.asarray(tokens, dtype=np.int64),
        parents=np.arange(-1, count - 1, dtype=np.int64),
        drawn="top_k",
        draft_probs=np.empty((0, vocab_size)),
        draft_rows=np.full(count, -1, dtype=np.int64),
    )


def emitted(tree: DraftTree, verdict: Verdict) -> tuple[int, ...]:
    """Return the tokens that a verdict commits: those on the accepted path, then the extra token."""
    return (*(int(tree.tokens[node]) for node in verdict.path), verdict.token)
