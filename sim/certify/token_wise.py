"""Token-wise verification of a draft with given uniforms, made of replaceable parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import index_of
from underpaint.algos.tree import Verdict
from underpaint.sim.certify.case import DraftRequest


def offered_by(draft: DraftRequest, node: int, token: int, tried: Sequence[int]) -> FloatArray:
    """[V] the distribution that the next child of `node`, with `token`, was drawn from, given the `tried` siblings."""
    if draft.tree.drawn == "top_k":
        point: FloatArray = np.eye(draft.target_probs.shape[1])[token]
        return point
    row = draft.tree.draft_distribution(node)
    if tried and draft.tree.drawn == "without_replacement":
        row = row.copy()
        row[tried] = 0.0
    offered: FloatArray = row / np.add.reduce(row)
    return offered


def residual_after(left: FloatArray, offered: FloatArray, token: int) -> FloatArray:
    """[V] the residual norm([left - offered]_+), or `left` if the residual is empty (by rounding)."""
    rest = np.maximum(left - offered, 0.0)
    total = np.add.reduce(rest)
    return rest / total if total else left


class _Step(NamedTuple):
    """The test of one child. left, offered: [V] the residual before the test, and the distribution that the child was
    drawn from. target, draft: probabilities of the child's token for the accept test."""

    left: FloatArray
    offered: FloatArray
    target: float
    draft: float


@dataclass(frozen=True, slots=True)
class TokenWiseWalk:
    """Token-wise verification with replaceable parts; with the default parts it is lossless on all kinds of trees.

    Attributes:
        accept: Whether to accept a token, given its uniform and its target and draft probabilities.
        offered: The distribution that a child was drawn from, given the draft, the node, the child's token and the
            siblings already tried.
        reject: The residual after a rejection, given the one before, the child's distribution and the child's token.
        judged: The target's row for the children of a node.
        tested: The row that only the accept test reads, given the node and the residual so far.
        bonus: The target's row for the bonus token after the last node.
        after: The row of the final draw after rejections, given the residual, the node and the last tested child.
        draw: Draws a token from a row with a uniform.
        uniform: The column of a child's accept test.
        last: The column of the final draw, given the last tested child (0: none).
        path: Maps the accepted nodes to the reported ones.
    """

    accept: Callable[[float, float, float], bool] = lambda uniform, target, draft: uniform * draft < target
    offered: Callable[[DraftRequest, int, int, Sequence[int]], FloatArray] = offered_by
    reject: Callable[[FloatArray, FloatArray, int], FloatArray] = residual_after
    judged: Callable[[DraftRequest, int], FloatArray] = lambda draft, node: draft.target_probs[node]
    tested: Callable[[DraftRequest, int, FloatArray], FloatArray] = lambda draft, node, left: left
    bonus: Callable[[DraftRequest, int], FloatArray] = lambda draft, node: draft.target_probs[node]
    after: Callable[[DraftRequest, FloatArray, int, int], FloatArray] = lambda draft, left, node, child: left
    draw: Callable[[FloatArray, float], int] = index_of
    uniform: Callable[[int], int] = lambda child: child
    last: Callable[[int], int] = lambda child: -1
    path: Callable[[list[int]], list[int]] = lambda path: path

    def __call__(self, draft: DraftRequest, uniforms: FloatArray) -> Verdict:
        """Decide one draft with given uniforms [N + 1] (see `Verifier.decide`)."""
        return WalkOfDraft(self, draft).decide(uniforms)


@dataclass(slots=True)
class WalkOfDraft:
    """A walk over one draft. Rows that one decision needed are cached for the next."""

    walk: TokenWiseWalk
    draft: DraftRequest
    below: list[list[int]] = field(init=False)
    tokens: list[int] = field(init=False)
    steps: list[list[_Step]] = field(init=False)
    ends: dict[int, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.below, self.tokens = self.draft.tree.children(), self.draft.tree.tokens.tolist()
        self.steps = [[] for _ in self.tokens]

    def decide(self, uniforms: FloatArray) -> Verdict:
        """Decide the draft with given uniforms [N + 1]."""
        walk, read = self.walk, uniforms.tolist()
        path: list[int] = []
        node = child = 0
        while below := self.below[node]:
            steps = self.steps[node]
            for turn, child in enumerate(below):
                step = steps[turn] if turn < len(steps) else self._next_step(node)
                if walk.accept(read[walk.uniform(child)], step.target, step.draft):
                    break
            else:
                break
            path.append(child)
            node, child = child, 0
        row = self.ends.get(node)
        if row is None:
            row = self.ends[node] = self._end(node)
        return Verdict(tuple(walk.path(path)), walk.draw(row, read[walk.last(child)]))

    def _left(self, node: int) -> FloatArray:
        """[V] the target's residual at `node` after its tested children."""
        steps = self.steps[node]
        if not steps:
            return self.walk.judged(self.draft, node)
        return self.walk.reject(steps[-1].left, steps[-1].offered, self.tokens[self.below[node][len(steps) - 1]])

    def _next_step(self, node: int) -> _Step:
        tried = [self.tokens[child] for child in self.below[node][: len(self.steps[node]) + 1]]
        token = tried.pop()
        left = self._left(node)
        offered = self.walk.offered(self.draft, node, token, tried)
        target = float(self.walk.tested(self.draft, node, left)[token])
        self.steps[node].append(_Step(left, offered, target, float(offered[token])))
        return self.steps[node][-1]

    def _end(self, node: int) -> FloatArray:
        """[V] the distribution of the last token: the residual, or at a leaf the bonus token's row."""
        if below := self.below[node]:
            return self.walk.after(self.draft, self._left(node), node, below[-1])
        return self.walk.bonus(self.draft, node)
