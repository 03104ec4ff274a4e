"""Decides near-ties of a live model in bf16 or fp16 with a float32 copy of its weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.step import Scored
from underpaint.algos.tree import DraftTree, Verdict, chain_tree
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.live.engine import TorchEngine
from underpaint.runtime.live.model import LiveModel, LiveModelError

NearTies: TypeAlias = Literal["float32"]
"""The arithmetic that decides near-ties."""
_LONGEST: Final = 64
"""Maximum number of tokens that the float32 model reads in one pass."""
_TIMES: Final = 4.0
"""The margin, as a multiple of the largest difference of logits between the two arithmetics so far."""


def exact_model(verify_near_ties: NearTies | None, model: Any, make: Callable[[Any], LiveModel]) -> LiveModel | None:
    """Return a copy of a live model that computes in float32; it needs 4 more bytes per weight.

    Args:
        verify_near_ties: "float32"; None makes no copy and returns None.
        model: The loaded model.
        make: Its family function, with the options of the live model.

    Raises:
        LiveModelError: `verify_near_ties` is neither None nor "float32", or the model already computes in float32.
    """
    if verify_near_ties is None:
        return None
    if verify_near_ties != "float32":
        raise LiveModelError(
            f"verify_near_ties: expected float32, got {verify_near_ties!r}; leave it out to verify none"
        )
    if next(model.parameters()).dtype == torch.float32:
        raise LiveModelError(
            "verify_near_ties: expected a model in bfloat16 or float16, got one in float32, which is what ties are "
            "verified by; leave it out, or load the model in bfloat16"
        )
    return make(copy.deepcopy(model).float().eval())


class NearTieTarget:
    """Implements `algos.step.Target`: runs passes in the model's own dtype and recomputes near-ties in float32.

    At temperature 0, rows whose two best logits differ by at most `margin` are recomputed, so the tokens are those of
    the float32 model. Above 0, a draw among thousands of codes is close to a boundary almost every time, so every row
    that verification reads is recomputed. Drafters read features of the model's own dtype.

    The float32 model has its own KV cache. It reads tokens only when a near-tie needs them, many in one pass.
    """

    def __init__(self, target: EngineTarget, exact: EngineTarget) -> None:
        """Take the target and `exact`, the same target on `exact_model`; both hold the condition and the sampling."""
        self._target, self._exact = target, exact
        _engine(exact).cost = _engine(target).cost  # passes of both count as the target's
        self._tokens: list[int] = []
        """Committed tokens that the float32 model has not read yet; the last one is the next root."""
        self._verified: DraftTree | None = None
        """The tree that the float32 model scored last; None once it is committed."""
        self._difference = 0.0
        self.recomputed = 0
        """Number of passes in which a row was recomputed."""

    @property
    def vocab_size(self) -> int:
        return self._target.vocab_size

    @property
    def grid(self) -> Grid:
        return self._target.grid

    @property
    def margin(self) -> float:
        """Two guided logits that differ by at most this are a near-tie.

        It is four times the largest difference between the two arithmetics over all rows computed by both so far,
        starting with the prompt's rows.
        """
        return _TIMES * self._difference

    def begin(self) -> Scored:
        scored, exact = self._target.begin(), self._exact.begin()
        self._tokens, self._verified, self._difference = [], None, 0.0
        self._compare(slice(None))
        return scored._replace(probs=exact.probs)

    def score(self, tree: DraftTree) -> Scored:
        scored, self._verified = self._target.score(tree), None
        near = self._near(tree)
        if not near.any():
            return scored
        self.recomputed += 1
        probs = scored.probs.copy()
        probs[near] = self._exact_probs(tree)[near]
        return scored._replace(probs=probs)

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        self._target.commit(tree, verdict)
        if self._verified is tree:
            self._exact.commit(tree, verdict)
            self._tokens, self._verified = [int(verdict.token)], None
            return
        read = self._tokens or [int(tree.tokens[0])]
        self._tokens = [*read, *tree.tokens[list(verdict.path)].tolist(), int(verdict.token)]

    def _near(self, tree: DraftTree) -> BoolArray:
        """Which rows [N] must be recomputed."""
        if self._target.params.temperature > 0:
            return np.ones(tree.size, dtype=np.bool_)
        best = _guided(self._target)[self._target.outputs].topk(2, dim=-1).values
        return (best[:, 0] - best[:, 1] <= self.margin).cpu().numpy()

    def _exact_probs(self, tree: DraftTree) -> FloatArray:
        tokens = self._tokens or [int(tree.tokens[0])]
        while len(tokens) > 1:  # tokens committed since the float32 model's last pass
            chain = chain_tree(np.array(tokens[: min(_LONGEST, len(tokens) - 1)]), self.vocab_size)
            self._exact.score(chain)
            tokens = tokens[chain.size :]
            self._exact.commit(chain, Verdict(tuple(range(1, chain.size)), tokens[0]))
        exact = self._exact.score(tree)
        self._tokens, self._verified = tokens, tree
        self._compare(self._target.outputs)
        return exact.probs

    def _compare(self, positions: IntArray | slice) -> None:
        """Update the largest difference between the two arithmetics from the last pass of both."""
        target_logits, exact = _guided(self._target)[positions], _guided(self._exact)[positions]
        self._difference = max(self._difference, float((target_logits - exact).abs().max()))


def _engine(target: EngineTarget) -> TorchEngine:
    engine = target.engine
    assert isinstance(engine, TorchEngine)
    return engine


def _guided(target: EngineTarget) -> Tensor:
    guided = _engine(target).guided
    assert guided is not None
    return guided
