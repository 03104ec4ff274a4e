"""Growing a tree of point proposals level by level: what every dynamic policy shares."""

import numpy as np

from algos.arrays import FloatArray, IntArray
from algos.draft.spec import Expander
from algos.draft.top import top
from algos.tree import DraftTree


class Growing:
    """A tree in the making. Candidates are numbered in the order they were found, so parents come before children.

    A candidate's score is the product of the draft probabilities along its path (arXiv 2406.16858, section 4.1), at
    most its parent's; candidates of score 0 are never taken.
    """

    __slots__ = ("_drafter", "_expanded", "_first", "_last_base", "_parents", "_root", "_scores", "_tokens", "depth")

    def __init__(self, drafter: Expander, root: int) -> None:
        self._drafter = drafter
        self._root = root
        self._tokens: list[IntArray] = []
        self._parents: list[IntArray] = []
        self._scores: list[FloatArray] = []
        self._expanded = 0
        """Nodes that the drafter holds."""
        self._last_base = 0
        """The drafter's id of the first node that it expanded last."""
        self._first = 0
        """The number of the first candidate of the last level."""
        self.depth = 0
        """Levels grown."""

    def grow_level(self, frontier: int, children: int) -> bool:
        """Expand the `frontier` best candidates of the last level by their `children` likeliest tokens.

        One drafter pass. False, and no pass, where the last level has no candidate of positive score.
        """
        scores: FloatArray
        if self.depth == 0:
            tokens, parents, scores = np.array([self._root]), np.array([-1]), np.ones(1)
            chosen = np.array([-1])
        else:
            best = best_first(self._scores[-1], frontier)
            if not best.size:
                return False
            scores = self._scores[-1][best]
            tokens = self._tokens[-1][best]
            chosen = self._first + best
            parents = self._last_base + best // self._fan_out()
        laws = self._drafter.expand(tokens, parents)
        found = top(laws, children)
        self._first += self._scores[-1].size if self._scores else 0
        self._last_base = self._expanded
        self._expanded += tokens.size
        self._tokens.append(found.tokens.reshape(-1))
        self._scores.append((scores[:, None] * found.probs).reshape(-1))
        self._parents.append(np.repeat(chosen, found.tokens.shape[1]))
        self.depth += 1
        return True

    def _fan_out(self) -> int:
        return self._tokens[-1].size // (self._expanded - self._last_base)

    def scores(self) -> FloatArray:
        """[C] the candidates' path products."""
        return np.concatenate(self._scores) if self._scores else np.empty(0)

    def last_scores(self) -> FloatArray:
        """The path products of the last level's candidates."""
        return self._scores[-1]

    def tree(self, count: int) -> DraftTree:
        """The tree of the `count` best candidates (ties: the one found first), closed under parents."""
        kept = np.sort(best_first(self.scores(), count))
        tokens, parents = [np.array([self._root])], [np.array([-1])]
        if kept.size:
            above = np.concatenate(self._parents)[kept]
            tokens.append(np.concatenate(self._tokens)[kept])
            parents.append(np.where(above < 0, 0, np.searchsorted(kept, above) + 1))
        return point_tree(np.concatenate(tokens), np.concatenate(parents), self._drafter.vocab_size)


def best_first(scores: FloatArray, count: int) -> IntArray:
    """Places of the `count` best positive scores, best first; ties stand as they were found."""
    order = np.argsort(-scores, kind="stable")[:count]
    return order[: np.count_nonzero(scores[order])]


def point_tree(tokens: IntArray, parents: IntArray, vocab_size: int) -> DraftTree:
    """A tree of point proposals, which keeps no law."""
    return DraftTree(
        tokens=tokens,
        parents=parents,
        drawn="top_k",
        draft_probs=np.empty((0, vocab_size)),
        law_of=np.full(tokens.size, -1, dtype=np.int64),
    )
