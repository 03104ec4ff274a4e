"""Log-likelihood of an image's tokens under the target: a measure of quality that needs no judge."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import Scored, Target
from underpaint.algos.tree import Verdict, chain_tree
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.target import EngineGridTarget, EngineTarget
from underpaint.runtime.methods.method import PipelineModels

SMALLEST: Final = 1e-12
"""Smallest probability that counts, so that one token excluded by the target leaves the mean finite."""


def whole_distribution(sampling: SamplingParams) -> SamplingParams:
    """Sampling parameters for likelihoods: guidance as drawn, temperature 1, no top-k or top-p."""
    return replace(sampling, temperature=1.0, top_k=0, top_p=1.0)


def image_log_likelihood(
    models: PipelineModels, condition: Condition, tokens: IntArray, sampling: SamplingParams
) -> float:
    """Mean log-probability of an image's tokens [cells] under the target, in nats per token; see `whole_distribution`.

    The tokens are scored in passes as large as the target's largest pass.
    """
    target = models.target(condition, whole_distribution(sampling)).model
    return tokens_log_likelihood(target, tokens, most_at_once(target, models.max_nodes))


def most_at_once(target: Target | GridTarget, most: int) -> int:
    """Length of the longest chain, at most `most` tokens, that a target's engine runs in one pass."""
    return target.most_nodes(most) if isinstance(target, EngineTarget | EngineGridTarget) else most


def tokens_log_likelihood(target: Target, tokens: IntArray, most: int) -> float:
    """Mean log-probability of tokens [cells] under a target at its beginning; at most `most` tokens per pass."""
    first = target.begin()
    logs = [_log(first, 0, int(tokens[0]))]
    read, last = 0, len(tokens) - 1  # the last token is scored, but not read
    while read < last:
        count = min(most, last - read)
        tree = chain_tree(tokens[read : read + count], target.vocab_size)
        scored = target.score(tree)
        logs += [_log(scored, place, int(tokens[read + place + 1])) for place in range(count)]
        read += count
        target.commit(tree, Verdict(tuple(range(1, count)), int(tokens[read])))
    return float(np.mean(logs))


def _log(scored: Scored, row: int, token: int) -> float:
    return float(np.log(max(float(scored.probs[row][token]), SMALLEST)))
