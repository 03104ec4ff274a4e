"""Paired comparison of a method's figures with the baseline's, on the same prompts and seeds.

The judge's accuracy is 0 or 1 per picture, so small losses disappear in its noise. The mean log-probability that the
judge gives to a prompt's attributes changes with every picture. Both are compared in pairs, with bootstrap intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray

RESAMPLES: Final = 4000
INTERVAL: Final = 0.95
_BOOTSTRAP_SEED: Final = 7


class FigureInterval(NamedTuple):
    """A figure with the ends of its 95 % interval (None below two prompts or pairs)."""

    value: float
    low: float | None
    high: float | None

    def named(self, name: str) -> dict[str, float | None]:
        """The figure and its interval with the names of `ReportRow` and JSON: `name`, `name_low` and `name_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def paired_difference(baseline: FloatArray | BoolArray, method: FloatArray | BoolArray) -> FigureInterval:
    """The method's mean figure minus the baseline's, with a 95 % bootstrap percentile interval over prompts.

    Both arrays are [seeds, prompts], paired; a prompt is resampled with all of its seeds. Raises ValueError if the
    shapes differ or a figure is not finite.
    """
    if baseline.shape != method.shape or baseline.ndim != 2 or baseline.size == 0:
        raise ValueError(f"paired figures: expected two of [seeds, prompts], got {baseline.shape} and {method.shape}")
    apart = (method.astype(np.float64) - baseline).mean(axis=0)
    if not np.all(np.isfinite(apart)):
        raise ValueError("paired figures: expected finite numbers, got NaN or infinity; check the pictures behind them")
    mean = float(apart.mean())
    if apart.size < 2:
        return FigureInterval(mean, None, None)
    return FigureInterval(mean, *interval_ends(apart[resampled(apart.size)].mean(axis=1)))


def speedup(baseline: Sequence[float], method: Sequence[float]) -> FigureInterval:
    """The ratio of summed seconds of paired images, with a 95 % bootstrap percentile interval over the pairs."""
    base, method_seconds = np.asarray(baseline, dtype=np.float64), np.asarray(method, dtype=np.float64)
    ratio = float(base.sum() / method_seconds.sum())
    if base.size < 2:
        return FigureInterval(ratio, None, None)
    chosen = resampled(base.size)
    return FigureInterval(ratio, *interval_ends(base[chosen].sum(axis=1) / method_seconds[chosen].sum(axis=1)))


def resampled(count: int, stream: int = 0) -> IntArray:
    """Indices [RESAMPLES, count] drawn with replacement, the same every time; other streams are independent."""
    seed = [_BOOTSTRAP_SEED, stream] if stream else _BOOTSTRAP_SEED
    return np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))


def interval_ends(figures: FloatArray) -> tuple[float, float]:
    """The percentiles that enclose the share `INTERVAL` of bootstrap figures."""
    low, high = np.quantile(figures, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    return float(low), float(high)


def attribute_log_probability(scores: Mapping[str, FloatArray], classes: Mapping[str, int]) -> FloatArray:
    """The judge's mean log-probability of a prompt's attributes, in nats: [pictures], each <= 0.

    Args:
        scores: Per slot, class scores (logits) [pictures, classes].
        classes: Per slot, the class that the prompt names. Slots that it leaves out are not read.

    Raises:
        ValueError: `classes` is empty, or names a slot without scores or a class that the slot lacks.
    """
    if not classes or not classes.keys() <= scores.keys():
        raise ValueError(f"attributes: expected some of {', '.join(scores)}, got {', '.join(classes) or 'none'}")
    parts = []
    for slot, number in classes.items():
        logits = np.asarray(scores[slot], np.float64)
        if logits.ndim != 2 or not 0 <= number < logits.shape[1]:
            raise ValueError(f"attribute {slot}: expected a class of scores [pictures, classes], got {number}")
        top = logits.max(axis=1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
        parts.append(logits[:, number] - total)
    mean: FloatArray = np.mean(parts, axis=0, dtype=np.float64)
    return mean
