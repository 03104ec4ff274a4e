"""Figures of sets of features: FID from moments that merge, KID, the Inception score, precision and recall."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray
from underpaint.artifacts.arrays import ArrayFile, ArrayForm

KID_SUBSETS: Final = 100
KID_SIZE: Final = 1000
NEIGHBOURS: Final = 3
_ROWS: Final = 1024
"""Rows of distances held at a time."""


@dataclass(frozen=True, slots=True)
class Moments:
    """What FID takes of a set of features: how many, their mean [F], and their scatter [F, F].

    The scatter is the sum of outer products of what lies beside the mean. Moments of parts merge into those of the
    whole, so parts may be counted on different machines.
    """

    count: int
    mean: FloatArray
    scatter: FloatArray

    @classmethod
    def of(cls, features: FloatArray) -> Moments:
        """Of features [n >= 1, F]."""
        if features.ndim != 2 or features.shape[0] < 1 or not np.all(np.isfinite(features)):
            raise ValueError(f"moments: expected finite features [n >= 1, F], got shape {features.shape}")
        mean = features.mean(axis=0, dtype=np.float64)
        beside = features - mean
        return cls(features.shape[0], mean, beside.T @ beside)

    @classmethod
    def merged(cls, parts: Iterable[Moments]) -> Moments:
        """Of the whole; ValueError without parts, or with parts of several widths."""
        moments = list(parts)
        if not moments or len({part.mean.shape for part in moments}) != 1:
            raise ValueError("moments: expected parts of one width to merge")
        return reduce(_merged, moments)

    @property
    def covariance(self) -> FloatArray:
        """[F, F], unbiased; ValueError of fewer than two."""
        if self.count < 2:
            raise ValueError("moments: a covariance takes two pictures or more")
        return self.scatter / (self.count - 1)


def _merged(one: Moments, other: Moments) -> Moments:
    """Chan, Golub and LeVeque (1979), equation 2.1."""
    count = one.count + other.count
    apart = other.mean - one.mean
    mean = one.mean + apart * (other.count / count)
    between = np.outer(apart, apart) * (one.count * other.count / count)
    return Moments(count, mean, one.scatter + other.scatter + between)


def gaussian_distance(
    mean_a: FloatArray, covariance_a: FloatArray, mean_b: FloatArray, covariance_b: FloatArray
) -> float:
    """Fréchet distance of two Gaussians, means [F] and covariances [F, F]: arXiv 1706.08500, equation 6.

    Raises ValueError where the widths differ.
    """
    if mean_a.shape != mean_b.shape or covariance_a.shape != covariance_b.shape:
        raise ValueError(f"Fréchet distance: features of {mean_a.size} and {mean_b.size} numbers; use one network")
    apart = mean_a - mean_b
    # (C_a C_b)^(1/2) has the trace of (C_a^(1/2) C_b C_a^(1/2))^(1/2), which is symmetric.
    values, vectors = np.linalg.eigh(covariance_a)
    root = (vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T
    between = np.sqrt(np.clip(np.linalg.eigvalsh(root @ covariance_b @ root), 0.0, None)).sum()
    return max(0.0, float(apart @ apart + np.trace(covariance_a) + np.trace(covariance_b) - 2.0 * between))


def fid(ours: Moments, theirs: Moments | AdmReference) -> float:
    """The Fréchet distance of the Gaussians of two sets of features."""
    return gaussian_distance(ours.mean, ours.covariance, theirs.mean, theirs.covariance)


class AdmReference(NamedTuple):
    """ADM's statistics of real pictures: mean [F] and covariance [F, F] of Inception's features."""

    mean: FloatArray
    covariance: FloatArray


def read_adm_reference(path: Path) -> AdmReference:
    """A reference batch of ADM's (.npz with mu and sigma). Raises ValueError where it is none."""
    try:
        with ArrayFile(path) as arrays:
            mean, covariance = (
                arrays.read(name, ArrayForm(dimensions=dimensions)).astype(np.float64)
                for name, dimensions in (("mu", 1), ("sigma", 2))
            )
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected ADM's reference batch, an .npz with mu and sigma ({error})") from error
    if mean.ndim != 1 or covariance.shape != (mean.size, mean.size):
        raise ValueError(f"{path}: expected mu [F] and sigma [F, F], got {mean.shape} and {covariance.shape}")
    return AdmReference(mean, covariance)


class KidFigure(NamedTuple):
    """Mean and standard deviation over subsets."""

    mean: float
    deviation: float


def kid(
    ours: FloatArray, theirs: FloatArray, subsets: int = KID_SUBSETS, size: int = KID_SIZE, seed: int = 0
) -> KidFigure:
    """Kernel Inception distance (arXiv 1801.01401): unbiased MMD^2 of the kernel (x.y / F + 1)^3, over random subsets.

    size: pictures of a subset; the smaller set's number, if that is less. Raises ValueError below two pictures.
    """
    size = min(size, len(ours), len(theirs))
    if size < 2:
        raise ValueError("KID takes two pictures or more of each set")
    rng = np.random.default_rng(seed)
    distances = []
    for _ in range(subsets):
        one = ours[rng.choice(len(ours), size, replace=False)]
        other = theirs[rng.choice(len(theirs), size, replace=False)]
        distances.append(_mmd(one, other))
    return KidFigure(float(np.mean(distances)), float(np.std(distances)))


def _mmd(one: FloatArray, other: FloatArray) -> float:
    def kernel(left: FloatArray, right: FloatArray) -> FloatArray:
        powers: FloatArray = (left @ right.T / left.shape[1] + 1.0) ** 3
        return powers

    def within(features: FloatArray) -> float:
        values = kernel(features, features)
        return float(values.sum() - np.trace(values)) / (len(features) * (len(features) - 1))

    return within(one) + within(other) - 2.0 * float(kernel(one, other).mean())


def inception_score(probabilities: FloatArray, splits: int = 10) -> tuple[float, float]:
    """Inception score (arXiv 1606.03498): mean and deviation over parts of exp of the mean KL to the part's own mean.

    probabilities: [n, classes]. Raises ValueError where there are fewer pictures than parts.
    """
    if len(probabilities) < splits:
        raise ValueError(f"IS in {splits} parts takes as many pictures, got {len(probabilities)}")
    scores = []
    for part in np.array_split(probabilities, splits):
        own = part.mean(axis=0, keepdims=True)
        logs = np.log(np.where(part > 0, part, 1.0)) - np.log(np.where(own > 0, own, 1.0))
        scores.append(float(np.exp((part * logs).sum(axis=1).mean())))
    return float(np.mean(scores)), float(np.std(scores))


class PrecisionRecall(NamedTuple):
    """precision: of our pictures, those within the real ones' manifold; recall: of real ones, those within ours."""

    precision: float
    recall: float


def precision_recall(ours: FloatArray, theirs: FloatArray, neighbours: int = NEIGHBOURS) -> PrecisionRecall:
    """arXiv 1904.06991: a manifold is the balls around its features out to their `neighbours`-th nearest other.

    Raises ValueError where a set has not more than that many.
    """
    if min(len(ours), len(theirs)) <= neighbours:
        raise ValueError(f"precision and recall take more than {neighbours} pictures of each set")
    return PrecisionRecall(
        float(_within(ours, theirs, _radii(theirs, neighbours)).mean()),
        float(_within(theirs, ours, _radii(ours, neighbours)).mean()),
    )


def _squared(left: FloatArray, right: FloatArray) -> FloatArray:
    distances: FloatArray = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None] - 2.0 * left @ right.T
    return np.clip(distances, 0.0, None)


def _radii(features: FloatArray, neighbours: int) -> FloatArray:
    """[n] squared distances to the nearest others but `neighbours` - 1."""
    parts = []
    for start in range(0, len(features), _ROWS):
        rows = _squared(features[start : start + _ROWS], features)
        places = np.arange(len(rows))
        rows[places, start + places] = 0.0
        parts.append(np.partition(rows, neighbours, axis=1)[:, neighbours])
    return np.concatenate(parts)


def _within(features: FloatArray, centres: FloatArray, radii: FloatArray) -> BoolArray:
    parts = [
        (_squared(features[start : start + _ROWS], centres) <= radii).any(axis=1)
        for start in range(0, len(features), _ROWS)
    ]
    return np.concatenate(parts)
