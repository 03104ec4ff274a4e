"""Settings of the tree methods for each preset, and their sources."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from underpaint.runtime.methods.registry import (
    EARLIER,
    KEPT,
    MOST_PUBLISHED_K,
    TUNED_ABOVE_ZERO,
    TUNED_ON,
    no_settings,
)
from underpaint.runtime.methods.settings import SettingValue

NONE: Final = no_settings()
NO_SOURCES: Final[Mapping[str, str]] = MappingProxyType({})


class PolicySettings(NamedTuple):
    """A policy's settings and their sources.

    Attributes:
        settings: The settings above temperature 0.
        sources: The source of each setting, by its name.
        greedy: The settings at temperature 0; None if they are the same.
    """

    settings: Mapping[str, SettingValue] = NONE
    sources: Mapping[str, str] = NO_SOURCES
    greedy: Mapping[str, SettingValue] | None = None


class RuleSettings(NamedTuple):
    """A rule's settings and their sources.

    Attributes:
        sampled: The rule's settings above temperature 0.
        greedy: The settings of its greedy variant at temperature 0.
        sources: The source of each setting, by its name.
        published_k: See `TreeConfig`.
    """

    sampled: Mapping[str, SettingValue] = NONE
    greedy: Mapping[str, SettingValue] = NONE
    sources: Mapping[str, str] = NO_SOURCES
    published_k: int | None = None


def _tuned(
    settings: Mapping[str, SettingValue],
    greedy: Mapping[str, SettingValue] | None = None,
    source: str = TUNED_ON,
    other_sources: Mapping[str, str] = NO_SOURCES,
) -> PolicySettings:
    """Make settings; `source` is that of all settings except those in `other_sources`."""
    names = [name for name in {**settings, **(greedy or {})} if name not in other_sources]
    return PolicySettings(settings, {", ".join(names): source, **other_sources}, greedy)


CHAIN: Final = _tuned({"length": 2})
RELAXED_CHAIN: Final = _tuned({"length": 5}, {"length": 2})
STATIC: Final = _tuned({"widths": (2, 1, 1)})
LANTERN_PP_WIDTHS: Final = _tuned({"widths": (1, 1, 1, 1)}, {"widths": (2, 2, 1, 1, 1)}, TUNED_ABOVE_ZERO)
JUDGED_TREE: Final = _tuned({"widths": (2, 1, 1, 1)}, {"widths": (2, 1, 1)})
TREE: Final = _tuned({"depth": 5, "top_k": 2, "total_tokens": 3})
LANTERN_TREE: Final = _tuned({"depth": 3, "top_k": 2, "total_tokens": 4}, {"depth": 6, "top_k": 2, "total_tokens": 20})
VVS_TREE: Final = _tuned({"depth": 3, "top_k": 1, "total_tokens": 10}, {"depth": 5, "top_k": 1, "total_tokens": 20})
OPT: Final = _tuned(
    {"total_tokens": 8, "threshold": 0.7, "max_depth": 8},
    other_sources={"max_depth": "a bound that the threshold comes before"},
)
ADAPTIVE: Final = _tuned({"start_depth": 4, "max_depth": 8, "start_width": 1, "max_width": 1, "total_tokens": 8})
LANTERN_ADAPTIVE: Final = _tuned(ADAPTIVE.settings, source=TUNED_ABOVE_ZERO)
CONTROL_SOURCE: Final = "measured, so that the mean depth is ADT-Tree's"
CONTROL_CHAIN: Final = PolicySettings(
    {"mean_depth": 1.32, "top_k": 1},
    {"mean_depth": CONTROL_SOURCE, "top_k": "1 makes a chain"},
    {"mean_depth": 1.82, "top_k": 1},
)
CONTROL_TREE: Final = PolicySettings(
    {"mean_depth": 1.32, "top_k": 2, "total_tokens": 8},
    {"mean_depth": CONTROL_SOURCE, "top_k": "that of 'eagle2'", "total_tokens": "that of 'adt'"},
    {"mean_depth": 1.82, "top_k": 2, "total_tokens": 8},
)
BY_RANK: Final = "measured: python -m benchmarks.rank_acceptance, as the paper has it measured for each pair of models"
RANKED: Final = {"acceptance": (0.5187, 0.1089, 0.0641, 0.043)}
RANKED_AT_ZERO: Final = {"acceptance": (0.4031, 0.1451, 0.0775, 0.0531)}
PLANNED: Final = PolicySettings(
    {**RANKED, "max_depth": 8},
    {"acceptance": BY_RANK, "max_depth": TUNED_ON},
    {**RANKED_AT_ZERO, "max_depth": 8},
)

STANDARD: Final[Mapping[str, SettingValue]] = {"residual": "standard"}
LANTERN: Final = RuleSettings(
    {"delta": 0.8, **STANDARD},
    {"delta": 0.6},
    {"delta": TUNED_ON, "k": "250 of 4,096 codes, the share of arXiv 2410.03355", "residual": EARLIER},
    MOST_PUBLISHED_K,
)
ADT_LANTERN: Final = LANTERN._replace(sources={**LANTERN.sources, "delta": TUNED_ABOVE_ZERO})
ROOFLINE_LANTERN: Final = LANTERN._replace(sources={**LANTERN.sources, "delta": KEPT})
VVS_LANTERN: Final = LANTERN._replace(greedy={"delta": 0.8})
RELATIVE: Final = RuleSettings(
    {"k": 10, "factor": 10.0, **STANDARD},
    {"k": 10, "factor": 5.0},
    {"factor": TUNED_ABOVE_ZERO, "k, residual": EARLIER},
)
RELATIVE_ON_CHAINS: Final = RuleSettings(
    {"k": 20, "factor": 10.0, **STANDARD}, {"k": 20, "factor": 3.0}, RELATIVE.sources
)

ENSEMBLE: Final = RuleSettings({"weight": 0.7}, {}, {"weight": "our guess; neither preset was tuned for it"})
HSD: Final = RuleSettings({"end": "joint"}, {}, {"end": "arXiv 2601.05724 (HSD), released code, which is not lossless"})
FLY: Final = RuleSettings(
    {"threshold": 0.3, "window": 1}, {"threshold": 0.6, "window": 2}, {"threshold, window": TUNED_ON}
)
PAPER_FLY: Final = RuleSettings(
    {"threshold": 0.3, "window": 5},
    {"threshold": 0.3, "window": 5},
    {"threshold, window": "arXiv 2511.22972 (FLy), released configuration: win_len = 6 counts the rejection itself"},
)
DELAYED: Final = _tuned({"paths": 2, "trunk": 0, "branch": 2}, {"length": 2})
PAPER_DELAYED: Final = PolicySettings(
    {"paths": 3, "trunk": 3, "branch": 5},
    {"paths, trunk, branch": "our guess: arXiv 2602.16994 chooses them by a trained selector, 1 to 4 and 0 to 8"},
    {"length": 8},
)
BUNDLE: Final = _tuned(
    {"paths": 1, "trunk": 0, "branch": 1}, {"length": 2}, other_sources={"trunk": "the paths part at the root"}
)
PAPER_BUNDLE: Final = PolicySettings(
    {"paths": 3, "trunk": 0, "branch": 8},
    {
        "paths, branch": "arXiv 2602.16961 (GBV): K = 3 was fastest; its released example has L = 8",
        "trunk": "the paths part at the root",
    },
    {"length": 8},
)
FREE: Final = "our guess: the paper leaves it open"
PAPER_CHAIN: Final = PolicySettings({"length": 5}, {"length": f"{FREE} (gamma)"})
PAPER_LONG_CHAIN: Final = PolicySettings(
    {"length": 15}, {"length": "arXiv 2511.22972 (FLy), released configuration: spd_k = 15"}
)
PAPER_TREE: Final = PolicySettings(
    {"depth": 5, "top_k": 10, "total_tokens": 59},
    {
        "top_k, total_tokens": "arXiv 2406.16858 (EAGLE-2): 60 nodes with the root, 10 a level",
        "depth": "arXiv 2410.03355 (LANTERN), released code: 5 levels (its depth is 4); EAGLE's own code has "
        "up to 8 (its depth is 7)",
    },
)
EAGLE_TREE: Final = PolicySettings(
    {"depth": 8, "top_k": 10, "total_tokens": 59},
    {
        "depth": "EAGLE's released code: its depth is 7, which does not count the first level",
        "top_k, total_tokens": "EAGLE's released code: top_k 10, total_token 60, which counts the root",
    },
)
PAPER_STATIC: Final = PolicySettings(
    {"widths": (8, 16, 14, 11, 8)},
    {"widths": "arXiv 2502.06352 (LANTERN++): 57 nodes in 5 levels; which nodes have children is our guess"},
)
PAPER_JUDGED_TREE: Final = PolicySettings(
    {"widths": (2, 4, 8, 16)},
    {"widths": "our guess: the abstract says 'different tree architectures'; 30 nodes in 4 levels, each twice as wide"},
)
PAPER_PLANNED: Final = PolicySettings(
    {**RANKED, "max_depth": 10},
    {
        "acceptance": BY_RANK,
        "size and depth": "arXiv 2402.12374 (Sequoia): those of most tokens a millisecond on the measured cost curve",
        "max_depth": "our guess: a bound that leaves the choice to the cost curve",
    },
    {**RANKED_AT_ZERO, "max_depth": 10},
)
PAPER_OPT: Final = PolicySettings(
    {"total_tokens": 50, "threshold": 0.7, "max_depth": 10},
    {"total_tokens, threshold, max_depth": "arXiv 2406.17276 (OPT-Tree), released demo"},
)
UNPUBLISHED: Final = "our guess: not published, and no code was released"
PAPER_ADAPTIVE: Final = PolicySettings(
    {"start_depth": 4, "max_depth": 8, "start_width": 6, "max_width": 10, "total_tokens": 59},
    {
        "total_tokens": "arXiv 2410.03355 (LANTERN), released code, which ADT-Tree's repository is a fork of",
        "beta, step_depth, step_width, start_depth, max_depth, start_width, max_width": UNPUBLISHED,
    },
)
SCALED: Final = "scaled to the codebook, k * V / 16384"
PAPER_LANTERN: Final = RuleSettings(
    {"delta": 0.1, "residual": "paper"},
    {"delta": 0.1},
    {"k": f"arXiv 2410.03355, released code: 1,000 of 16,384 codes, {SCALED}", "delta": "the same code's default"},
    MOST_PUBLISHED_K,
)
PAPER_RELATIVE: Final = RuleSettings(
    {"factor": 5.0, "residual": "paper"},
    {"factor": 5.0},
    {
        "k": f"arXiv 2502.06352, released script: 10 of 8,192 codes, which is 20 of 16,384, {SCALED}",
        "factor": "the same script (Lumina-mGPT, k = 10: lambda = 5)",
    },
    20,
)
OURS: Final = PolicySettings(sources={"all": "our own method: there is no paper"})
ROOFLINE: Final = PolicySettings({"max_depth": 6}, {"max_depth": TUNED_ON}, NONE)
PLAIN: Final = RuleSettings()
VVS: Final = "arXiv 2511.13587 (VVS)"
SKIPPING: Final = _tuned(
    {"every": 6, "longest": 2}, other_sources={"schedule": f"{EARLIER}; skipping by similarity was no faster"}
)
PAPER_SKIPPING: Final = PolicySettings(
    {"every": 4, "longest": 5},
    {
        "every": f"{VVS}: i = 4 in the table of results; the released script has 5",
        "schedule": f"{VVS}: the uniform one; schedule=similarity is the other",
        "threshold": f"{VVS}: 0.65 to 0.70; its code has 0.70",
        "decay": f"{VVS}, released code",
        "longest": f"{VVS}: the path or the mean number accepted, the shorter one; 5 is the whole path",
    },
)
