"""The exact distribution of a rule on a small synthetic model, compared with its promise and with optimal rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import fsum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.accept.spec import DraftedNode
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance, enumerate_outcomes
from underpaint.algos.draft import POLICIES, PolicySpec
from underpaint.algos.enumeration import (
    EnumeratedRun,
    TokenDistribution,
    accepted_per_cycle,
    enumerate_decoding,
    marginal,
    passes,
    target_distribution,
    tokens_distribution,
    total_variation,
)
from underpaint.algos.fit import check_fits, fits
from underpaint.algos.protocols import Budget, Grid, Policy, Rule
from underpaint.algos.registry import Registry, build, settings_fields
from underpaint.algos.transport import best_acceptance
from underpaint.sim.synthetic.models import (
    Blend,
    Prefix,
    PrefixDistribution,
    RandomDistribution,
    SyntheticDrafter,
    SyntheticTarget,
)

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
_GRID = Grid(1, 4)
_PREFERRED = ("chain", "eagle1", "eagle2")


@dataclass(frozen=True, slots=True)
class SyntheticModel:
    """A named target and drafter, small enough to enumerate.

    Attributes:
        name: Name of the model.
        title: Description of the model.
        sharpness: Scale of the target's logits (0 gives uniform distributions).
        error: The share of the drafter's distribution that comes from another distribution, of the same sharpness and
            independent of the target's.
        vocab_size: V, the size of the vocabulary.
        grid: Rows and columns of an image.
        seed: Seed of the distributions and of the codebook.
    """

    name: str
    title: str
    sharpness: float
    error: float
    vocab_size: int = 3
    grid: Grid = _GRID
    seed: int = 0

    def target_distribution(self) -> PrefixDistribution:
        """The target's distribution of the token after a prefix."""
        return RandomDistribution(self.vocab_size, 2 * self.seed, self.sharpness)

    def draft_distribution(self) -> PrefixDistribution:
        """The drafter's distribution of the token after a prefix."""
        other = RandomDistribution(self.vocab_size, 2 * self.seed + 1, self.sharpness)
        return Blend(self.target_distribution(), other, self.error)

    def codes(self) -> FloatArray:
        """The codebook [V, 2] that defines the neighbours of a code."""
        return np.random.default_rng(self.seed).standard_normal((self.vocab_size, 2))


MODELS: Registry[SyntheticModel] = Registry("model")
for _model in (
    SyntheticModel("flat", "flat distributions, as of image tokens, and a drafter that is half right", 0.7, 0.5),
    SyntheticModel("peaked", "peaked distributions, as of text, and a drafter that is half right", 3.0, 0.5),
    SyntheticModel("near", "a drafter that is nearly the target", 1.5, 0.1),
    SyntheticModel("far", "a drafter that knows nothing of the target", 1.5, 1.0),
):
    MODELS.register(_model)


class ResidualReport(NamedTuple):
    """The results of a rule with one of its residuals; for the fields see `ExactReport`."""

    total_variation: float
    total_variation_cycle: float
    accepted_tokens: float
    passes: float


class ExactReport(NamedTuple):
    """The results of `exact_report`; the JSON output uses the same names."""

    rule: str
    settings: dict[str, Any]
    """Settings of the rule, including defaults, without codebook arrays."""
    policy: str
    drawn: str
    model: str
    vocab_size: int
    grid: tuple[int, int]
    promise: str
    bound: str
    total_variation: float
    """Total variation between the distributions of whole images and the target's (a greedy rule: its argmax image)."""
    total_variation_cycle: float
    """The same if only the first cycle uses the rule and the target draws the rest."""
    accepted_tokens: float
    """Expected number of accepted draft tokens in the first cycle."""
    acceptance: float
    """Probability that the first cycle accepts at least one draft token."""
    transport_bound: float
    """The largest `acceptance` of any lossless rule with these draft tokens (`algos.transport`)."""
    transport_gap: float
    """transport_bound - acceptance; if negative, the rule accepts more than any lossless rule can."""
    passes: float
    """Expected number of target passes (NFE) per image."""
    beyond_bound: float | None
    """How much the next token's total variation after the root exceeds the bound that the rule promises, as the maximum
    over first tokens; at most 0 if the promise is kept. None for rules without a bound, and for greedy rules."""
    residuals: dict[str, ResidualReport]
    """Results with each residual that the rule supports for such trees; empty if it has only one."""


def exact_report(
    rule: str,
    model: str = "flat",
    policy: str | None = None,
    settings: Mapping[str, Any] = NO_SETTINGS,
    policy_settings: Mapping[str, Any] = NO_SETTINGS,
    max_nodes: int = 4,
) -> ExactReport:
    """Compute the exact distribution of `rule` on a synthetic model, by enumeration.

    Args:
        rule: Name of the rule.
        model: Name of the synthetic model.
        policy: Name of the policy; None takes the first of chain, eagle1, eagle2 that fits the rule.
        settings: Settings of the rule; `neighbours` and `codebook` default to the model's.
        policy_settings: Settings of the policy.
        max_nodes: Nodes of the largest draft tree, including its root; the work grows fast with it.

    Raises:
        ValueError: A name or setting is unknown, `max_nodes` is below 2, or the rule does not fit the policy.
    """
    spec, world = RULES[rule], MODELS[model]
    shape = _fitting(spec) if policy is None else POLICIES[policy]
    check_fits(spec, shape)
    if max_nodes < 2:
        raise ValueError(f"distribution: max_nodes must be at least 2 (the root and one proposal), got {max_nodes}")
    rule_settings = {**_codebook_settings(spec, world, settings), **settings}
    built_policy = build(shape.make, policy_settings, f"policy '{shape.name}'")

    report: ExactReport | None = None  # of the residual in use, which is not measured again

    def measured(overrides: Mapping[str, Any]) -> ExactReport:
        built_rule = build(spec.make, {**rule_settings, **overrides}, f"rule '{rule}'")
        used = {
            name: str(one) if isinstance(one, Enum) else one for name, one in _settings_of(spec, built_rule).items()
        }
        if report is not None and used == report.settings:
            return report
        return _measure(spec, built_rule, shape, built_policy, world, used, max_nodes)

    report = measured({})
    residuals = {
        str(residual): ResidualReport(one.total_variation, one.total_variation_cycle, one.accepted_tokens, one.passes)
        for residual, kinds in spec.residuals.items()
        if shape.drawn in kinds
        for one in [measured({"residual": residual})]
    }
    return report._replace(residuals=residuals)


def _measure(
    spec: RuleSpec,
    rule: Rule,
    shape: PolicySpec,
    policy: Policy,
    model: SyntheticModel,
    settings: dict[str, Any],
    max_nodes: int,
) -> ExactReport:
    target = SyntheticTarget(model.target_distribution(), model.grid)
    drafter = SyntheticDrafter(model.draft_distribution())
    images = enumerate_decoding(target, drafter, policy, rule, max_nodes)
    first = enumerate_decoding(target, drafter, policy, rule, max_nodes, cycle_count=2)
    whole = _greedy_distribution(model) if spec.greedy else target_distribution(target)
    acceptance = fsum(weight for trace, weight in first.items() if trace.accepted[1] > 0)
    bound = fsum(
        weight * _root_bound(spec, policy, model, start, max_nodes)
        for start, weight in marginal(first, lambda trace: trace.tokens[:1]).items()
    )
    return ExactReport(
        rule=spec.name,
        settings=settings,
        policy=shape.name,
        drawn=shape.drawn,
        model=model.name,
        vocab_size=model.vocab_size,
        grid=(model.grid.height, model.grid.width),
        promise=spec.promise,
        bound=spec.bound,
        total_variation=total_variation(tokens_distribution(images), whole),
        total_variation_cycle=total_variation(tokens_distribution(first, whole), whole),
        accepted_tokens=accepted_per_cycle(first, 1),
        acceptance=acceptance,
        transport_bound=bound,
        transport_gap=bound - acceptance,
        passes=passes(images),
        beyond_bound=_beyond_bound(spec, rule, shape, policy, model, first, max_nodes),
        residuals={},
    )


def _root_bound(spec: RuleSpec, policy: Policy, model: SyntheticModel, start: Prefix, max_nodes: int) -> float:
    """The transport bound for the root's children after the first token, over the draws of the policy."""
    target = SyntheticTarget(model.target_distribution(), model.grid)
    drafter = SyntheticDrafter(model.draft_distribution())

    def proposals(chance: Chance) -> frozenset[int]:
        drafter.begin(target.begin())
        policy.begin(model.grid)
        tree = policy.grow(drafter, start[0], Budget(model.grid.cells - 2, max_nodes), chance.cycle(1))
        return frozenset(tree.tokens[tree.parents == 0].tolist())

    distribution = target.distribution(start)
    return best_acceptance(_one_hot(distribution) if spec.greedy else distribution, enumerate_outcomes(proposals))


def _beyond_bound(
    spec: RuleSpec,
    rule: Rule,
    shape: PolicySpec,
    policy: Policy,
    model: SyntheticModel,
    first: Mapping[EnumeratedRun, float],
    max_nodes: int,
) -> float | None:
    """Compute `ExactReport.beyond_bound`. first: the runs of one cycle after the first token."""
    if spec.bound_at is None or spec.greedy:
        return None
    settings = {name: getattr(rule, name) for name in settings_fields(spec.make)}
    starts = marginal(first, lambda trace: trace.tokens[:1])
    pairs = marginal(first, lambda trace: trace.tokens[:2])
    beyond = []
    for start, weight in starts.items():
        target, draft = model.target_distribution()(start), model.draft_distribution()(start)
        token_probs = np.array([pairs.get((*start, token), 0.0) / weight for token in range(model.vocab_size)])
        shapes = _root_shapes(policy, model, start, max_nodes)
        most = max(
            spec.bound_at(settings, DraftedNode(target, draft, shape.drawn, siblings, 0, depth))
            for siblings, depth in shapes
        )
        beyond.append(float(np.abs(token_probs - target).sum()) / 2 - most)
    return max(beyond)


def _root_shapes(policy: Policy, model: SyntheticModel, start: Prefix, max_nodes: int) -> set[tuple[int, int]]:
    """The (number of root children, depth) of every tree that a policy may draw after the first token."""
    target = SyntheticTarget(model.target_distribution(), model.grid)
    drafter = SyntheticDrafter(model.draft_distribution())

    def grown(chance: Chance) -> tuple[int, int]:
        drafter.begin(target.begin())
        policy.begin(model.grid)
        tree = policy.grow(drafter, start[0], Budget(model.grid.cells - 2, max_nodes), chance.cycle(1))
        return int(np.count_nonzero(tree.parents == 0)), int(tree.depths().max())

    return set(enumerate_outcomes(grown))


def _one_hot(distribution: FloatArray) -> FloatArray:
    best = np.zeros(distribution.size)
    best[int(np.argmax(distribution))] = 1.0
    return best


def _greedy_distribution(model: SyntheticModel) -> TokenDistribution:
    distribution = model.target_distribution()
    return target_distribution(SyntheticTarget(lambda prefix: _one_hot(distribution(prefix)), model.grid))


def _codebook_settings(spec: RuleSpec, model: SyntheticModel, settings: Mapping[str, Any]) -> dict[str, Any]:
    codebook_settings: dict[str, Any] = {}
    if spec.codebook:
        codebook_settings["neighbours"] = nearest_codes(model.codes(), model.vocab_size - 1)
        if "k" not in settings:
            codebook_settings["k"] = 2
    if spec.embeddings:
        codebook_settings["codebook"] = model.codes()
    return codebook_settings


def _settings_of(spec: RuleSpec, rule: Rule) -> dict[str, Any]:
    """The settings of a built rule, without arrays of the codebook."""
    settings = {name: getattr(rule, name) for name in settings_fields(spec.make)}
    return {name: value for name, value in settings.items() if not isinstance(value, np.ndarray)}


def _fitting(rule: RuleSpec) -> PolicySpec:
    return next(POLICIES[name] for name in _PREFERRED if fits(rule, POLICIES[name]))
