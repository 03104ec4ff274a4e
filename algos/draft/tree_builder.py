"""Builds a tree of point proposals level by level, for all dynamic policies."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeGuard

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.protocols import ChainExpander, Expander, FusedTreeSpec, TreeExpander
from underpaint.algos.tree import DraftTree


class DraftLevel(NamedTuple):
    """The candidates added by one drafter pass."""

    expanded: list[int]
    """[F], the numbers of the candidates that were expanded (-1: the root)."""
    tokens: IntArray
    """[F, k] int64, the likeliest tokens after each."""
    probs: FloatArray
    """[F, k] float64, the drafter's probabilities of these tokens."""
    scores: FloatArray
    """[F * k] float64, the candidates' scores; the candidate in row r, column c has number first + r * k + c."""
    first: int
    """The number of the first candidate of the level."""


class TreeBuilder:
    """A tree under construction. Candidates are numbered in order of creation, so parents come before children.

    A candidate's score is the product of the draft probabilities along its path (arXiv 2406.16858, section 4.1), so it
    is at most its parent's score. Candidates with score 0 are never chosen.
    """

    __slots__ = ("_drafter", "_expanded", "levels", "root")

    def __init__(self, drafter: Expander, root: int) -> None:
        self._drafter = drafter
        self._expanded = 0  # number of nodes that the drafter has added
        self.root = root
        self.levels: list[DraftLevel] = []

    def add_level(self, frontier: int, children: int, adjust: Callable[[FloatArray], FloatArray] | None = None) -> bool:
        """Expand the `frontier` best candidates of the last level by their `children` likeliest tokens.

        The first level expands the root. Makes one drafter pass, but none without candidates of positive score.

        Args:
            frontier: The most candidates to expand.
            children: The number of tokens after each.
            adjust: Maps draft probabilities of the children, [F, k], to the factors of the scores, each at most 1.

        Returns:
            Whether a level was added; False without candidates of positive score.
        """
        if not self.levels:
            likeliest = top(self._drafter.expand(np.array([self.root]), np.array([-1])), children)
            chances = likeliest.probs if adjust is None else adjust(likeliest.probs)
            level = DraftLevel([-1], likeliest.tokens, likeliest.probs, chances.reshape(-1), 0)
        else:
            last = self.levels[-1]
            best = best_first(last.scores, frontier)
            if not best.size:
                return False
            offset = self._expanded - len(last.expanded)
            distributions = self._drafter.expand(last.tokens.reshape(-1)[best], offset + best // last.tokens.shape[1])
            likeliest = top(distributions, children)
            scores = last.scores[best][:, None] * (likeliest.probs if adjust is None else adjust(likeliest.probs))
            expanded = (best + last.first).tolist()
            level = DraftLevel(
                expanded, likeliest.tokens, likeliest.probs, scores.reshape(-1), last.first + last.scores.size
            )
        self._expanded += len(level.expanded)
        self.levels.append(level)
        return True

    def add_levels(self, levels: int, width: int) -> None:
        """Like `levels` calls of `add_level(width, width)` on an empty tree; in one call if the drafter supports it."""
        if not (fuses_trees(self._drafter) and levels > 0 and width <= self._drafter.vocab_size):
            while self.depth < levels and self.add_level(width, width):
                pass
            return
        first, *below = self._drafter.expand_tree(self.root, _best_of(levels, width))
        self.levels.append(DraftLevel([-1], first.tokens, first.masses, first.masses.reshape(-1), 0))
        for places, _, tokens, probs in below:
            last = self.levels[-1]
            above = last.scores[places]
            count = np.count_nonzero(above)  # candidates of probability 0 come last, and are not expanded
            if not count:
                break
            scores = (above[:count, None] * probs[:count]).reshape(-1)
            expanded = (places[:count] + last.first).tolist()
            self.levels.append(
                DraftLevel(expanded, tokens[:count], probs[:count], scores, last.first + last.scores.size)
            )

    @property
    def depth(self) -> int:
        """The number of levels grown, with one drafter pass each."""
        return len(self.levels)

    def scores(self) -> FloatArray:
        """Return [C] float64, the scores of all candidates."""
        return np.concatenate([level.scores for level in self.levels]) if self.levels else np.empty(0)

    def tree(self, count: int) -> DraftTree:
        """Return the tree of the `count` best candidates (ties: created first); it contains all their parents."""
        numbers = best_first(self.scores(), count)
        numbers.sort()
        tokens, parents = np.empty(numbers.size + 1, dtype=np.int64), np.empty(numbers.size + 1, dtype=np.int64)
        tokens[0], parents[0] = self.root, -1
        if numbers.size:
            tokens[1:] = np.concatenate([level.tokens.reshape(-1) for level in self.levels])[numbers]
            above = [np.array(level.expanded).repeat(level.tokens.shape[1]) for level in self.levels]
            # The root's number -1 sorts before all kept numbers, so it becomes 0.
            parents[1:] = numbers.searchsorted(np.concatenate(above)[numbers], side="right")
        return point_tree(tokens, parents, self._drafter.vocab_size)


def likeliest_chain(drafter: Expander, root: int, length: int) -> DraftTree:
    """Return a greedy chain of up to `length` tokens, in one call if the drafter supports it, else level by level."""
    if length > 0 and fuses_chains(drafter):
        tokens = np.empty(length + 1, dtype=np.int64)
        tokens[0], tokens[1:] = root, drafter.expand_chain(root, length)
        return point_tree(tokens, _in_a_row(length), drafter.vocab_size)
    growing = TreeBuilder(drafter, root)
    while growing.depth < length and growing.add_level(1, 1):
        pass
    return growing.tree(length)


def fuses_chains(drafter: object) -> TypeGuard[ChainExpander]:
    """Return whether the drafter can draft a chain in one call."""
    return getattr(drafter, "fuses_chains", False) is True


def fuses_trees(drafter: Expander) -> TypeGuard[TreeExpander]:
    """Return whether the drafter can grow a tree in one call."""
    return getattr(drafter, "fuses_trees", False) is True


def draws_siblings(drafter: object) -> bool:
    """Return whether trees of drawn siblings may be used; if not, trees hold likeliest tokens."""
    return getattr(drafter, "draws_siblings", False) is True


@lru_cache(maxsize=64)
def _best_of(levels: int, width: int) -> FusedTreeSpec:
    return FusedTreeSpec(
        np.zeros((levels, width), dtype=np.int64), np.zeros((levels, width, width)), ranked=True, drawn=False
    )


def best_first(scores: FloatArray, count: int) -> IntArray:
    """Return the indices of the `count` best positive scores, best first; ties keep their order."""
    order = (-scores).argsort(kind="stable")[:count]
    return order[: np.count_nonzero(scores[order])]


def point_tree(tokens: IntArray, parents: IntArray, vocab_size: int) -> DraftTree:
    """Return a tree of point proposals, which stores no draft distribution."""
    draft_probs, draft_rows = _no_distributions(tokens.size, vocab_size)
    return DraftTree(tokens=tokens, parents=parents, drawn="top_k", draft_probs=draft_probs, draft_rows=draft_rows)


@lru_cache(maxsize=256)
def _in_a_row(length: int) -> IntArray:
    """Return the parents of a chain; read-only, because it is cached."""
    parents = np.arange(-1, length)
    parents.flags.writeable = False
    return parents


@lru_cache(maxsize=256)
def _no_distributions(size: int, vocab_size: int) -> tuple[FloatArray, IntArray]:
    """Return `DraftTree.draft_probs` and `draft_rows` for a tree without draft distributions; read-only."""
    draft_probs, draft_rows = np.empty((0, vocab_size)), np.full(size, -1, dtype=np.int64)
    draft_probs.flags.writeable = draft_rows.flags.writeable = False
    return draft_probs, draft_rows
