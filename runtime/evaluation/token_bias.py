"""Measures how far a method's tokens are from the target's distribution, while a picture is drawn again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.accept.traversal import TraversalVerification
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.enumeration import next_token_distribution
from underpaint.algos.protocols import Grid, Rule
from underpaint.algos.rows import SamplingParams
from underpaint.algos.skipping import skipped_distribution
from underpaint.algos.spatial.target import Feed, GridTarget
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.conditions import Condition
from underpaint.runtime.evaluation.likelihood import most_at_once
from underpaint.runtime.methods.method import DecodingMethod, DecodingResult, PipelineModels, Timed
from underpaint.runtime.methods.registry import MethodConfig
from underpaint.runtime.methods.windows.method import JacobiConfig


class Watched(NamedTuple):
    """A drawing, and the mean total variation of its tokens; None if not measured."""

    result: DecodingResult
    token_bias: float | None


def draw_watched(
    models: PipelineModels, method: DecodingMethod, condition: Condition, sampling: SamplingParams, chance: Chance
) -> Watched:
    """Draw one image, and measure how far each decision moves the next token from the target's distribution.

    For draft trees and windows, the total variation is between the next token's exact distribution under the rule and
    the target's, at each root. For sampled siblings, the reference is a lossless rule on the same siblings, which
    bounds the bias over all draws from above. For a tree that was never verified, it is between the drafted path's
    first token and the target's distribution. For row fronts, it is between each cell's distribution when it was
    decided and the target's given all earlier cells of the finished picture. Cells that an adaptive window redraws do
    not count. Lossless methods, temperature 0, and cells drafted at a low resolution are not measured, nor are rules
    that look ahead and inexact windows, whose bias the token after the root does not show.
    """
    if method.lossless or sampling.temperature == 0.0 or not _shows_bias(method.config):
        return Watched(method.open(models, condition, sampling).decode(chance), None)
    watches: list[RuleWatch] = []

    def watch(rule: Rule) -> RuleWatch:
        watches.append(RuleWatch(rule))
        return watches[-1]

    by_rule = method.watched(watch)
    if by_rule is not None:
        result = by_rule.open(models, condition, sampling).decode(chance)
        biases = [bias for one in watches for bias in one.biases]
        return Watched(result, float(np.mean(biases)) if biases else None)
    seen_models = _SeenModels(models)
    result = method.open(cast(PipelineModels, seen_models), condition, sampling).decode(chance)
    seen = seen_models.seen
    if seen is None or result.steps is None:
        return Watched(result, None)
    most = most_at_once(seen.target, models.max_nodes)
    return Watched(result, seen.bias(result, beside_picture(seen.target, result.tokens, most)))


def _shows_bias(config: MethodConfig) -> bool:
    """Return whether the token after a tree's root shows the bias of a method."""
    acceptance = config.acceptance
    spec = None if acceptance is None else RULES[acceptance[0]]
    looks_ahead = spec is not None and spec.looks_ahead and spec.promise != "lossless"
    return not looks_ahead and not (isinstance(config, JacobiConfig) and not config.window.is_exact)


@dataclass(slots=True)
class RuleWatch:
    """Implements `Rule` with another rule, and records how far it moves the next token at each tree's root."""

    rule: Rule
    biases: list[float] = field(default_factory=list)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        children = np.flatnonzero(tree.parents == 0)
        if children.size:
            nodes = np.append(0, children)
            top = DraftTree(
                tokens=tree.tokens[nodes],
                parents=np.append(-1, np.zeros(children.size, dtype=np.int64)),
                drawn=tree.drawn,
                draft_probs=tree.draft_probs,
                draft_rows=np.append(tree.draft_rows[0], np.full(children.size, -1)),
            )
            # The first level alone is enumerated, by the rule's settings for the whole tree.
            rule = self.rule.at_depth(tree.depth) if hasattr(self.rule, "at_depth") else self.rule
            exact = probs[0] if tree.drawn == "top_k" else _next(TraversalVerification(), top, probs[nodes])
            self.biases.append(_apart(_next(rule, top, probs[nodes]), exact))
        return self.rule(tree, probs, chance)

    def skipped(self, tree: DraftTree, probs: FloatArray) -> None:
        """Record how far an unverified cycle moves the next token from `probs` [V]."""
        self.biases.append(_apart(skipped_distribution(tree, probs.size), probs))


def _next(rule: Rule, tree: DraftTree, probs: FloatArray) -> FloatArray:
    return next_token_distribution(rule, tree, probs.astype(np.float64))


def _apart(one: FloatArray, other: FloatArray) -> float:
    return float(0.5 * np.abs(one - other).sum())


@dataclass(slots=True)
class SeenTarget:
    """Implements `GridTarget` with another one, and keeps the distribution of every cell from every pass.

    Attributes:
        target: The other grid target.
        passes: For each pass, the first over the condition, the distributions [V] float64 by cell.
    """

    target: GridTarget
    passes: list[dict[int, FloatArray]] = field(default_factory=list)

    @property
    def vocab_size(self) -> int:
        """V, the number of codes."""
        return self.target.vocab_size

    @property
    def grid(self) -> Grid:
        """The grid of the image."""
        return self.target.grid

    def begin(self) -> FloatArray:
        first = self.target.begin()
        self.passes = [{0: np.array(first, dtype=np.float64)}]
        return first

    def score(self, feed: Feed) -> FloatArray:
        rows = self.target.score(feed)
        behind = (feed.cells + 1).tolist()
        self.passes.append({cell: np.array(row, dtype=np.float64) for cell, row in zip(behind, rows, strict=True)})
        return rows

    def commit(self, rows: IntArray) -> None:
        self.target.commit(rows)

    def bias(self, result: DecodingResult, own: FloatArray) -> float:
        """Mean over cells of the total variation between the distribution from its step's pass and `own` [cells, V].

        Each step follows one pass; the first also follows the condition's pass, which has a distribution for cell 0.
        """
        steps = result.steps or ()
        before = len(self.passes) - len(steps)  # passes without their own step: the condition's, or none
        distances = []
        for number, cells in enumerate(steps, start=before):
            for cell in cells:
                distribution = self.passes[number].get(cell)
                distances.append(_apart(self.passes[0][cell] if distribution is None else distribution, own[cell]))
        return float(np.mean(distances))


class _SeenModels:
    """A pipeline's models with a `SeenTarget` as grid target."""

    def __init__(self, models: PipelineModels) -> None:
        self._models = models
        self.seen: SeenTarget | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._models, name)

    def grid_target(self, condition: Condition, sampling: SamplingParams, cells: int = 1) -> Timed[GridTarget]:
        target, timer = self._models.grid_target(condition, sampling, cells)
        self.seen = SeenTarget(target)
        return Timed(self.seen, timer)


def beside_picture(target: GridTarget, tokens: IntArray, most: int) -> FloatArray:
    """The target's distribution [cells, V] float64 of each of tokens [cells], given all before it in raster order.

    Runs at most `most` tokens per pass.
    """
    cells = tokens.size
    rows = [np.array(target.begin(), dtype=np.float64)[None]]
    for first in range(0, cells - 1, most):
        here = np.arange(first, min(first + most, cells - 1))
        cached = np.broadcast_to(np.arange(cells) < first, (here.size, cells))
        feed = Feed(here, tokens[here].astype(np.int64), np.tri(here.size, dtype=np.bool_), cached)
        rows.append(np.array(target.score(feed), dtype=np.float64))
        target.commit(np.arange(here.size))
    return np.concatenate(rows)
