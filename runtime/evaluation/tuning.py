"""Which settings of a sweep to take: of each method the fastest whose pictures are not worse than plain decoding's."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from underpaint.runtime.evaluation.pareto import Variant
from underpaint.runtime.evaluation.report import ReportRow


def fastest_settings(rows: Sequence[ReportRow], asked: Sequence[Variant]) -> dict[str, Variant]:
    """By method the fastest variant of those with settings; a method none of whose variants will do is left out.

    A lossless one always will. Another will where the judge does not read its pictures worse than plain decoding's
    beyond the noise: the 95 % interval of the difference of log-probabilities, if there is one, reaches 0. Without a
    judge the interval of the target's log-likelihood less plain decoding's must hold 0. With few
    pictures the interval is wide, so what is chosen is to be reported on other prompts, and more of them.
    """
    found: dict[str, tuple[float, Variant]] = {}
    known = {one.label: one for one in asked}
    for row in rows:
        one, high = known[row.method], row.attribute_log_probability_over_ar_high
        low = None if high is not None else row.log_likelihood_over_ar_low
        high = row.log_likelihood_over_ar_high if high is None else high
        worse = not row.lossless and ((high is not None and high < 0.0) or (low is not None and low > 0.0))
        if one.settings and not worse and row.speedup > found.get(one.method, (0.0, one))[0]:
            found[one.method] = (row.speedup, one)
    return {method: one for method, (_, one) in found.items()}


def as_options(chosen: dict[str, Variant]) -> str:
    """The settings as `--set` options of `compare`, quoted for a shell; empty where nothing was chosen."""
    texts = (f"{method}.{setting}" for method, one in chosen.items() for setting in one.settings)
    return " ".join(f"--set {shlex.quote(text)}" for text in texts)
