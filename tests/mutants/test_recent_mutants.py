"""Planted bugs in the rules of 2025 and 2026: each fails a check that the real rule passes."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.exact.recent_rules import CHECKS
from tests.mutants.harness import Plant, around, caught, load
from underpaint.algos.accept.block import judge_chain
from underpaint.algos.accept.fly import top_entropy
from underpaint.algos.accept.relaxed import Odds
from underpaint.algos.accept.typical import entropy


def replaced(name: str, wrong: Any) -> Plant:
    """Plant another function of the module."""
    return lambda module: setattr(module, name, wrong)


ENSEMBLE, FLY, HSD, SJD_SV = "accept/ensemble.py", "accept/fly.py", "accept/hsd.py", "accept/sjd_sv.py"


def window_of(change: int) -> Plant:
    """Another number of drafts that must be kept behind a rejection."""
    return around(
        "DeferredWindow",
        "forgives",
        lambda right, known, *asked: right(dataclasses.replace(known, window=known.window + change), *asked),
    )


def at_the_next_place(right: Any, known: Any, node: int, tree: Any, row: Any, last: int, is_kept: Any) -> bool:
    return bool(right(known, node, tree, row, last, lambda later: is_kept(min(last, later + 1))))


def whatever_the_target_says(right: Any, known: Any, node: int, tree: Any, row: Any, *asked: Any) -> bool:
    lifted = np.where(np.arange(row.size) == tree.tokens[node], np.maximum(row, 1e-9), row)
    return bool(right(known, node, tree, lifted, *asked))


def swapped(right: Any, mixed: Any, target: Any, draft: Any, token: int, place: int) -> Odds:
    return Odds(float(draft[token]) + (1.0 - mixed.weight) * float(target[token] - draft[token]), float(draft[token]))


def judged(wrong: Any) -> Plant:
    return around("SubsequenceVerification", "judged_from", wrong)


PLANTED: dict[str, tuple[str, Plant]] = {
    "ensemble: the weight is the drafter's": (ENSEMBLE, around("MixedAcceptance", "odds", swapped)),
    "ensemble: judged by the target alone": (
        ENSEMBLE,
        around("MixedAcceptance", "odds", lambda right, mixed, p, q, x, at: Odds(float(p[x]), float(q[x]))),
    ),
    "ensemble: a rejection takes the mixture": (
        ENSEMBLE,
        around("MixedAcceptance", "taken", lambda right, mixed, p, q, at: mixed.weight * p + (1 - mixed.weight) * q),
    ),
    "ensemble: a rejection takes nothing": (
        ENSEMBLE,
        around("MixedAcceptance", "taken", lambda right, mixed, p, q, at: 0.0 * q),
    ),
    "ensemble: the weight is squared": (
        ENSEMBLE,
        around(
            "MixedAcceptance",
            "odds",
            lambda right, mixed, *asked: right(mixed._replace(weight=mixed.weight**2), *asked),
        ),
    ),
    "fly: the rejection counts as one of its window": (FLY, window_of(-1)),
    "fly: a window too long": (FLY, window_of(1)),
    "fly: the window begins a draft late": (FLY, around("DeferredWindow", "forgives", at_the_next_place)),
    "fly: nothing is forgiven": (FLY, around("DeferredWindow", "forgives", lambda *asked: False)),
    "fly: a draft that the target rules out stays": (
        FLY,
        around("DeferredWindow", "forgives", whatever_the_target_says),
    ),
    "fly: the entropy of all tokens": (FLY, replaced("top_entropy", lambda row, top: entropy(row))),
    "fly: the entropy in bits": (FLY, replaced("top_entropy", lambda row, top: top_entropy(row, top) / np.log(2.0))),
    "sjd-sv: the whole run is judged": (SJD_SV, judged(lambda right, rule, likely, start, end: start)),
    "sjd-sv: the last draft alone is judged": (SJD_SV, judged(lambda right, rule, likely, start, end: end)),
    "sjd-sv: the share is of what stays unjudged": (
        SJD_SV,
        judged(lambda right, rule, *asked: right(dataclasses.replace(rule, share=max(1e-9, 1.0 - rule.share)), *asked)),
    ),
    "sjd-sv: a rejection draws from the target": (SJD_SV, replaced("excess", lambda target, draft: target)),
    "hsd: always capped": (HSD, replaced("judge_chain", lambda *asked, capped: judge_chain(*asked, capped=True))),
    "hsd: never capped": (HSD, replaced("judge_chain", lambda *asked, capped: judge_chain(*asked, capped=False))),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_bug_is_caught(bug: str) -> None:
    name, plant = PLANTED[bug]
    module = load(name)
    plant(module)
    with caught():
        CHECKS[name](module)
