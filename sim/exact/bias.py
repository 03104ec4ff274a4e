"""The bias of a relaxed rule: mean total variation of the next token's distribution at the root of its trees."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.accept.traversal import TraversalVerification
from underpaint.algos.accept.walk import normalised
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft import POLICIES
from underpaint.algos.enumeration import next_token_distribution
from underpaint.algos.protocols import Rule
from underpaint.algos.transport import overlap
from underpaint.algos.tree import NO_TOKEN, DraftTree, Drawn
from underpaint.sim.batched.decoding import Lockstep, Scheme
from underpaint.sim.batched.images import lookups
from underpaint.sim.synthetic.table_model import TableModel

CONTEXTS = 256
"""Number of contexts over which the mean is taken."""
SIBLING_DRAWS = 16
"""Number of draws of the siblings per context, if they are sampled."""


def visited_rows(model: TableModel, done: Lockstep, count: int, seed: int) -> IntArray:
    """[count] table rows at random cells of the drawn images, without their first cells."""
    draws = np.random.default_rng(seed)
    images = draws.integers(done.images.size, size=count)
    cells = draws.integers(1, model.grid.cells, size=count)
    above = cells - model.grid.width
    upper = np.where(above >= 0, done.canvas[images, np.maximum(above, 0)], NO_TOKEN)
    return model.rows(done.images[images], cells, done.canvas[images, cells - 1], upper)


def alignment(model: TableModel, done: Lockstep, seed: int = 0) -> float:
    """The mean overlap 1 - TV of target and drafter at the token after the root, over random cells of the images."""
    rows = visited_rows(model, done, CONTEXTS, seed)
    return float(overlap(model.target[rows], model.draft[0][rows]).mean())


def token_bias(model: TableModel, scheme: Scheme, children: int, done: Lockstep, seed: int = 0) -> float | None:
    """Mean total variation between the next token's distribution under the rule and the target's, after the root.

    It uses the rule's reference implementation, and is exact in each context for point proposals. Sampled siblings are
    drawn SIBLING_DRAWS times per context; the result of a lossless rule with the same draws is subtracted, to reduce
    their noise. Returns 0 at lossless settings, and None for rules that decide by an argmax or look ahead, whose bias
    the next token alone does not show.
    """
    spec = RULES[scheme.rule_name]
    if scheme.lossless:
        return 0.0
    if spec.greedy or spec.looks_ahead:
        return None
    rows = visited_rows(model, done, CONTEXTS, seed)
    drawn = POLICIES[scheme.policy_name].drawn
    draws, exact = np.random.default_rng([seed, 1]), TraversalVerification()
    likeliest = lookups(model, children).top_tokens[0, rows] if drawn == "top_k" else None
    missed = []
    for place, row in enumerate(rows.tolist()):
        root = _Root(model.target[row], model.draft[0][row], drawn)
        if likeliest is not None:
            missed.append(root.next_token(scheme.rule, likeliest[place]) - root.target)
            continue
        sets = Counter(tuple(_siblings(root.draft, children, drawn, draws).tolist()) for _ in range(SIBLING_DRAWS))
        moved = np.zeros(model.vocab_size)
        for siblings, times in sets.items():
            tokens = np.array(siblings, dtype=np.int64)
            moved += times * (root.next_token(scheme.rule, tokens) - root.next_token(exact, tokens))
        missed.append(moved / SIBLING_DRAWS)
    return float(0.5 * np.abs(missed).sum(axis=1).mean())


class _Root(NamedTuple):
    """A context: the distributions [V] of target and drafter, and how the root's children are drawn."""

    target: FloatArray
    draft: FloatArray
    drawn: Drawn

    def next_token(self, rule: Rule, tokens: IntArray) -> FloatArray:
        """[V] the distribution of the next token under `rule` if the drafted children are `tokens`."""
        count = tokens.size
        tree = DraftTree(
            tokens=np.append(0, tokens),
            parents=np.append(-1, np.zeros(count, dtype=np.int64)),
            drawn=self.drawn,
            draft_probs=self.draft[None],
            draft_rows=np.append(0, np.full(count, -1)),
        )
        return next_token_distribution(rule, tree, np.broadcast_to(self.target, (count + 1, self.target.size)))


def _siblings(draft: FloatArray, count: int, drawn: Drawn, draws: np.random.Generator) -> IntArray:
    """Up to `count` tokens drawn from `draft` [V]."""
    if drawn == "iid":
        return draws.choice(draft.size, size=count, p=normalised(draft))
    with np.errstate(divide="ignore", over="ignore"):
        arrivals = draws.standard_exponential(draft.size) / draft
    order = arrivals.argsort()[:count]
    return order[np.isfinite(arrivals[order])]
