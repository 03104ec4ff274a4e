"""The tree family of methods: the configuration of a tree policy and an acceptance rule, and the method they build."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast

from underpaint.algos.accept import RULES
from underpaint.algos.accept.spec import at_temperature
from underpaint.algos.chance import Chance
from underpaint.algos.coupling import noise_of
from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.settings import check_limits
from underpaint.algos.fit import check_fits
from underpaint.algos.protocols import Budget, Expander, Grid, Policy, Rule
from underpaint.algos.registry import build
from underpaint.algos.rows import SamplingParams
from underpaint.algos.skipping import Skipping, SkipWatch, skipping_cycles
from underpaint.algos.spatial.jacobi import WindowDrafter, WindowedCycles, WindowPlan, WindowState
from underpaint.algos.step import cycles
from underpaint.algos.tree import DraftTree, Verdict, root_only
from underpaint.artifacts.cost_curve import read_engine_costs
from underpaint.runtime.conditions import Condition
from underpaint.runtime.methods.method import (
    GIVEN_BY_ENGINE,
    DecodingMethod,
    DecodingResult,
    DecodingSession,
    DecodingSteps,
    ModelTables,
    PipelineModels,
    RuleWatcher,
    SessionTimers,
)
from underpaint.runtime.methods.registry import MethodConfig, Preset, build_rule, no_settings, scaled_to
from underpaint.runtime.methods.settings import (
    SettingValue,
    read_parts,
    settings_by_default,
    settings_of,
    settings_to_tune,
    split_settings,
)
from underpaint.runtime.methods.trees.beside import DrawnSettings, window_plan, window_record, window_settings

COSTS_SETTING: Final = "costs"
"""The setting that gives a cost-aware policy a file with a cost curve."""
NO_POLICY: Final = "none"
"""The policy of plain autoregression, which drafts nothing."""


@dataclass(frozen=True, slots=True)
class TreeConfig(MethodConfig):
    """The names and settings of a tree policy and an acceptance rule.

    Attributes:
        policy: Name of the policy; `NO_POLICY` is plain autoregression.
        rule: Name of the acceptance rule.
        policy_settings: The policy's settings that are given; the others have their defaults.
        rule_settings: The rule's settings that are given; the others have their defaults.
        published_k: The rule's `k`, the number of near codes pooled, as a paper gives it for `PUBLISHED_CODES` codes.
            It is scaled to the model's own codebook when the method is built. None takes `k` from the settings.
        cost_curve: SHA-256 of the cost curve that the costs in the policy's settings come from; "" if there are none.
        skipping: Settings of `algos.skipping.Skipping`; None verifies every cycle.
        window: Changes to `beside.WINDOW`, a Jacobi window used together with the policy's trees; None uses no window.
        drawn: Settings of `DrawnSettings`; with None the policy may not draw siblings, but only take the likeliest
            tokens. It needs `window`, because one `WindowedCycles` verifies both.
    """

    policy: str
    rule: str
    policy_settings: Mapping[str, SettingValue] = field(default_factory=no_settings)
    rule_settings: Mapping[str, SettingValue] = field(default_factory=no_settings)
    published_k: int | None = None
    cost_curve: str = ""
    skipping: Mapping[str, SettingValue] | None = None
    window: Mapping[str, SettingValue] | None = None
    drawn: Mapping[str, SettingValue] | None = None

    family: ClassVar[Literal["tree"]] = "tree"

    @property
    def device(self) -> str | None:
        return "underpaint.runtime.methods.trees.device:form" if self.skipping is None else None

    @property
    def runs_on_device(self) -> bool:
        drafts = self.policy == NO_POLICY or POLICIES[self.policy].device is not None
        return self.skipping is None and drafts and RULES[self.rule].device is not None

    @property
    def draws_by(self) -> str:
        window = ", Jacobi windows" if self.window is not None else ""
        window += ", drawn siblings" if self.drawn is not None else ""
        return f"{self.policy} + {self.rule}{window}{', some cycles skipped' if self.skipping is not None else ''}"

    @property
    def acceptance(self) -> tuple[str, Mapping[str, SettingValue]]:
        return self.rule, self.rule_settings

    @property
    def needs_costs(self) -> bool:
        """See `MethodConfig`."""
        return self._takes_costs() and not {"verify_ms", "draft_ms"} <= self.policy_settings.keys()

    def to_dict(self) -> dict[str, Any]:
        policy = settings_by_default(POLICIES[self.policy].make, GIVEN_BY_ENGINE) if self.policy != NO_POLICY else {}
        rule = settings_by_default(RULES[self.rule].make, GIVEN_BY_ENGINE)
        record: dict[str, Any] = {
            "policy": self.policy,
            "policy_settings": {**policy, **self.policy_settings},
            "rule": self.rule,
            "rule_settings": {**rule, **self.rule_settings},
        }
        record |= {"published_k": self.published_k} if self.published_k is not None else {}
        if self.skipping is not None:
            record["skipping"] = {**settings_by_default(Skipping), **self.skipping}
        if self.window is not None:
            record["window"] = window_record(self.window)
        if self.drawn is not None:
            record["drawn"] = {**settings_by_default(DrawnSettings), **self.drawn}
        return record | ({"cost_curve": self.cost_curve} if self.cost_curve else {})

    def to_tune(self) -> dict[str, list[str]]:
        rule = RULES[self.rule].make
        grid = settings_to_tune(rule, {**settings_by_default(rule, GIVEN_BY_ENGINE), **self.rule_settings}, "rule")
        if self.policy != NO_POLICY:
            policy = POLICIES[self.policy].make
            values = {**settings_by_default(policy, GIVEN_BY_ENGINE), **self.policy_settings}
            grid |= settings_to_tune(policy, values, "policy")
        if self.skipping is not None:
            grid |= settings_to_tune(Skipping, {**settings_by_default(Skipping), **self.skipping}, "skipping")
        return grid

    def with_rule(self, rule: str, temperature: float) -> TreeConfig:
        """See `MethodConfig`; at temperature 0 the rule's greedy variant replaces it."""
        if self.policy == NO_POLICY:
            raise ValueError(f"plain autoregression drafts nothing that rule '{rule}' could accept; leave the rule out")
        changed = dataclasses.replace(
            self,
            rule=at_temperature(RULES[rule], temperature).name,
            rule_settings=no_settings(),
            published_k=None,
            drawn=self.drawn if rule == self.rule else None,
        )
        changed.check()
        return changed

    def with_settings(self, method: str, settings: Sequence[str]) -> TreeConfig:
        """See `MethodConfig`; a prefix `policy.`, `rule.`, `skipping.`, `window.` or `drawn.` resolves ambiguous names.

        A cost-aware policy also takes `costs=FILE`, a curve that `underpaint costs` wrote, instead of single costs.
        """
        part_types: dict[str, dict[str, Any]] = {
            "policy": {},
            "rule": settings_of(RULES[self.rule].make, GIVEN_BY_ENGINE),
        }
        if self.policy != NO_POLICY:
            part_types["policy"] = settings_of(POLICIES[self.policy].make)
            if self._takes_costs():
                part_types["policy"][COSTS_SETTING] = Path
        parts = {"skipping": settings_of(Skipping), "window": window_settings(), "drawn": settings_of(DrawnSettings)}
        part_types |= {part: kinds for part, kinds in parts.items() if getattr(self, part) is not None}
        values = read_parts(method, split_settings(settings), part_types)
        policy, cost_curve = dict(self.policy_settings), self.cost_curve
        for name, value in values["policy"].items():
            if part_types["policy"][name] is Path:
                costs = read_engine_costs(Path(str(value)))
                policy.update(costs.settings_for(POLICIES[self.policy]))
                cost_curve = costs.fingerprint
            else:
                policy[name] = value
        rule = {**self.rule_settings, **values["rule"]}
        return dataclasses.replace(
            self,
            policy_settings=policy,
            rule_settings=rule,
            published_k=self.published_k if rule.get("k") == self.rule_settings.get("k") else None,
            cost_curve=cost_curve,
            **cast(
                "dict[str, Any]", {part: {**getattr(self, part), **values[part]} for part in parts if part in values}
            ),
        )

    def _takes_costs(self) -> bool:
        return self.policy != NO_POLICY and POLICIES[self.policy].cost_aware

    def check(self) -> None:
        """Raise ValueError unless the rule covers the policy's trees."""
        if self.policy != NO_POLICY:
            check_fits(RULES[self.rule], POLICIES[self.policy])

    def target_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """See `MethodConfig`.

        A greedy rule takes the argmax of distributions at temperature 1, so that the drafter's distributions keep their
        shape. Top-k and top-p are dropped, as they do not change an argmax.
        """
        return SamplingParams(guidance=sampling.guidance) if RULES[self.rule].greedy else sampling

    def build(self, method: str, tables: ModelTables) -> TreeMethod:
        """See `MethodConfig`; `tables` is for rules that pool over the codebook and for cost-aware policies."""
        if self.published_k is not None:
            k = scaled_to(tables.vocab_size, self.published_k)
            if self.rule_settings.get("residual") == "released":  # it also zeroes code k + 1 of the table
                k = min(k, max(1, tables.neighbours.shape[1] - 1))
            scaled = dataclasses.replace(self, rule_settings={**self.rule_settings, "k": k}, published_k=None)
            return scaled.build(method, tables)
        if tables.costs is not None and self._takes_costs():
            costs = tables.costs.settings_for(POLICIES[self.policy])
            uses_costs = not costs.keys() <= self.policy_settings.keys()
            cost_aware = dataclasses.replace(
                self,
                policy_settings={**costs, **self.policy_settings},
                cost_curve=tables.costs.fingerprint if uses_costs else self.cost_curve,
            )
            return cost_aware.build(method, dataclasses.replace(tables, costs=None))
        rule = build_rule(self.rule, self.rule_settings, tables)
        lossless = RULES[self.rule].is_lossless(self.rule_settings)
        if self.policy == NO_POLICY:
            return TreeMethod(method, self, lossless, False, NoDraft(), rule)
        if self.drawn is not None and self.window is None:
            raise ValueError(f"method '{method}': drawn siblings need settings of a window beside them, got none")
        policy = build(POLICIES[self.policy].make, dict(self.policy_settings), f"policy '{self.policy}'")
        if self.window is not None:
            plan = window_plan(self.window, self.rule, rule)
            if self.drawn is not None:
                drawn_settings = build(DrawnSettings, dict(self.drawn), f"drawn of '{method}'")
                plan = plan._replace(
                    drawn_rules=drawn_settings.rules(self.policy_settings.get("with_replacement", False) is True)
                )
            return TreeMethod(method, self, lossless, True, policy, rule, window=plan)
        if self.skipping is None:
            return TreeMethod(method, self, lossless, True, policy, rule)
        skipping = build(Skipping, dict(self.skipping), f"skipping of '{method}'")
        return TreeMethod(method, self, lossless and skipping.never, True, policy, rule, skipping)


def of_pair(policy: str, rule: str, temperature: float, presets: Sequence[Preset]) -> TreeConfig:
    """Return the configuration of any pair of tree policy and rule.

    Args:
        policy: The policy's name.
        rule: The rule's name; at temperature 0 its greedy variant replaces it.
        temperature: Temperature of the target's distributions; at 0 the policy's greedy variant replaces it, too.
        presets: The presets of all methods. The first with this pair gives the settings. If there is none, the first
            with this policy gives the policy's settings, and the rule takes its defaults.

    Raises:
        ValueError: A name is unknown, or the rule does not cover the policy's trees.
    """
    pair = POLICIES[policy].name, RULES[rule].name
    check_fits(RULES[pair[1]], POLICIES[pair[0]])
    drafts = POLICIES[pair[0]].greedy_variant or pair[0] if temperature == 0 else pair[0]
    config = TreeConfig(drafts, at_temperature(RULES[rule], temperature).name)
    config.check()
    trees = [
        (cast(TreeConfig, one.sampled), cast(TreeConfig, one.greedy)) for one in presets if one.sampled.family == "tree"
    ]
    for sampled, greedy in trees:
        if pair in ((sampled.policy, sampled.rule), (greedy.policy, greedy.rule)):
            return greedy if temperature == 0 else sampled
    for sampled, greedy in trees:
        preset_config = greedy if temperature == 0 else sampled
        if preset_config.policy == drafts:
            return dataclasses.replace(config, policy_settings=preset_config.policy_settings)
    return config


@dataclass(frozen=True, slots=True)
class NoDraft:
    """A policy that drafts nothing, so that each target pass gives one token."""

    def begin(self, grid: Grid) -> None:
        """See `Policy`."""

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        return root_only(root, drafter.vocab_size)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """See `Policy`."""


@dataclass(frozen=True, slots=True)
class TreeMethod(DecodingMethod):
    """A tree policy and a rule, ready to draw; `drafts` is False for plain autoregression, which needs no drafter.

    Attributes:
        config: The configuration that it was built from.
        policy: The policy that grows draft trees.
        rule: The rule that verifies them.
        skipping: Which cycles are not verified; None verifies all.
        watch: Callback for every skipped tree; see `SkipWatch`.
        window: The Jacobi window used together with the policy's trees, if any.
    """

    config: TreeConfig
    policy: Policy
    rule: Rule
    skipping: Skipping | None = None
    watch: SkipWatch | None = None
    window: WindowPlan | None = None

    def open(self, models: PipelineModels, condition: Condition, sampling: SamplingParams) -> DecodingSession:
        """Open the target, and the drafter if the method drafts; raise ValueError if a tree exceeds the limits."""
        if self.drafts:
            check_limits(self.config.policy_settings, models.max_nodes, models.tables.vocab_size)
        length = (self.config.window or {}).get("length")
        if isinstance(length, int) and length >= models.max_nodes:
            raise ValueError(
                f"window.length: expected at most {models.max_nodes - 1}, got {length}: the engine scores "
                f"{models.max_nodes} nodes, the root included"
            )
        used = self.config.target_sampling(sampling)
        target, target_timer = models.target(condition, used)
        drafter, drafter_timer = models.drafter(used) if self.drafts else (None, None)

        def start(chance: Chance) -> DecodingSteps:
            most = models.max_nodes
            if self.skipping is not None and drafter is not None:
                whole = target, drafter, self.policy, self.rule, chance
                codebook = models.tables.codebook
                return DecodingResult.of_cycles(skipping_cycles(*whole, self.skipping, most, codebook, self.watch))
            verification: WindowedCycles | None = None
            if self.window is not None and drafter is not None:
                window, rule, likeliest, drawn_rules = self.window
                noise = noise_of(chance) if window.coupling == "gumbel" else None
                jacobi = WindowState(window, target.grid, target.vocab_size, "iid", noise, likeliest)
                verification = WindowedCycles(target, WindowDrafter(jacobi, drafter), self.rule, rule, drawn_rules)
            return DecodingResult.of_cycles(cycles(target, drafter, self.policy, self.rule, chance, most, verification))

        return DecodingSession(SessionTimers(target_timer, drafter_timer), start)

    def watched(self, watch: Callable[[Rule], RuleWatcher]) -> TreeMethod | None:
        """See `DecodingMethod`; None for greedy rules, which take the likeliest token and have no bias to watch."""
        if RULES[self.config.rule].greedy:
            return None
        rule, window = watch(self.rule), self.window
        if window is not None and window.rule is self.rule:
            window = window._replace(rule=rule)
        return dataclasses.replace(self, rule=rule, watch=rule.skipped, window=window)
