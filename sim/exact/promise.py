"""Check that a third-party rule is as lossless as it promises; tests check the project's own rules."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from underpaint.algos.accept import RULES
from underpaint.sim.exact.rule_report import ExactReport, exact_report

_TOLERANCE: Final = 1e-9
"""Tolerance of the total variation for rounding."""
_MODELS: Final = ("far", "peaked")
_HOUSE: Final = "underpaint.algos."


def keeps_promise(report: ExactReport) -> bool | None:
    """Whether a rule keeps its promise on the model of `report`: to be lossless, or to bound the next token's bias.

    Returns None if it promises neither, and for the bounds of greedy rules.
    """
    if RULES[report.rule].is_lossless(report.settings):
        return report.total_variation <= _TOLERANCE
    return None if report.beyond_bound is None else report.beyond_bound <= _TOLERANCE


def check_promise(rule: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a plug-in rule promises to be lossless at these settings, but is not. The rule is enumerated
    on two small synthetic models; results are cached by its settings.
    """
    spec = RULES[rule]
    if spec.make.__module__.startswith(_HOUSE) or not spec.is_lossless(settings):
        return
    worst = _total_variation(rule, json.dumps(dict(settings), sort_keys=True))
    if worst > _TOLERANCE:
        raise ValueError(
            f"rule '{rule}' promises to be lossless and is not: its pictures are {worst:.3g} in total variation from "
            f"the target's, on a small synthetic model (`underpaint exact {rule}`); mend the rule, or its promise"
        )


@lru_cache(maxsize=64)
def _total_variation(rule: str, settings: str) -> float:
    """The largest total variation over the models."""
    return max(exact_report(rule, model, settings=json.loads(settings)).total_variation for model in _MODELS)
