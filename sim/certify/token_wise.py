"""Token-wise verification of a draft by handed-in uniforms, in parts that can be exchanged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import index_of
from underpaint.algos.tree import Verdict
from underpaint.sim.certify.case import DraftRequest


def offered_by(draft: DraftRequest, node: int, token: int, tried: Sequence[int]) -> FloatArray:
    """[V] what the next child of `node`, which holds `token`, was drawn from, given the siblings before it."""
    if draft.tree.drawn == "top_k":
        point: FloatArray = np.eye(draft.target_probs.shape[1])[token]
        return point
    row = draft.tree.draft_distribution(node).copy()
    if draft.tree.drawn == "without_replacement":
        row[list(tried)] = 0.0
    row /= row.sum()
    return row


def still_wanted(left: FloatArray, offered: FloatArray, token: int) -> FloatArray:
    """[V] norm([left - offered]_+), or `left` where rounding alone is left."""
    rest = np.maximum(left - offered, 0.0)
    return rest / rest.sum() if rest.any() else left


@dataclass(frozen=True, slots=True)
class TokenWiseWalk:
    """Token-wise verification with parts to exchange: as it stands, lossless on every kind of tree.

    accept(uniform, target, draft): whether a token of these probabilities stays. judged, bonus, after: the row of the
    target that children are judged by, that follows the last node, and that the residual is drawn from (given the
    residual, the node and the child tried last). tested: what the accept test alone reads, given the node and the
    residual so far. uniform: the column of a child's accept uniform. last: the column of
    the final draw, given the last child tried (0: none). path: what is told of the accepted nodes.
    """

    accept: Callable[[float, float, float], bool] = lambda uniform, target, draft: uniform * draft < target
    offered: Callable[[DraftRequest, int, int, Sequence[int]], FloatArray] = offered_by
    reject: Callable[[FloatArray, FloatArray, int], FloatArray] = still_wanted
    judged: Callable[[DraftRequest, int], FloatArray] = lambda draft, node: draft.target_probs[node]
    tested: Callable[[DraftRequest, int, FloatArray], FloatArray] = lambda draft, node, left: left
    bonus: Callable[[DraftRequest, int], FloatArray] = lambda draft, node: draft.target_probs[node]
    after: Callable[[DraftRequest, FloatArray, int, int], FloatArray] = lambda draft, left, node, child: left
    draw: Callable[[FloatArray, float], int] = index_of
    uniform: Callable[[int], int] = lambda child: child
    last: Callable[[int], int] = lambda child: -1
    path: Callable[[list[int]], list[int]] = lambda path: path

    def __call__(self, draft: DraftRequest, uniforms: FloatArray) -> Verdict:
        """Decide one draft by its uniforms [N + 1] (see `Verifier.decide`)."""
        below = draft.tree.children()
        path: list[int] = []
        node = 0
        while below[node]:
            left = self.judged(draft, node)
            tried: list[int] = []
            for child in below[node]:
                token = int(draft.tree.tokens[child])
                offered = self.offered(draft, node, token, tried)
                target = float(self.tested(draft, node, left)[token])
                if self.accept(float(uniforms[self.uniform(child)]), target, float(offered[token])):
                    break
                left = self.reject(left, offered, token)
                tried.append(token)
            else:
                child = below[node][-1]
                extra = self.draw(self.after(draft, left, node, child), float(uniforms[self.last(child)]))
                return Verdict(tuple(self.path(path)), extra)
            path.append(child)
            node = child
        return Verdict(tuple(self.path(path)), self.draw(self.bonus(draft, node), float(uniforms[self.last(0)])))
