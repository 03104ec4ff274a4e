"""What `roofline`'s drafts cost on an engine, and what a picture has lost to plain decoding by these costs."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.choice import Kind
from underpaint.algos.draft.costs import (
    Between,
    ChainCosts,
    CostCurve,
    DraftCosts,
    SizeCosts,
    chain_table,
    cost_curve,
    draft_table,
)
from underpaint.algos.draft.settings import at_least
from underpaint.algos.tree import DraftTree

TRIED_ACCEPTANCE: Final = 0.8
"""Of a window's draft, by which the length of its trial and its least length are chosen."""


class DraftingCosts(NamedTuple):
    """Milliseconds of whole cycles, but for trees: their drafting comes on top of `verify`.

    verify: of target passes by drafted nodes, from 0. draft: of drafter passes by nodes expanded, from 1. chain: of a
    chain in one call with its target pass, by levels, from 1; empty where the cost of such a call is not known. window:
    of passes over a Jacobi window, by drafts, from 1. siblings: of trees of drawn siblings, its `draft_ms` for each
    level; call_ms: of a call that drafts one, beyond its levels. plain_ms: of a cycle that drafts nothing.
    """

    verify: SizeCosts
    draft: list[float]
    chain: SizeCosts
    window: SizeCosts
    siblings: CostCurve
    call_ms: float
    plain_ms: float

    @property
    def most(self) -> int:
        """Drafted nodes of the largest tree that was measured."""
        return len(self.verify.ms) - 1

    def spent_ms(self, kind: Kind, tree: DraftTree, drafting_ms: float) -> float:
        """Of the cycle that drafted `tree`; drafting_ms: what it took to draft a tree of likeliest tokens."""
        nodes = tree.size - 1
        if kind == "tree":
            return drafting_ms + self.verify.ms[nodes]
        if nodes == 0:
            return self.plain_ms
        if kind == "drawn":
            return self.call_ms + tree.depth * self.siblings.draft_ms + self.verify.ms[nodes]
        return (self.window if kind == "window" else self.chain).ms[nodes - 1]


def likely_length(ms: FloatArray) -> int:
    """The window that pays best where each draft is accepted with `TRIED_ACCEPTANCE`; ties: the shorter.

    Args:
        ms: Of a cycle by drafts, from 1 on; `[L]`, may be empty.

    Returns:
        Drafts, from 1 to `L`; 1 where `ms` is empty.
    """
    if not ms.size:
        return 1
    tokens = 1.0 + np.cumsum(TRIED_ACCEPTANCE ** np.arange(1, ms.size + 1))
    return 1 + int(np.argmax(tokens / ms))


def drafting_costs(
    verify_ms: tuple[tuple[int, float], ...],
    draft_ms: DraftCosts,
    chain_ms: ChainCosts | None,
    plain_ms: float | None,
    tree_ms: tuple[float, float] | None,
    between: Between,
    top_k: int,
    least_window: int,
) -> DraftingCosts:
    """By the settings of `Roofline` of the same names. Raises ValueError on times that are no times."""
    verify = cost_curve(verify_ms, 0.0, between).table()
    draft = draft_table(draft_ms, between, top_k)
    call = np.empty(0) if chain_ms is None else chain_table(chain_ms, between)[: verify.size - 1]
    call_ms, level_ms = tree_ms or (0.0, float(draft[0]))
    at_least("roofline", 0, **{"tree_ms of a call": call_ms, "tree_ms of a level": level_ms})
    plain = float(verify[0]) if plain_ms is None else plain_ms
    if not 0 < plain < np.inf:
        raise ValueError(f"policy 'roofline': plain_ms must be a positive time, got {plain_ms!r}")
    # A pass over the window has a plain step's caches, which no drafter pass empties, and its share of the host.
    window_ms = plain + np.maximum(0.0, verify[1:] - verify[0])
    least = least_window or likely_length(window_ms)
    window_ms[:least] = window_ms[:least][-1:]
    return DraftingCosts(
        SizeCosts.of(verify),
        draft.tolist(),
        SizeCosts.of(call + verify[1 : call.size + 1]),
        SizeCosts.of(window_ms),
        cost_curve(verify_ms, level_ms, between),
        call_ms,
        plain,
    )


@dataclass(slots=True)
class NetLoss:
    """What a picture has lost to plain decoding so far, gains against losses.

    plain_ms: of a token that is decoded plainly, > 0. budget: of such tokens that may be lost, >= 0.
    """

    plain_ms: float
    budget: float
    ms: float = field(init=False, default=0.0)
    """Spent beyond what plain decoding would have taken for the same tokens; below 0 is a gain."""

    def add(self, spent_ms: float, tokens: int) -> None:
        """Count a cycle that gave so many tokens, >= 1."""
        self.ms += spent_ms - tokens * self.plain_ms

    @property
    def is_too_large(self) -> bool:
        """Whether the budget is spent."""
        return self.ms > self.budget * self.plain_ms
