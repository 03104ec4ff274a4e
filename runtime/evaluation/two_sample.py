"""A classifier two-sample test: can a small network tell a method's pictures from plain autoregression's?

The network ranks held-out pictures by how likely they are the method's. The area under its curve (AUC) is 0.5 if the
sets cannot be told apart, as for a lossless method, and 1 if every picture can (Lopez-Paz and Oquab, arXiv 1610.06545).
Both pictures of a prompt are in the same half, and a network trained on one half judges the other. So every picture
counts, and no network judges a picture that it was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.runtime.evaluation.paired import FigureInterval, interval_ends, resampled

LEAST_PROMPTS: Final = 8
"""Smallest number of prompts: with fewer, a half is too small to train on."""


@dataclass(frozen=True, slots=True)
class ClassifierSettings:
    """A network with one hidden layer, and its training: full batches, Adam, weight decay."""

    hidden: int = 24
    steps: int = 150
    rate: float = 0.02
    decay: float = 0.03
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.hidden, self.steps) < 1 or self.rate <= 0 or self.decay < 0:
            raise ValueError(f"classifier: expected hidden, steps >= 1, rate > 0 and decay >= 0, got {self}")


def area_under_curve(negative: FloatArray, positive: FloatArray) -> float:
    """Share of pairs (one of each) in which the positive scores higher; ties count half (Mann and Whitney)."""
    if negative.ndim != 1 or positive.ndim != 1 or not negative.size or not positive.size:
        raise ValueError(f"AUC: expected scores [n] and [m], got shapes {negative.shape} and {positive.shape}")
    order = np.sort(negative)
    below = np.searchsorted(order, positive, side="left") + np.searchsorted(order, positive, side="right")
    return float(below.mean() / (2 * negative.size))


def has_features(height: int, width: int) -> bool:
    """Whether `picture_features` accepts pictures of this size."""
    return height == width and height % 16 == 0


def picture_features(pictures: FloatArray) -> FloatArray:
    """The network's inputs [n, features] float64 for pictures uint8 or float [n, S, S, 3], 0 to 255.

    They are the mean colours of 8 x 8 squares and, for each octave of brightness down to those squares, the mean
    absolute detail that halving removes, over the squares of a 4 x 4 grid. They show where colours are and how much
    detail of each scale there is. S must be a multiple of 16.
    """
    if pictures.ndim != 4 or pictures.shape[3] != 3 or not has_features(*pictures.shape[1:3]):
        raise ValueError(f"features: expected pictures [n, S, S, 3], S a multiple of 16, got {pictures.shape}")
    count, size = pictures.shape[:2]
    unit = pictures.astype(np.float64) / 255
    parts = [_means(unit, 8).reshape(count, -1)]
    bright = unit.mean(axis=3, keepdims=True)
    while size > 8 and size % 2 == 0:
        coarse = _means(bright, size // 2)
        detail = np.abs(bright - coarse.repeat(2, axis=1).repeat(2, axis=2))
        parts.append(_means(detail, 4).reshape(count, -1))
        bright, size = coarse, size // 2
    return np.concatenate(parts, axis=1)


def _means(planes: FloatArray, side: int) -> FloatArray:
    """Means over squares: [n, S, S, C] to [n, side, side, C]."""
    count, size, _, channels = planes.shape
    step = size // side
    means: FloatArray = planes.reshape(count, side, step, side, step, channels).mean(axis=(2, 4))
    return means


def two_sample_test(
    baseline: FloatArray, method: FloatArray, settings: ClassifierSettings | None = None
) -> FigureInterval:
    """Test how well a network separates two sets of pictures, on prompts that it was not trained on.

    Args:
        baseline: Features [prompts, F] or [prompts, seeds, F], as from `picture_features`; row i belongs to prompt i.
        method: The same for the method, on the same prompts and seeds.
        settings: Settings of the network.

    Returns:
        The held-out AUC, with a bootstrap interval over prompts.

    Raises ValueError if shapes differ, numbers are not finite, or there are fewer than eight prompts.
    """
    settings = settings or ClassifierSettings()
    if baseline.shape != method.shape or baseline.ndim not in (2, 3) or len(baseline) < LEAST_PROMPTS:
        raise ValueError(
            f"two-sample test: expected two of [prompts, F] or [prompts, seeds, F] with {LEAST_PROMPTS} prompts or "
            f"more, got {baseline.shape} and {method.shape}"
        )
    if not (np.all(np.isfinite(baseline)) and np.all(np.isfinite(method))):
        raise ValueError("two-sample test: expected finite features, got NaN or infinity")
    prompts, width = len(baseline), baseline.shape[-1]
    base, method_features = (side.reshape(prompts, -1, width) for side in (baseline, method))
    place = np.random.default_rng([settings.seed, prompts]).permutation(prompts)
    scores = np.empty((2, prompts, base.shape[1]))
    halves = [place[0::2], place[1::2]]
    for learnt, judged in (halves, halves[::-1]):
        score = _trained(base[learnt].reshape(-1, width), method_features[learnt].reshape(-1, width), settings)
        for side, rows in enumerate((base, method_features)):
            scores[side, judged] = score(rows[judged].reshape(-1, width)).reshape(len(judged), -1)
    auc = float(np.mean([area_under_curve(*scores[:, half].reshape(2, -1)) for half in halves]))
    # A prompt is resampled with all its pictures, within its half: scores of two networks are not comparable.
    areas = []
    for stream, half in enumerate(halves):
        chosen = half[resampled(len(half), stream)]
        areas.append([area_under_curve(scores[0, row].ravel(), scores[1, row].ravel()) for row in chosen])
    return FigureInterval(auc, *interval_ends(np.mean(areas, axis=0)))


class _Network:
    """Two layers on standardised features; the score [n] grows with the likelihood of being the method's."""

    def __init__(self, inputs: FloatArray, settings: ClassifierSettings) -> None:
        random = np.random.default_rng([settings.seed, 1])
        self.mean, self.spread = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
        width = inputs.shape[1]
        self.first = random.normal(0, width**-0.5, (width, settings.hidden))
        self.shift = np.zeros(settings.hidden)
        self.second = random.normal(0, settings.hidden**-0.5, settings.hidden)

    def placed(self, rows: FloatArray) -> FloatArray:
        placed: FloatArray = (rows - self.mean) / self.spread
        return placed

    def __call__(self, rows: FloatArray) -> FloatArray:
        score: FloatArray = np.tanh(self.placed(rows) @ self.first + self.shift) @ self.second
        return score

    def gradients(self, placed: FloatArray, labels: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Gradients of the mean logistic loss for labels 0 or 1."""
        hidden = np.tanh(placed @ self.first + self.shift)
        slope = (1 / (1 + np.exp(-hidden @ self.second)) - labels) / len(placed)
        back = slope[:, None] * self.second * (1 - hidden**2)
        return placed.T @ back, back.sum(axis=0), hidden.T @ slope


def _trained(baseline: FloatArray, method: FloatArray, settings: ClassifierSettings) -> _Network:
    rows = np.concatenate([baseline, method])
    labels = np.repeat([0.0, 1.0], len(baseline))
    network = _Network(rows, settings)
    placed = network.placed(rows)
    weights = [network.first, network.shift, network.second]
    means, squares = [[np.zeros_like(weight) for weight in weights] for _ in range(2)]
    for step in range(1, settings.steps + 1):
        for number, gradient in enumerate(network.gradients(placed, labels)):
            means[number] += 0.1 * (gradient - means[number])
            squares[number] += 0.01 * (gradient**2 - squares[number])
            update = (means[number] / (1 - 0.9**step)) / (np.sqrt(squares[number] / (1 - 0.99**step)) + 1e-8)
            weights[number] -= settings.rate * (update + settings.decay * weights[number])
    return network
