"""The costs of `roofline`'s drafts on an engine, and the image's loss to plain decoding by these costs."""

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
"""Assumed acceptance of a window's draft, used to choose the length of its trial and its least length."""


class DraftingCosts(NamedTuple):
    """Milliseconds of whole cycles; for trees, the drafting costs are added to `verify`.

    Attributes:
        verify: Target passes by draft nodes, from 0.
        draft: Drafter passes by expanded nodes, from 1.
        chain: A chain in one call plus its target pass, by levels, from 1; empty if the cost of such a call is unknown.
        window: Passes over a Jacobi window, by drafts, from 1.
        siblings: Trees of drawn siblings, with `draft_ms` per level.
        call_ms: A call that drafts such a tree, in addition to its levels.
        plain_ms: A cycle without drafts.
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
        """The number of draft nodes of the largest measured tree."""
        return len(self.verify.ms) - 1

    def spent_ms(self, kind: Kind, tree: DraftTree, drafting_ms: float) -> float:
        """Return the ms of the cycle that drafted `tree`; drafting_ms: Drafting a tree of likeliest tokens."""
        nodes = tree.size - 1
        if kind == "tree":
            return drafting_ms + self.verify.ms[nodes]
        if nodes == 0:
            return self.plain_ms
        if kind == "drawn":
            return self.call_ms + tree.depth * self.siblings.draft_ms + self.verify.ms[nodes]
        return (self.window if kind == "window" else self.chain).ms[nodes - 1]


def likely_length(ms: FloatArray) -> int:
    """Return the best window length if each draft is accepted with `TRIED_ACCEPTANCE`; ties: the shorter.

    Args:
        ms: Cost of a cycle by drafts, from 1; `[L]`, may be empty.

    Returns:
        Drafts, from 1 to `L`; 1 if `ms` is empty.
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
    """Return the costs for the settings of `Roofline` with these names. Raises ValueError for invalid times."""
    verify = cost_curve(verify_ms, 0.0, between).table()
    draft = draft_table(draft_ms, between, top_k)
    call = np.empty(0) if chain_ms is None else chain_table(chain_ms, between)[: verify.size - 1]
    call_ms, level_ms = tree_ms or (0.0, float(draft[0]))
    at_least("roofline", 0, **{"tree_ms of a call": call_ms, "tree_ms of a level": level_ms})
    plain = float(verify[0]) if plain_ms is None else plain_ms
    if not 0 < plain < np.inf:
        raise ValueError(f"policy 'roofline': plain_ms must be a positive time, got {plain_ms!r}")
    # A pass over the window is like a plain step: no drafter pass evicts its caches, and it has the same host time.
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
    """The image's net loss to plain decoding so far, in ms: losses minus gains.

    Attributes:
        plain_ms: ms of a token decoded plainly, > 0.
        budget: The number of such tokens that may be lost, >= 0.
    """

    plain_ms: float
    budget: float
    ms: float = field(init=False, default=0.0)
    """ms spent beyond plain decoding of the same tokens; below 0 is a gain."""

    def add(self, spent_ms: float, tokens: int) -> None:
        """Count a cycle that gave `tokens` tokens, >= 1."""
        self.ms += spent_ms - tokens * self.plain_ms

    @property
    def is_too_large(self) -> bool:
        """Whether the budget is exceeded."""
        return self.ms > self.budget * self.plain_ms
