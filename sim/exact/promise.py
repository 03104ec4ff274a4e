"""Is a rule from outside as lossless as it promises? The project's own rules are held to that by its tests."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from underpaint.algos.accept import RULES
from underpaint.sim.exact.rule_report import ExactReport, exact_report

KEPT: Final = 1e-9
"""Total variation that rounding may leave."""
_MODELS: Final = ("far", "peaked")
_HOUSE: Final = "underpaint.algos."


def keeps_promise(report: ExactReport) -> bool | None:
    """Whether a rule keeps its promise on the model of `report`: to be lossless, or the bound of the next token.

    None where it promises neither, and for the bounds of greedy rules.
    """
    if RULES[report.rule].is_lossless(report.settings):
        return report.total_variation <= KEPT
    return None if report.beyond_bound is None else report.beyond_bound <= KEPT


def check_promise(rule: str, settings: Mapping[str, Any]) -> None:
    """ValueError where a plug-in's rule promises to be lossless at these settings, and is not.

    It is enumerated on two small synthetic models, once for each setting.
    """
    spec = RULES[rule]
    if spec.make.__module__.startswith(_HOUSE) or not spec.is_lossless(settings):
        return
    worst = _total_variation(rule, json.dumps(dict(settings), sort_keys=True))
    if worst > KEPT:
        raise ValueError(
            f"rule '{rule}' promises to be lossless and is not: its pictures are {worst:.3g} in total variation from "
            f"the target's, on a small synthetic model (`underpaint exact {rule}`); mend the rule, or its promise"
        )


@lru_cache(maxsize=64)
def _total_variation(rule: str, settings: str) -> float:
    """The largest over the models."""
    return max(exact_report(rule, model, settings=json.loads(settings)).total_variation for model in _MODELS)
