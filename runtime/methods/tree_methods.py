"""The methods of the tree family: a tree policy and an acceptance rule each, with their settings by preset."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from underpaint.algos.accept import RULES
from underpaint.algos.accept.spec import at_temperature
from underpaint.runtime.methods.method_config import MethodSpec, Preset, no_settings
from underpaint.runtime.methods.settings import Shown
from underpaint.runtime.methods.tree_config import NO_POLICY, TreeConfig

_LIKELIEST: Final = {"chain": "chain_top1", "eagle1": "static_top_k", "sequoia": "sequoia_top_k"}
"""At temperature 0: the policy of the likeliest tokens, in place of one that draws them."""
_NONE: Final = no_settings()
_NO_SOURCES: Final[Mapping[str, str]] = MappingProxyType({})


class PolicySettings(NamedTuple):
    """A policy's settings, and where they are from. greedy: those at temperature 0; None where they are the same."""

    settings: Mapping[str, Shown] = _NONE
    sources: Mapping[str, str] = _NO_SOURCES
    greedy: Mapping[str, Shown] | None = None


class RuleSettings(NamedTuple):
    """A rule's settings above temperature 0, those of its greedy variant at 0, and where they are from.

    published_k: see `TreeConfig`.
    """

    sampled: Mapping[str, Shown] = _NONE
    greedy: Mapping[str, Shown] = _NONE
    sources: Mapping[str, str] = _NO_SOURCES
    published_k: int | None = None


_TUNING: Final = "measured: chosen on 1,000 prompts apart from those reported (docs/results/settings.md)"
_TREE: Final = PolicySettings({"depth": 5, "top_k": 2, "total_tokens": 6}, {"depth, top_k, total_tokens": _TUNING})
_DEEPER_TREE: Final = PolicySettings(
    {"depth": 6, "top_k": 2, "total_tokens": 8}, {"depth, top_k, total_tokens": _TUNING}
)
_ADAPTIVE: Final = PolicySettings(
    {"start_depth": 4, "max_depth": 8, "start_width": 1, "max_width": 1, "total_tokens": 12},
    {
        "start_depth, max_depth, total_tokens": _TUNING,
        "start_width, max_width": "measured: on two cores every branch costs more than it brings, and one chain is "
        "drafted in a single call",
    },
)
_STATIC: Final = PolicySettings({"widths": (2, 2, 1, 1, 1)}, {"widths": _TUNING})
_CHAIN: Final = PolicySettings({"length": 5}, {"length": _TUNING})
_CONTROL_SOURCE: Final = "measured: benchmarks/adt_controls.py, so that the mean depth is ADT-Tree's"
_CONTROL_CHAIN: Final = PolicySettings(
    {"mean_depth": 2.86, "top_k": 1},
    {"mean_depth": _CONTROL_SOURCE, "top_k": "1 makes a chain"},
    {"mean_depth": 3.74, "top_k": 1},
)
_CONTROL_TREE: Final = PolicySettings(
    {"mean_depth": 2.86, "top_k": 2, "total_tokens": 12},
    {"mean_depth": _CONTROL_SOURCE, "top_k": "that of 'eagle2'", "total_tokens": "that of 'adt'"},
    {"mean_depth": 3.75, "top_k": 2, "total_tokens": 12},
)
_SWEPT: Final = "measured: on 24 prompts apart from those reported (docs/results/settings.md)"
_BY_RANK: Final = "measured: python -m benchmarks.rank_acceptance, as the paper has it measured for each pair of models"
_RANKED: Final = {"acceptance": (0.7561, 0.0845, 0.0315, 0.012)}
_RANKED_AT_ZERO: Final = {"acceptance": (0.7792, 0.0863, 0.0382, 0.0221)}
_PLANNED: Final = PolicySettings(
    {**_RANKED, "max_depth": 8},
    {"acceptance": _BY_RANK, "max_depth": _SWEPT},
    {**_RANKED_AT_ZERO, "max_depth": 8},
)
_OPT: Final = PolicySettings(
    {"total_tokens": 6, "threshold": 0.4, "max_depth": 8},
    {"total_tokens, threshold": _SWEPT, "max_depth": "a bound that the threshold comes before"},
    {"total_tokens": 8, "threshold": 0.2, "max_depth": 8},
)
_JUDGED_TREE: Final = PolicySettings({"widths": (2, 1, 1, 1)}, {"widths": _SWEPT})

_STANDARD: Final[Mapping[str, Shown]] = {"residual": "standard"}
_LANTERN: Final = RuleSettings(
    {"k": 14, "delta": 0.6, **_STANDARD}, {"k": 10, "delta": 0.4}, {"k, delta, residual": _TUNING}
)
_RELATIVE: Final = RuleSettings(
    {"k": 10, "factor": 5.0, **_STANDARD}, {"k": 10, "factor": 5.0}, {"k, factor, residual": _TUNING}
)
_RELATIVE_ON_CHAINS: Final = RuleSettings(
    {"k": 20, "factor": 3.0, **_STANDARD}, {"k": 20, "factor": 3.0}, {"k, factor, residual": _TUNING}
)

_FREE: Final = "our guess: the paper leaves it open"
_PAPER_CHAIN: Final = PolicySettings({"length": 5}, {"length": f"{_FREE} (gamma)"})
_PAPER_TREE: Final = PolicySettings(
    {"depth": 5, "top_k": 10, "total_tokens": 59},
    {
        "top_k, total_tokens": "arXiv 2406.16858 (EAGLE-2): 60 nodes with the root, 10 a level",
        "depth": "arXiv 2410.03355 (LANTERN), released code: 5 levels; EAGLE's own code has up to 7",
    },
)
_PAPER_STATIC: Final = PolicySettings(
    {"widths": (8, 16, 14, 11, 8)},
    {"widths": "arXiv 2502.06352 (LANTERN++): 57 nodes in 5 levels; which nodes have children is our guess"},
)
_PAPER_JUDGED_TREE: Final = PolicySettings(
    {"widths": (2, 4, 8, 16)},
    {"widths": "our guess: the abstract says 'different tree architectures'; 30 nodes in 4 levels, each twice as wide"},
)
_PAPER_PLANNED: Final = PolicySettings(
    {**_RANKED, "max_depth": 10},
    {
        "acceptance": _BY_RANK,
        "size and depth": "arXiv 2402.12374 (Sequoia): those of most tokens a millisecond on the measured cost curve",
        "max_depth": "our guess: a bound that leaves the choice to the cost curve",
    },
    {**_RANKED_AT_ZERO, "max_depth": 10},
)
_PAPER_OPT: Final = PolicySettings(
    {"total_tokens": 50, "threshold": 0.7, "max_depth": 10},
    {"total_tokens, threshold, max_depth": "arXiv 2406.17276 (OPT-Tree), released demo"},
)
_UNPUBLISHED: Final = "our guess: not published, and no code was released"
_PAPER_ADAPTIVE: Final = PolicySettings(
    {"start_depth": 4, "max_depth": 8, "start_width": 6, "max_width": 10, "total_tokens": 59},
    {
        "total_tokens": "arXiv 2410.03355 (LANTERN), released code, which ADT-Tree's repository is a fork of",
        "beta, step_depth, step_width, start_depth, max_depth, start_width, max_width": _UNPUBLISHED,
    },
)
_SCALED: Final = "scaled to the codebook, k * V / 16384"
_PAPER_LANTERN: Final = RuleSettings(
    {"delta": 0.1, "residual": "paper"},
    {"delta": 0.1},
    {"k": f"arXiv 2410.03355, released code: 1,000 of 16,384 codes, {_SCALED}", "delta": "the same code's default"},
    1000,
)
_PAPER_RELATIVE: Final = RuleSettings(
    {"factor": 5.0, "residual": "paper"},
    {"factor": 5.0},
    {
        "k": f"arXiv 2502.06352, released script: 10 of 8,192 codes, which is 20 of 16,384, {_SCALED}",
        "factor": "the same script (Lumina-mGPT, k = 10: lambda = 5)",
    },
    20,
)
_OURS: Final = PolicySettings(sources={"all": "our own method: there is no paper, both presets are the same"})


def _preset(
    policy: str,
    rule: str,
    tree: PolicySettings,
    acceptance: RuleSettings,
    skipping: PolicySettings | None = None,
    window: Mapping[str, Shown] | None = None,
    drawn: Mapping[str, Shown] | None = None,
) -> Preset:
    """A preset by the policy and rule above temperature 0; at 0 both have counterparts. skipping: None verifies all.

    window: settings of a Jacobi window beside the trees; None where there is none. drawn: of the rules for siblings
    that the policy draws above temperature 0; None where it draws none.
    """
    at_zero = _LIKELIEST.get(policy, policy), at_temperature(RULES[rule], 0.0).name
    greedy_tree = tree.settings if tree.greedy is None else tree.greedy
    skipped, scale = None if skipping is None else skipping.settings, acceptance.published_k
    greedy_skipped = skipped if skipping is None or skipping.greedy is None else skipping.greedy
    sampled = TreeConfig(policy, rule, tree.settings, acceptance.sampled, scale, skipping=skipped, window=window)
    return Preset(
        dataclasses.replace(sampled, drawn=drawn),
        TreeConfig(*at_zero, greedy_tree, acceptance.greedy, scale, skipping=greedy_skipped, window=window),
        {**tree.sources, **acceptance.sources, **({} if skipping is None else skipping.sources)},
    )


_PLAIN: Final = RuleSettings()
_VVS: Final = "arXiv 2511.13587 (VVS)"
_SKIPPING: Final = PolicySettings(
    {"every": 3, "longest": 3},
    {"every, longest, schedule": f"{_SWEPT}; skipping by similarity was no faster"},
    {"every": 4, "longest": 4},
)
_PAPER_SKIPPING: Final = PolicySettings(
    {"every": 4, "longest": 5},
    {
        "every": f"{_VVS}: i = 4 in the table of results; the released script has 5",
        "schedule": f"{_VVS}: the uniform one; schedule=similarity is the other",
        "threshold": f"{_VVS}: 0.65 to 0.70; its code has 0.70",
        "decay": f"{_VVS}, released code",
        "longest": f"{_VVS}: the path or the mean number accepted, the shorter one; 5 is the whole path",
    },
)


def _method(
    name: str,
    pair: tuple[str, str],
    summary: str,
    tuned: tuple[PolicySettings, RuleSettings] = (PolicySettings(), _PLAIN),
    paper: tuple[PolicySettings, RuleSettings] | None = None,
) -> MethodSpec:
    """A method by its policy and rule; without `paper` both presets are the same."""
    return MethodSpec(name, summary, _preset(*pair, *tuned), _preset(*pair, *(paper or tuned)))


TREE_METHODS: Final = (
    _method("ar", (NO_POLICY, "point"), "plain autoregression: one target pass per token, the baseline"),
    _method(
        "speculative",
        ("chain", "chain"),
        "speculative sampling on a chain",
        (_CHAIN, _PLAIN),
        (_PAPER_CHAIN, _PLAIN),
    ),
    _method("block", ("chain", "block"), "block verification of a chain", (_CHAIN, _PLAIN), (_PAPER_CHAIN, _PLAIN)),
    _method(
        "eagle1",
        ("eagle1", "without_replacement"),
        "EAGLE-1: a static tree, siblings drawn without replacement",
        (_STATIC, _PLAIN),
        (_PAPER_STATIC, _PLAIN),
    ),
    _method(
        "traversal",
        ("eagle1", "traversal"),
        "traversal verification: EAGLE-1's drawn tree, judged from its leaves to its root",
        (_JUDGED_TREE, _PLAIN),
        (_PAPER_JUDGED_TREE, _PLAIN),
    ),
    _method(
        "sequoia",
        ("sequoia", "without_replacement"),
        "Sequoia: the static tree of most tokens a millisecond, by the acceptance of each rank and the cost curve",
        (_PLANNED, _PLAIN),
        (_PAPER_PLANNED, _PLAIN),
    ),
    _method(
        "eagle2",
        ("eagle2", "point"),
        "EAGLE-2: a dynamic tree of the likeliest tokens",
        (_TREE, _PLAIN),
        (_PAPER_TREE, _PLAIN),
    ),
    _method(
        "opt-tree",
        ("opt", "point"),
        "OPT-Tree: the likeliest paths, grown while a level adds enough to the expected length",
        (_OPT, _PLAIN),
        (_PAPER_OPT, _PLAIN),
    ),
    _method(
        "adt-control-chain",
        ("scheduled", "point"),
        "a control for ADT-Tree: chains of its mean depth, and so of its number of nodes, never adapted",
        (_CONTROL_CHAIN, _PLAIN),
    ),
    _method(
        "adt-control-tree",
        ("scheduled", "point"),
        "a control for ADT-Tree: EAGLE-2's trees at its mean depth, which fork and so have more nodes, never adapted",
        (_CONTROL_TREE, _PLAIN),
    ),
    _method(
        "adt",
        ("adt", "point"),
        "ADT-Tree: EAGLE-2 whose depth and width follow the acceptance so far",
        (_ADAPTIVE, _PLAIN),
        (_PAPER_ADAPTIVE, _PLAIN),
    ),
    _method(
        "lantern",
        ("eagle2", "lantern"),
        "LANTERN: EAGLE-2's tree, near codes pooled up to a bound",
        (_DEEPER_TREE, _LANTERN),
        (_PAPER_TREE, _PAPER_LANTERN),
    ),
    _method(
        "lantern++",
        ("eagle1", "lantern_pp"),
        "LANTERN++: EAGLE-1's static tree, near codes pooled in proportion to p",
        (_STATIC, _RELATIVE),
        (_PAPER_STATIC, _PAPER_RELATIVE),
    ),
    _method(
        "adt+lantern",
        ("adt", "lantern"),
        "ADT-Tree's tree with LANTERN's acceptance",
        (_ADAPTIVE, _LANTERN),
        (_PAPER_ADAPTIVE, _PAPER_LANTERN),
    ),
    _method(
        "adt+lantern++",
        ("adt", "lantern_pp"),
        "ADT-Tree's tree with LANTERN++'s acceptance",
        (_ADAPTIVE, _RELATIVE_ON_CHAINS),
        (_PAPER_ADAPTIVE, _PAPER_RELATIVE),
    ),
    MethodSpec(
        "vvs",
        "VVS: EAGLE-2's tree with LANTERN's acceptance, and now and then a path committed without a target pass",
        _preset("eagle2", "lantern", _DEEPER_TREE, _LANTERN, _SKIPPING),
        _preset(
            "eagle2",
            "lantern",
            _PAPER_TREE,
            _PAPER_LANTERN._replace(
                sampled={"delta": 0.2, "residual": "paper"},
                greedy={"delta": 0.2},
                sources={**_PAPER_LANTERN.sources, "delta": f"{_VVS}, released script"},
            ),
            _PAPER_SKIPPING,
        ),
    ),
    MethodSpec(
        "roofline",
        "chains in one call, trees of likeliest tokens or of drawn siblings, or Jacobi windows, whichever gives most "
        "expected tokens per millisecond on the engine's cost curve",
        *(_preset("roofline", "point", _OURS, _PLAIN, window=_NONE, drawn=_NONE) for _ in range(2)),
    ),
    MethodSpec(
        "roofline+lantern",
        "roofline's trees and windows with LANTERN's acceptance",
        _preset("roofline", "lantern", _OURS, _LANTERN, window=_NONE),
        _preset("roofline", "lantern", _OURS, _PAPER_LANTERN, window=_NONE),
    ),
)
