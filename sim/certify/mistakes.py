"""Known mistakes of public verifiers, each written as a token-wise walk with one part replaced.

The default walk is correct on all kinds of trees. A certificate names the mistakes nearest to its measurement, if any.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.tree import DRAWN, Drawn
from underpaint.sim.certify.case import DraftRequest
from underpaint.sim.certify.token_wise import TokenWiseWalk, residual_after


class Mistake(NamedTuple):
    """A known mistake of a verifier.

    Attributes:
        name: Name of the mistake.
        summary: What the verifier does wrong, in words.
        report: Where it was reported, or "mutant".
        drawn: The kinds of trees that reveal it.
        verify: A verifier with this mistake.
    """

    name: str
    summary: str
    report: str
    drawn: frozenset[Drawn]
    verify: TokenWiseWalk


def _shifted(draft: DraftRequest, node: int) -> FloatArray:
    row: FloatArray = draft.target_probs[(node + 1) % len(draft.target_probs)]
    return row


def _above(draft: DraftRequest, node: int) -> FloatArray:
    row: FloatArray = draft.target_probs[max(0, int(draft.tree.parents[node]))]
    return row


def _greedy(draft: DraftRequest, node: int) -> FloatArray:
    row: FloatArray = np.eye(draft.target_probs.shape[1])[draft.target_probs[node].argmax()]
    return row


def _without_replacement_lost(draft: DraftRequest, node: int, token: int, tried: Sequence[int]) -> FloatArray:
    return draft.tree.draft_distribution(node)


def _unnormalised(left: FloatArray, offered: FloatArray, token: int) -> FloatArray:
    rest = np.maximum(left - offered, 0.0)
    return rest if rest.any() else left


def _pair_unnormalised(left: FloatArray, offered: FloatArray, token: int) -> FloatArray:
    rest = np.maximum(left - offered, 0.0)
    return rest if np.count_nonzero(rest) >= 2 else residual_after(left, offered, token)


def _tried_still_counted(draft: DraftRequest, node: int, token: int, tried: Sequence[int]) -> FloatArray:
    row: FloatArray = draft.tree.draft_distribution(node).copy()
    row[list(tried)] = 0.0
    return row


def _after_the_first(draft: DraftRequest, left: FloatArray, node: int, child: int) -> FloatArray:
    first = int(draft.tree.tokens[draft.tree.children()[node][0]])
    return residual_after(draft.target_probs[node], RIGHT.offered(draft, node, first, ()), first)


def _to_the_boundary(weights: FloatArray, uniform: float) -> int:
    cumulated = np.cumsum(weights)
    return int(np.searchsorted(cumulated, uniform * cumulated[-1], side="left"))


def _unscaled(weights: FloatArray, uniform: float) -> int:
    return min(int(np.searchsorted(np.cumsum(weights), uniform, side="right")), len(weights) - 1)


def _nearest(token: int, vocab_size: int, count: int) -> list[int]:
    """The `count` codes nearest to `token`, as if the codes lay on a line in the order of their numbers."""
    near = sorted((other for other in range(vocab_size) if other != token), key=lambda other: abs(other - token))
    return near[:count]


def _neighbours_zeroed(left: FloatArray, offered: FloatArray, token: int) -> FloatArray:
    rest = residual_after(left, offered, token)
    cut = rest.copy()
    cut[_nearest(token, len(left), 1)] = 0.0
    return cut / cut.sum() if cut.any() else rest


def _uniform_on_empty(left: FloatArray, offered: FloatArray, token: int) -> FloatArray:
    cut = residual_after(left, offered, token).copy()
    cut[_nearest(token, len(left), 1)] = 0.0
    return cut / cut.sum() if cut.any() else np.full(len(left), 1.0 / len(left))


def _draft_zeroed(left: FloatArray, offered: FloatArray, token: int) -> FloatArray:
    cut = offered.copy()
    cut[_nearest(token, len(left), 1)] = 0.0
    return residual_after(left, cut, token)


ANY = frozenset(DRAWN)
SAMPLED: frozenset[Drawn] = frozenset({"iid", "without_replacement"})
TWO_TAKEN: frozenset[Drawn] = frozenset({"without_replacement"})

RIGHT = TokenWiseWalk()
MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "wrong-slice",
        "children are judged by the target's row of the next node in memory, not of their parent",
        "TensorRT-LLM #15098",
        ANY,
        TokenWiseWalk(judged=_shifted),
    ),
    Mistake(
        "wrong-slice-in-tests",
        "accept tests read the target's row of the next node in memory, the residual that of the parent",
        "TensorRT-LLM #15098",
        ANY,
        TokenWiseWalk(tested=lambda draft, node, left: _shifted(draft, node)),
    ),
    Mistake(
        "accept-at-zero",
        "a token of target probability 0 is accepted at a uniform of 0 (<= for <)",
        "SGLang #35771",
        ANY,
        TokenWiseWalk(accept=lambda uniform, target, draft: uniform * draft <= target),
    ),
    Mistake(
        "capped-ratio",
        "the accept ratio is cut to 0 or 1, so that the uniforms (and the seed) do nothing",
        "vLLM #13196",
        ANY,
        TokenWiseWalk(accept=lambda uniform, target, draft: target >= draft),
    ),
    Mistake(
        "processors-skipped",
        "verified tokens are judged by the target before its logit processors, the extra one after them",
        "vLLM #42744",
        ANY,
        TokenWiseWalk(
            judged=lambda draft, node: draft.raw_probs[node],
            after=lambda draft, left, node, child: (
                left * draft.allowed if (left * draft.allowed).any() else draft.target_probs[node]
            ),
        ),
    ),
    Mistake(
        "rewound-by-count",
        "the cache is rewound by the count of accepted tokens, as if the first nodes of the tree were the path",
        "TensorRT-LLM #10343",
        ANY,
        TokenWiseWalk(path=lambda path: list(range(1, len(path) + 1))),
    ),
    Mistake(
        "lantern-neighbours-zeroed",
        "a rejection takes the mass of the nearest codes too, whether they were pooled or not",
        "LANTERN's released code, dynamic trees",
        ANY,
        TokenWiseWalk(reject=_neighbours_zeroed),
    ),
    Mistake(
        "lantern-uniform-on-empty",
        "the same, and where nothing is left the extra token is uniform over the whole vocabulary",
        "LANTERN's released code, dynamic trees",
        ANY,
        TokenWiseWalk(reject=_uniform_on_empty),
    ),
    Mistake(
        "lantern-draft-zeroed",
        "a rejection takes the nearest codes out of the draft's distribution, not the target's",
        "LANTERN's released code, static trees",
        SAMPLED,
        TokenWiseWalk(reject=_draft_zeroed),
    ),
    Mistake(
        "draw-at-boundary",
        "the inverse-CDF draw takes a token of probability 0 at a uniform of 0",
        "mutant",
        ANY,
        TokenWiseWalk(draw=_to_the_boundary),
    ),
    Mistake(
        "residual-not-normalised",
        "the residual is neither renormalised before the next sibling nor before the extra draw",
        "mutant",
        ANY,
        TokenWiseWalk(reject=_unnormalised, draw=_unscaled),
    ),
    Mistake(
        "pair-not-normalised",
        "a residual of two tokens or more is not renormalised before the next sibling",
        "mutant",
        ANY,
        TokenWiseWalk(reject=_pair_unnormalised),
    ),
    Mistake(
        "draft-not-renormalised",
        "the next sibling is judged by draft probabilities that still hold the tried token's share",
        "mutant",
        TWO_TAKEN,
        TokenWiseWalk(offered=_tried_still_counted),
    ),
    Mistake(
        "residual-of-the-first-sibling",
        "the extra token is drawn from what the first rejection left, whatever was rejected after it",
        "mutant",
        ANY,
        TokenWiseWalk(after=_after_the_first),
    ),
    Mistake(
        "no-residual",
        "after a rejection the extra token is drawn from the target itself",
        "mutant",
        ANY,
        TokenWiseWalk(after=lambda draft, left, node, child: draft.target_probs[node]),
    ),
    Mistake(
        "bonus-from-draft",
        "the bonus token is drawn from the draft's distribution",
        "mutant",
        ANY,
        TokenWiseWalk(bonus=lambda draft, node: draft.tree.draft_distribution(node)),
    ),
    Mistake(
        "bonus-of-the-parent",
        "the bonus token is drawn from the row before the last accepted token",
        "mutant",
        ANY,
        TokenWiseWalk(bonus=_above),
    ),
    Mistake(
        "siblings-not-updated",
        "the second sibling is judged by the target's row, as if the first had not been rejected",
        "mutant",
        ANY,
        TokenWiseWalk(reject=lambda left, offered, token: left),
    ),
    Mistake(
        "with-replacement-residual",
        "siblings drawn without replacement are judged as if drawn independently",
        "mutant",
        TWO_TAKEN,
        TokenWiseWalk(offered=_without_replacement_lost),
    ),
    Mistake(
        "stale-uniforms",
        "every accept test reads the same uniform",
        "mutant",
        ANY,
        TokenWiseWalk(uniform=lambda child: 1),
    ),
    Mistake(
        "uniform-read-twice",
        "the extra token is drawn with the uniform of the last rejected child",
        "mutant",
        ANY,
        TokenWiseWalk(last=lambda child: child if child else -1),
    ),
    Mistake(
        "residual-of-the-root",
        "the residual is taken from the root's row, wherever the rejection was",
        "mutant",
        ANY,
        TokenWiseWalk(
            after=lambda draft, left, node, child: (
                left if node == 0 else residual_after(draft.target_probs[0], draft.tree.draft_distribution(0), 0)
            )
        ),
    ),
    Mistake(
        "draft-ratio-dropped",
        "a sampled token is kept with its target probability, not with target over draft",
        "mutant",
        SAMPLED,
        TokenWiseWalk(accept=lambda uniform, target, draft: uniform < target),
    ),
    Mistake(
        "greedy-accept",
        "a token stays where it is the target's likeliest, whatever the temperature",
        "mutant",
        ANY,
        TokenWiseWalk(judged=_greedy),
    ),
)
BY_NAME = {mistake.name: mistake for mistake in MISTAKES}
