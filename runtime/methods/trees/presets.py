"""The methods of the tree family: a tree policy and an acceptance rule for each, with their settings by preset."""

import dataclasses
from collections.abc import Mapping

from underpaint.algos.accept import RULES
from underpaint.algos.accept.spec import at_temperature
from underpaint.algos.draft import POLICIES
from underpaint.runtime.methods.registry import METHODS, MethodSpec, Preset
from underpaint.runtime.methods.settings import SettingValue
from underpaint.runtime.methods.trees import settings as chosen
from underpaint.runtime.methods.trees.method import NO_POLICY, TreeConfig
from underpaint.runtime.methods.trees.settings import PolicySettings, RuleSettings


def _preset(
    policy: str,
    rule: str,
    tree: PolicySettings,
    acceptance: RuleSettings,
    skipping: PolicySettings | None = None,
    window: Mapping[str, SettingValue] | None = None,
    drawn: Mapping[str, SettingValue] | None = None,
) -> Preset:
    """Make a preset from a policy and a rule for temperatures above 0; at 0 their greedy variants replace them.

    skipping: settings of verification skipping; None verifies every cycle. window: settings of a Jacobi window used
    with the trees, or None. drawn: settings of the rules for siblings drawn above temperature 0, or None.
    """
    greedy_policy = policy if policy == NO_POLICY else POLICIES[policy].greedy_variant or policy
    at_zero = greedy_policy, at_temperature(RULES[rule], 0.0).name
    greedy_tree = tree.settings if tree.greedy is None else tree.greedy
    skipped, scale = None if skipping is None else skipping.settings, acceptance.published_k
    greedy_skipped = skipped if skipping is None or skipping.greedy is None else skipping.greedy
    sampled = TreeConfig(policy, rule, tree.settings, acceptance.sampled, scale, skipping=skipped, window=window)
    return Preset(
        dataclasses.replace(sampled, drawn=drawn),
        TreeConfig(*at_zero, greedy_tree, acceptance.greedy, scale, skipping=greedy_skipped, window=window),
        {**tree.sources, **acceptance.sources, **({} if skipping is None else skipping.sources)},
    )


def _method(
    name: str,
    pair: tuple[str, str],
    summary: str,
    tuned: tuple[PolicySettings, RuleSettings] = (PolicySettings(), chosen.PLAIN),
    paper: tuple[PolicySettings, RuleSettings] | None = None,
    eagle_code: PolicySettings | None = None,
) -> MethodSpec:
    """Make a method from a policy and a rule. paper: None takes `tuned`. eagle_code: the authors' own settings."""
    authors = None if eagle_code is None else _preset(*pair, eagle_code, chosen.PLAIN)
    return MethodSpec(name, summary, _preset(*pair, *tuned), _preset(*pair, *(paper or tuned)), authors)


for _spec in (
    _method("ar", (NO_POLICY, "point"), "plain autoregression: one target pass per token, the baseline"),
    _method(
        "speculative",
        ("chain", "chain"),
        "speculative sampling on a chain",
        (chosen.CHAIN, chosen.PLAIN),
        (chosen.PAPER_CHAIN, chosen.PLAIN),
    ),
    _method(
        "block",
        ("chain", "block"),
        "block verification of a chain",
        (chosen.CHAIN, chosen.PLAIN),
        (chosen.PAPER_CHAIN, chosen.PLAIN),
    ),
    _method(
        "eagle1",
        ("eagle1", "without_replacement"),
        "EAGLE-1: a static tree, siblings drawn without replacement",
        (chosen.STATIC, chosen.PLAIN),
        (chosen.PAPER_STATIC, chosen.PLAIN),
    ),
    _method(
        "traversal",
        ("eagle1", "traversal"),
        "traversal verification: EAGLE-1's drawn tree, verified from its leaves to its root",
        (chosen.JUDGED_TREE, chosen.PLAIN),
        (chosen.PAPER_JUDGED_TREE, chosen.PLAIN),
    ),
    _method(
        "sequoia",
        ("sequoia", "without_replacement"),
        "Sequoia: the static tree with most expected tokens per millisecond, by acceptance of each rank and cost curve",
        (chosen.PLANNED, chosen.PLAIN),
        (chosen.PAPER_PLANNED, chosen.PLAIN),
    ),
    _method(
        "eagle2",
        ("eagle2", "point"),
        "EAGLE-2: a dynamic tree of the likeliest tokens",
        (chosen.TREE, chosen.PLAIN),
        (chosen.PAPER_TREE, chosen.PLAIN),
        chosen.EAGLE_TREE,
    ),
    _method(
        "opt-tree",
        ("opt", "point"),
        "OPT-Tree: the likeliest paths, grown while a level adds enough to the expected length",
        (chosen.OPT, chosen.PLAIN),
        (chosen.PAPER_OPT, chosen.PLAIN),
    ),
    _method(
        "adt-control-chain",
        ("scheduled", "point"),
        "a control for ADT-Tree: chains of its mean depth and number of nodes, never adapted",
        (chosen.CONTROL_CHAIN, chosen.PLAIN),
    ),
    _method(
        "adt-control-tree",
        ("scheduled", "point"),
        "a control for ADT-Tree: EAGLE-2's trees of its mean depth, with more nodes, never adapted",
        (chosen.CONTROL_TREE, chosen.PLAIN),
    ),
    _method(
        "adt",
        ("adt", "point"),
        "ADT-Tree: EAGLE-2 whose depth and width follow the acceptance so far",
        (chosen.ADAPTIVE, chosen.PLAIN),
        (chosen.PAPER_ADAPTIVE, chosen.PLAIN),
    ),
    _method(
        "lantern",
        ("eagle2", "lantern"),
        "LANTERN: EAGLE-2's tree; the probability of neighbouring codes counts towards acceptance, up to a bound",
        (chosen.LANTERN_TREE, chosen.LANTERN),
        (chosen.PAPER_TREE, chosen.PAPER_LANTERN),
    ),
    _method(
        "lantern++",
        ("eagle1", "lantern_pp"),
        "LANTERN++: EAGLE-1's static tree; neighbouring codes count, in proportion to the token's probability",
        (chosen.LANTERN_PP_WIDTHS, chosen.RELATIVE),
        (chosen.PAPER_STATIC, chosen.PAPER_RELATIVE),
    ),
    _method(
        "adt+lantern",
        ("adt", "lantern"),
        "ADT-Tree's tree with LANTERN's acceptance",
        (chosen.LANTERN_ADAPTIVE, chosen.ADT_LANTERN),
        (chosen.PAPER_ADAPTIVE, chosen.PAPER_LANTERN),
    ),
    _method(
        "adt+lantern++",
        ("adt", "lantern_pp"),
        "ADT-Tree's tree with LANTERN++'s acceptance",
        (chosen.LANTERN_ADAPTIVE, chosen.RELATIVE_ON_CHAINS),
        (chosen.PAPER_ADAPTIVE, chosen.PAPER_RELATIVE),
    ),
    _method(
        "delayed",
        ("delayed", "multi_round"),
        "delayed trees: one drawn path, then several from its end, verified by SpecInfer's multi-round sampling",
        (chosen.DELAYED, chosen.PLAIN),
        (chosen.PAPER_DELAYED, chosen.PLAIN),
    ),
    _method(
        "gbv",
        ("delayed", "gbv"),
        "GBV: block verification of the best of several drawn paths",
        (chosen.BUNDLE, chosen.PLAIN),
        (chosen.PAPER_BUNDLE, chosen.PLAIN),
    ),
    _method(
        "ensemble",
        ("chain", "ensemble"),
        "static ensemble: a chain, verified against a mixture of drafter and target, as in transformers",
        (chosen.RELAXED_CHAIN, chosen.ENSEMBLE),
        (chosen.PAPER_CHAIN, chosen.ENSEMBLE),
    ),
    _method(
        "fly",
        ("chain", "fly"),
        "FLy: a chain; a rejection at high entropy is ignored if the next drafts are accepted",
        (chosen.CHAIN, chosen.FLY),
        (chosen.PAPER_LONG_CHAIN, chosen.PAPER_FLY),
    ),
    _method(
        "hsd",
        ("chain", "hsd"),
        "HSD as released: block verification, but the chain's end is accepted by the joint ratio",
        (chosen.RELAXED_CHAIN, chosen.HSD),
        (chosen.PAPER_CHAIN, chosen.HSD),
    ),
    MethodSpec(
        "vvs",
        "VVS: LANTERN on EAGLE-2's tree; some cycles commit a path without a target pass",
        _preset("eagle2", "lantern", chosen.VVS_TREE, chosen.VVS_LANTERN, chosen.SKIPPING),
        _preset(
            "eagle2",
            "lantern",
            chosen.PAPER_TREE,
            chosen.PAPER_LANTERN._replace(
                sampled={"delta": 0.2, "residual": "paper"},
                greedy={"delta": 0.2},
                sources={**chosen.PAPER_LANTERN.sources, "delta": f"{chosen.VVS}, released script"},
            ),
            chosen.PAPER_SKIPPING,
        ),
    ),
    MethodSpec(
        "roofline",
        "whichever of chains, trees and Jacobi windows gives most expected tokens per millisecond on the measured cost "
        "curve",
        *(
            _preset("roofline", "point", policy, chosen.PLAIN, window=chosen.NONE, drawn=chosen.NONE)
            for policy in (chosen.ROOFLINE, chosen.OURS)
        ),
    ),
    MethodSpec(
        "roofline+lantern",
        "roofline's trees and windows with LANTERN's acceptance",
        _preset("roofline", "lantern", chosen.OURS, chosen.ROOFLINE_LANTERN, window=chosen.NONE),
        _preset("roofline", "lantern", chosen.OURS, chosen.PAPER_LANTERN, window=chosen.NONE),
    ),
):
    METHODS.register(_spec)
