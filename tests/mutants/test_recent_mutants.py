"""Planted bugs in the rules of 2025 and 2026: each fails a check that the real rule passes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.exact.recent_rules import CHECKS
from tests.mutants.harness import Plant, around, check_is_caught, replaced
from underpaint.algos.accept.block import judge_chain
from underpaint.algos.accept.fly import top_entropy
from underpaint.algos.accept.relaxed import Odds
from underpaint.algos.accept.typical import entropy

ENSEMBLE, FLY, HSD, SJD_SV = "accept/ensemble.py", "accept/fly.py", "accept/hsd.py", "accept/sjd_sv.py"
GBV, WINDOW = "accept/gbv.py", "spatial/jacobi.py"


def window_of(change: int) -> Plant:
    """Another number of drafts that must be kept behind a rejection."""
    return around(
        "DeferredWindow",
        "forgives",
        lambda right, deferred, *args: right(dataclasses.replace(deferred, window=deferred.window + change), *args),
    )


def at_the_next_place(right: Any, deferred: Any, node: int, tree: Any, row: Any, last: int, is_kept: Any) -> bool:
    return bool(right(deferred, node, tree, row, last, lambda later: is_kept(min(last, later + 1))))


def whatever_the_target_says(right: Any, deferred: Any, node: int, tree: Any, row: Any, *args: Any) -> bool:
    lifted = np.where(np.arange(row.size) == tree.tokens[node], np.maximum(row, 1e-9), row)
    return bool(right(deferred, node, tree, lifted, *args))


def swapped(right: Any, mixed: Any, target: Any, draft: Any, token: int, place: int) -> Odds:
    return Odds(float(draft[token]) + (1.0 - mixed.weight) * float(target[token] - draft[token]), float(draft[token]))


def judged(wrong: Any) -> Plant:
    return around("SubsequenceVerification", "judged_from", wrong)


def redrawn(wrong: Callable[..., Any]) -> Plant:
    """Another way to draft a cell anew, given the right one."""

    def plant(module: Any) -> None:
        right = module._redrawn
        module._redrawn = lambda *args: wrong(module, right, *args)

    return plant


def under_its_old_score(module: Any, right: Any, draft: Any, new: Any, *args: Any) -> Any:
    again = right(draft, new, *args)
    return again._replace(distribution=draft.distribution) if again.token == draft.token else again


def old_over_new(module: Any, right: Any, draft: Any, new: Any, cell: int, chance: Any, window: Any, noise: Any) -> Any:
    before, now = draft.distribution[draft.token], new[draft.token]
    if before > window.confidence * now:
        return module.WindowDraft(draft.token, new)
    return module._drawn(new, cell, chance, noise)


def forgets_what_ranks_lower(right: Any, ranking: Any, *args: Any) -> None:
    right(ranking, *args)
    ranking.below = 0.0


def longer(ranking: Any) -> Any:
    return dataclasses.replace(ranking, paths=ranking.paths + 1)


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
            lambda right, mixed, *args: right(mixed._replace(weight=mixed.weight**2), *args),
        ),
    ),
    "fly: the rejection counts as one of its window": (FLY, window_of(-1)),
    "fly: a window too long": (FLY, window_of(1)),
    "fly: the window begins a draft late": (FLY, around("DeferredWindow", "forgives", at_the_next_place)),
    "fly: nothing is forgiven": (FLY, around("DeferredWindow", "forgives", lambda *args: False)),
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
        judged(lambda right, rule, *args: right(dataclasses.replace(rule, share=max(1e-9, 1.0 - rule.share)), *args)),
    ),
    "sjd-sv: a rejection draws from the target": (SJD_SV, replaced("excess", lambda target, draft: target)),
    "sjd++: a kept draft has its old score": (WINDOW, redrawn(under_its_old_score)),
    "sjd++: old over new": (WINDOW, redrawn(old_over_new)),
    "sjd++: every draft is drawn anew": (
        WINDOW,
        redrawn(lambda module, right, draft, new, cell, chance, *_: module._drawn(new, cell, chance, None)),
    ),
    "sjd++: every draft stays": (
        WINDOW,
        redrawn(lambda module, right, draft, new, *args: module.WindowDraft(draft.token, new)),
    ),
    "gbv: the best path counts as drawn from q": (
        GBV,
        around("Ranking", "skewed", lambda right, ranking, draft, order: draft),
    ),
    "gbv: the law of the worst path": (
        GBV,
        around("Ranking", "skewed", lambda right, ranking, draft, order: right(ranking, draft, order[::-1])),
    ),
    "gbv: the prefix is forgotten": (GBV, around("Ranking", "follow", lambda *args: None)),
    "gbv: paths that rank lower are forgotten": (GBV, around("Ranking", "follow", forgets_what_ranks_lower)),
    "gbv: a path too many": (
        GBV,
        around("Ranking", "skewed", lambda right, ranking, *args: right(longer(ranking), *args)),
    ),
    "gbv: q over p": (GBV, replaced("by_ratio", lambda target, draft: np.argsort(draft / target, kind="stable"))),
    "hsd: always capped": (HSD, replaced("judge_chain", lambda *args, capped: judge_chain(*args, capped=True))),
    "hsd: never capped": (HSD, replaced("judge_chain", lambda *args, capped: judge_chain(*args, capped=False))),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_bug_is_caught(bug: str) -> None:
    name, plant = PLANTED[bug]
    check_is_caught(CHECKS[name], name, plant)
