"""How far a relaxed rule moves the distribution of the next token: total variation at the root of its trees, by
context."""

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.transport import overlap
from underpaint.algos.tree import NO_TOKEN
from underpaint.sim.batched.decoding import Lockstep, Scheme
from underpaint.sim.batched.images import TableLookups
from underpaint.sim.batched.residuals import Owed
from underpaint.sim.batched.rules import TryDrawn, TryPooledPoints, Walk
from underpaint.sim.synthetic.table_model import TableModel

CONTEXTS = 256
"""Contexts that the mean is taken over."""
SIBLING_DRAWS = 64
"""Draws of the siblings per context, where they are sampled."""


def visited_rows(model: TableModel, done: Lockstep, count: int, seed: int) -> IntArray:
    """[count] rows of the tables at random cells of what was drawn, the first cell excluded."""
    draws = np.random.default_rng(seed)
    images = draws.integers(done.images.size, size=count)
    cells = draws.integers(1, model.grid.cells, size=count)
    above = cells - model.grid.width
    upper = np.where(above >= 0, done.canvas[images, np.maximum(above, 0)], NO_TOKEN)
    return model.rows(done.images[images], cells, done.canvas[images, cells - 1], upper)


def alignment(model: TableModel, done: Lockstep, seed: int = 0) -> float:
    """The mean overlap 1 - TV of target and drafter, one token past the root, where the images went."""
    rows = visited_rows(model, done, CONTEXTS, seed)
    return float(overlap(model.target[rows], model.draft[0, rows]).mean())


def token_bias(model: TableModel, scheme: Scheme, children: int, done: Lockstep, seed: int = 0) -> float | None:
    """The mean total variation between the next token's distribution under the rule and the target's, for the root's
    children.

    Exact per context for point proposals; for sampled siblings the distribution is a mean over SIBLING_DRAWS draws of
    them, which overstates it a little. 0 for lossless rules; None for rules that decide by an argmax or a threshold.
    """
    if RULES[scheme.rule_name].promise == "lossless":
        return 0.0
    if not isinstance(scheme.batched_rule, Walk):
        return None
    rows = visited_rows(model, done, CONTEXTS, seed)
    siblings = scheme.batched_rule.siblings
    if isinstance(siblings, TryPooledPoints):
        emitted = _of_points(model, siblings, rows, children)
    elif isinstance(siblings, TryDrawn) and siblings.pool is not None:
        emitted = _of_drawn(model, siblings, rows, children, np.random.default_rng([seed, 1]))
    else:
        return None
    return float(0.5 * np.abs(emitted - model.target[rows]).sum(axis=1).mean())


def _of_points(model: TableModel, rule: TryPooledPoints, rows: IntArray, children: int) -> FloatArray:
    """[M, V] the distribution of the next token, every branch of the walk over the siblings weighed."""
    tokens = TableLookups(model, children).top_tokens[0, rows]
    left = model.target[rows].astype(np.float64)
    places = np.arange(rows.size)
    emitted, reached = np.zeros_like(left), np.ones(rows.size)
    for turn in range(tokens.shape[1]):
        proposed = tokens[:, turn]
        total = np.maximum(left.sum(axis=1), np.finfo(np.float64).tiny)
        own, mass, count = rule.pool(left, places, proposed, total)
        keep = np.minimum(1.0, (own + mass) / total)
        emitted[places, proposed] += reached * keep
        reached *= 1.0 - keep
        rule.take(left, proposed, count)
        left[places, proposed] = 0.0
        left[~left.any(axis=1)] = 1.0  # reached by nobody, or uniform in the released code
    distribution: FloatArray = emitted + reached[:, None] * left / left.sum(axis=1, keepdims=True)
    return distribution


def _of_drawn(
    model: TableModel, rule: TryDrawn, rows: IntArray, children: int, draws: np.random.Generator
) -> FloatArray:
    distributions = model.draft[0, rows].astype(np.float64)
    emitted = np.zeros_like(distributions)
    places, ones = np.arange(rows.size), np.ones(rows.size)
    for _ in range(SIBLING_DRAWS):
        with np.errstate(divide="ignore", over="ignore"):
            order = (draws.standard_exponential(distributions.shape) / distributions).argsort(axis=1)[:, :children]
        left: FloatArray = model.target[rows].astype(np.float64)
        left /= left.sum(axis=1, keepdims=True)
        drafted = distributions.copy()
        reached = np.ones(rows.size)
        for turn in range(order.shape[1]):
            proposed = order[:, turn]
            boosted, count = rule.boosted(left, places, proposed, ones)
            offered = drafted[places, proposed]
            keep = np.where(offered > 0.0, np.minimum(1.0, boosted / np.maximum(offered, 1e-300)), 0.0)
            emitted[places, proposed] += reached * keep
            reached *= 1.0 - keep
            left, mass, *_ = rule.reject(Owed(left, ones, drafted, ones), proposed, boosted, count)
            left /= mass[:, None]
            drafted[places, proposed] = 0.0
            drafted /= np.maximum(drafted.sum(axis=1, keepdims=True), 1e-300)
        emitted += reached[:, None] * left
    distribution: FloatArray = emitted / SIBLING_DRAWS
    return distribution
