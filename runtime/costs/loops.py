"""The decoding loops in which a cost curve is measured: policies and rules, by how the host drafts with them."""

from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.accept.gbv import GreedyMultiPath
from underpaint.algos.accept.lantern import Lantern
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.accept.walk import MultiRound, SpeculativeSampling, WithoutReplacement
from underpaint.algos.draft.chain import Chain, LikeliestChain
from underpaint.algos.draft.delayed import DelayedTree
from underpaint.algos.draft.eagle1 import Eagle1
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.protocols import Policy, Rule
from underpaint.algos.registry import MOST_CELLS
from underpaint.algos.spatial.jacobi import WindowPolicy

MOST_NODES: Final = 64
POOLED: Final = 30
"""Number of codes that the pooling rule adds up."""
LONGEST_CHAIN: Final = 12
UNBOUNDED: Final = float(MOST_CELLS)
"""Number of plain steps that a picture may lose: the costs of trials are measured even if none pays off."""


WINDOWS: Final = (3, 5, 8, 12, 15, 17, 24, 31, 48, 63)
"""Drafts in the Jacobi windows whose passes are timed."""


class CostLoop(NamedTuple):
    """A policy and a rule, whose decoding loop is timed.

    Attributes:
        family: How the host drafts, see `artifacts.cost_curve.HostFamily`; of a loop without a drafter, "plain" or
            "window", the name of its passes.
        policy: The policy that drafts.
        rule: The rule that judges the drafts.
        pooled: Whether the rule pools codes.
    """

    family: str
    policy: Policy
    rule: Rule
    pooled: bool = False
    by_level: bool = False
    """Whether trees are grown level by level even if the drafter can draft them in one call, to time such passes."""
    window: int = 0
    """Drafts in the Jacobi window that takes the place of policy and drafter; 0 in other loops."""


PLAIN: Final = CostLoop("plain", LikeliestChain(), PointProposals())
"""Plain autoregression, without a drafter, so its policy is not used."""


def all_loops(
    vocab_size: int, verify_ms: list[list[float]], draft_ms: list[list[float]], chains: bool, fuses_trees: bool
) -> tuple[CostLoop, ...]:
    """Return the loops of a full curve.

    Args:
        vocab_size: The number of codes, V.
        verify_ms: [[size, ms], ...] of target passes, for policies that choose by costs.
        draft_ms: [[size, ms], ...] of drafter passes, for the same policies.
        chains: Whether the drafter can draft a chain in one call.
        fuses_trees: Whether the drafter can draft a tree in one call.
    """
    point, pool = PointProposals(), _pooling(vocab_size)
    ranked = (
        (1, 2, 2),
        (2, 2, 4),
        (4, 2, 6),
        (4, 4, 12),
        (5, 8, 24),
        (3, 16, 40),
        (2, 50, 60),
        (5, 10, MOST_NODES - 1),
    )
    drawn_widths = ((2, 2, 1, 1), (4, 8, 8), (2, 4, 8, 16), (8, 16, 14, 11, 8))  # the last is EAGLE-1's own
    bundles = ((4, 1, 2), (2, 0, 4), (2, 2, 2), (3, 3, 5))  # paths, trunk and branch of delayed trees
    return (
        *(CostLoop("one_call", LikeliestChain(length), point) for length in (1, 2, 3, 4, 6, 8, 12, 15) if chains),
        *(CostLoop("sampled", Chain(length), SpeculativeSampling()) for length in (1, 2, 4, 6)),
        *(CostLoop("sampled", Eagle1(widths), WithoutReplacement()) for widths in drawn_widths),
        *(CostLoop("ranked", Eagle2(*settings), point) for settings in ranked),
        *(CostLoop("ranked", Eagle2(*settings), point, by_level=True) for settings in ranked if fuses_trees),
        *(CostLoop("one_call", LikeliestChain(4), pool, pooled=True) for _ in range(chains)),
        *(CostLoop("iid", DelayedTree(*settings), MultiRound()) for settings in bundles),
        *(CostLoop("iid_paths", DelayedTree(*settings), GreedyMultiPath()) for settings in bundles),
        CostLoop("iid", DelayedTree(2, 2, 2), pool, pooled=True),
        CostLoop("sampled", Chain(4), pool, pooled=True),
        CostLoop("ranked", Eagle2(4, 2, 6), pool, pooled=True),
        *(CostLoop("window", WindowPolicy(), SpeculativeSampling(), window=length) for length in WINDOWS),
        *_choosing(verify_ms, draft_ms, chains, pool),
    )


def choosing_loops(
    vocab_size: int, verify_ms: list[list[float]], draft_ms: list[list[float]], chains: bool
) -> tuple[CostLoop, ...]:
    """The loops of a curve that is only for policies that choose by costs: fewer sizes, and no other families."""
    point = PointProposals()
    ranked = ((1, 2, 2), (4, 2, 6), (4, 4, 15), (3, 16, 40), (5, 10, MOST_NODES - 1))
    return (
        *(CostLoop("one_call", LikeliestChain(length), point) for length in (1, 2, 4, 8, 12) if chains),
        *(CostLoop("ranked", Eagle2(*settings), point, by_level=True) for settings in ranked),
        *_choosing(verify_ms, draft_ms, chains, _pooling(vocab_size)),
    )


def _choosing(
    verify_ms: list[list[float]], draft_ms: list[list[float]], chains: bool, pool: Lantern
) -> tuple[CostLoop, ...]:
    """Policies that choose by costs, with a rule that pools codes and with one that does not."""
    verify = tuple((int(size), float(ms)) for size, ms in verify_ms)
    draft = tuple((int(size), float(ms)) for size, ms in draft_ms)
    by_tree = Roofline(verify, draft, loss_budget=UNBOUNDED)
    by_chain = Roofline(verify, draft, chain_ms=_guessed(draft_ms), loss_budget=UNBOUNDED)
    loops: list[CostLoop] = []
    for rule in (PointProposals(), pool):
        loops.append(CostLoop("cost_aware", by_tree, rule, pooled=rule is pool))
        if chains:
            loops.append(CostLoop("cost_aware_chain", by_chain, rule, pooled=rule is pool))
    return tuple(loops)


def _pooling(vocab_size: int) -> Lantern:
    """LANTERN with the nearest codes of a random codebook."""
    codes = np.random.default_rng(0).standard_normal((vocab_size, 8))
    return Lantern(nearest_codes(codes, min(POOLED, vocab_size - 1)), delta=0.9, residual="standard")


def _guessed(draft_ms: list[list[float]]) -> tuple[tuple[int, float], ...]:
    """ms of chains in one call, guessed for a policy before any was timed: each further level takes half a pass."""
    return tuple((levels, draft_ms[0][1] * (1 + levels) / 2) for levels in (1, LONGEST_CHAIN))
