"""The time of decoding runs, including the host, from costs measured inside decoding loops."""

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft import POLICIES
from underpaint.algos.registry import settings_fields
from underpaint.artifacts.cost_curve import IN_CYCLE, Curve, HostFamily, InCycleCosts
from underpaint.sim.batched.decoding import Scheme
from underpaint.sim.latency.models import read_curve
from underpaint.sim.report.statistics import ImageTimes, Runs


def host_ms(costs: InCycleCosts, runs: Runs, family: HostFamily, pooled: bool) -> FloatArray:
    """[I] ms of host time without the first pass; ValueError if a family was not measured.

    Chains drafted in one call have the family "one_call", and other trees have `family`. A cycle over the root alone
    counts as a plain step; this is too cheap if a policy drafted and then verified nothing. If a "cost_aware" policy
    could choose a call for a chain, calls and plain steps have the family "cost_aware_chain".
    """
    alone, calls = _alone(runs), runs.chained.sum(axis=1)
    chained = runs.chained @ np.arange(runs.chained.shape[1])
    levels, nodes = runs.draft.sum(axis=1), runs.verify[:, 2:] @ np.arange(2, runs.verify.shape[1])
    one_call: HostFamily = "one_call"
    ms = alone * costs.plain.host_ms
    if family == "cost_aware":
        one_call = "cost_aware_chain" if calls.any() else "cost_aware"
        ms = _family_ms(costs, one_call, False, alone, np.zeros_like(alone), alone)
    ms += _family_ms(costs, one_call, pooled, calls, chained, calls + chained)
    trees = runs.cycles - alone - calls
    return ms + _family_ms(costs, family, pooled, trees, levels - chained, nodes - calls - chained)


def _family_ms(
    costs: InCycleCosts, family: HostFamily, pooled: bool, cycles: IntArray, levels: IntArray, nodes: IntArray
) -> FloatArray:
    if not (cycles.any() or levels.any()):
        return np.zeros(cycles.size)
    if family not in costs.host_ms:
        raise ValueError(
            f"{IN_CYCLE}: the host was measured for {', '.join(costs.host_ms)}, not for '{family}'; measure a whole "
            "curve with `underpaint costs --renew --full`"
        )
    host = costs.host_ms[family]
    ms: FloatArray = (host.cycle + pooled * host.pooled) * cycles + host.level * levels + host.node * nodes
    return ms


def times(costs: InCycleCosts, runs: Runs, family: HostFamily, pooled: bool) -> ImageTimes:
    """Compute the time of each image. The first pass, over the condition, costs a plain step, counted as target pass.

    The target pass of a plain step costs as much as in plain autoregression, but with a "cost_aware" policy as much as
    in cycles that draft. If the curve does not distinguish trees drawn with replacement, the host takes as long for
    them as for other sampled trees. Raises ValueError if the family was not measured, SizeMissing for sizes beyond the
    measured ones.
    """
    levels = np.arange(runs.chained.shape[1])
    host_family: HostFamily = "sampled" if family in ("iid", "iid_paths") and family not in costs.host_ms else family
    single = runs.draft.copy()
    single[:, 1] -= runs.chained @ levels
    drafted = runs.verify.copy()
    drafted[:, 1] = _alone(runs) if family == "cost_aware" else 0
    plain = runs.verify[:, 1] - runs.decodings - drafted[:, 1]
    return ImageTimes(
        runs.decodings * costs.plain_ms
        + plain * costs.plain.target_ms
        + _curve_ms(drafted, costs.target_ms, "target passes"),
        _draft_ms(costs, runs, single, family) + _curve_ms(runs.chained, costs.chain_ms, "chains in one call"),
        host_ms(costs, runs, host_family, pooled),
        np.zeros(runs.images),
    )


def _draft_ms(costs: InCycleCosts, runs: Runs, levels: IntArray, family: HostFamily) -> FloatArray:
    """[I] ms of drafting: level by level, or one call per tree if the curve has such calls for the family."""
    one_call = costs.tree_ms.get(family)
    if one_call is None:
        return _curve_ms(levels, costs.draft_ms, "drafter passes")
    calls = runs.cycles - _alone(runs) - runs.chained.sum(axis=1)
    ms: FloatArray = one_call.call * calls + _curve_ms(levels, one_call.levels, "levels of trees in one call")
    return ms


def _alone(runs: Runs) -> IntArray:
    """[I] number of cycles over the root alone."""
    return runs.verify[:, 1] - runs.decodings


def _curve_ms(counts: IntArray, curve: Curve, what: str) -> FloatArray:
    used = np.flatnonzero(counts.any(axis=0))
    if not used.size:
        return np.zeros(counts.shape[0])
    ms: FloatArray = counts[:, used] @ read_curve(curve, used, f"{IN_CYCLE}, {what}")
    return ms


def family_of(scheme: Scheme) -> HostFamily:
    """How the host drafts trees that are not chains drafted in one call. A static tree that was chosen by costs
    (`sequoia_top_k`) is drafted like any other tree of likeliest tokens.
    """
    policy = POLICIES[scheme.policy_name]
    if policy.drawn == "iid" and not policy.chain:
        return "iid_paths" if RULES[scheme.rule_name].looks_ahead else "iid"
    if policy.drawn != "top_k":
        return "sampled"
    return "cost_aware" if policy.cost_aware and "call_ms" not in settings_fields(policy.make) else "ranked"


def pools(scheme: Scheme) -> bool:
    """Whether the rule pools over codes."""
    return RULES[scheme.rule_name].codebook
