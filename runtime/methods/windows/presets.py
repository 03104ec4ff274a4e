"""The methods that draft in Jacobi windows along the raster, without a drafter, with their settings by preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow
from underpaint.runtime.methods.method_config import MethodSpec, Preset
from underpaint.runtime.methods.registry import METHODS
from underpaint.runtime.methods.windows.method import JacobiConfig

_SJD: Final = "arXiv 2410.01699 (SJD)"
_SCD: Final = "arXiv 2510.24211 (SCD)"
_GSD: Final = "arXiv 2508.07747 (GSD)"
_PAC: Final = "arXiv 2603.18599 (SJD-PAC)"
_MEASURED: Final = "measured on earlier models (git show cd40511:docs/results/settings.md)"


def _windows(
    name: str, summary: str, tuned: JacobiConfig, paper: JacobiConfig, sources: Mapping[str, str]
) -> MethodSpec:
    tree = ("candidates", "levels") if tuned.window.candidates > 1 else ()
    measured = dict.fromkeys(("window", "refill", *tree, *tuned.rule_settings), _MEASURED)
    return MethodSpec(name, summary, Preset(tuned, tuned, measured), Preset(paper, paper, sources))


def _coupled(coupling: Coupling, words: str) -> MethodSpec:
    return _windows(
        f"scd-{coupling}",
        f"SCD: a Jacobi window whose drafts are {words} with those that stood there",
        JacobiConfig(JacobiWindow(12, coupling, "left")),
        JacobiConfig(JacobiWindow(31, coupling, "random", last_row=True)),
        {
            "window": f"{_SCD}, released code's test default: 32 with the committed token; the paper's runs have 64",
            "refill, last_row": f"{_SCD}, released code",
        },
    )


_LOOKUP: Final = JacobiConfig(JacobiWindow(8, "maximal", "lookup", passes=True, beside=0.85, last_row=True))
_LOOKUP_SOURCES: Final = {
    "window": "measured: on 8 prompts apart from those reported (docs/explanation/scenes.md)",
    "beside": _MEASURED,
    "all": "our own method: there is no paper, both presets are the same",
}

for _spec in (
    _windows(
        "sjd",
        "SJD: a Jacobi window, judged by the distributions of the pass before and drafted anew behind a rejection",
        JacobiConfig(JacobiWindow(12, "independent", "above")),
        JacobiConfig(JacobiWindow(15, "independent", "random", last_row=True)),
        {
            "window": f"{_SJD}, released code: 16 with the committed token",
            "refill": f"{_SJD}, released code: a random token; copies of the left cell are an option",
            "last_row": f"{_SJD}, released code",
        },
    ),
    _coupled("maximal", "coupled maximally"),
    _coupled("gumbel", "raced by the same noise"),
    _windows(
        "sjd-pac",
        "SJD-PAC: a maximally coupled Jacobi window, with candidates beside the drafts of its first cells",
        JacobiConfig(JacobiWindow(16, "maximal", "left", candidates=2, levels=1), "without_replacement"),
        JacobiConfig(JacobiWindow(45, "maximal", "uniform", candidates=4, levels=2), "without_replacement"),
        {
            "coupling": f"{_PAC}: adaptive continuation keeps what a maximal coupling keeps",
            "candidates, levels": f"{_PAC}: K x D = 4 x 3, the root's level counted; the released code has 3 x 3",
            "window": f"{_PAC}: L = 64 positions a pass, of which the tree of candidates takes 21",
            "refill": f"{_PAC}, released code: a random token",
            "rule": f"{_PAC}: candidates without replacement; its code takes the longest path, which is not lossless",
        },
    ),
    MethodSpec(
        "jacobi-lookup",
        "a coupled Jacobi window whose drafts are drawn from what the target said beside the same tokens before",
        *(Preset(_LOOKUP, _LOOKUP, sources) for sources in (_LOOKUP_SOURCES, _LOOKUP_SOURCES)),
    ),
    _windows(
        "gsd",
        "GSD: a Jacobi window, a token judged together with codes of like probability and like look",
        JacobiConfig(JacobiWindow(12, "independent", "left"), "gsd", {"group": 14}),
        JacobiConfig(JacobiWindow(15, "independent", "random", last_row=True), "gsd", {"group": 25}),
        {
            "window, refill, last_row": f"{_GSD}, released code, which changes SJD's acceptance alone",
            "group": f"{_GSD}: G = 25 on COCO",
            "gap, distance": f"{_GSD}, released code; it measures in the language model's embeddings",
        },
    ),
):
    METHODS.register(_spec)
