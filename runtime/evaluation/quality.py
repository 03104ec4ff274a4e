"""Picture quality: prompt accuracy by the judge, and the Fréchet distance in the judge's feature space."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray
from underpaint.artifacts.arrays import ArrayFile, ArrayForm
from underpaint.artifacts.strict_json import Within, build_typed
from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS
from underpaint.zoo.textured_prompts import MAIN_ACCURACY, MAIN_SLOTS, TEXTURED_SLOTS

REFERENCE_KIND: Final = "reference"
"""The kind of a file of real scenes in its manifest."""
FLOOR_DRAWS: Final = 32
"""Number of draws of real scenes that a floor averages."""


def reference_name(side: int) -> str:
    """Name of the file of real scenes at `side` px: one for both shipped sides, one for each other side."""
    return "judge_reference" if side in SHIPPED_RESOLUTIONS else f"judge_reference{side}"


class Reading(NamedTuple):
    """The judge's reading of one picture."""

    values: Mapping[str, str]
    """The value of every slot of the grammar."""
    features: FloatArray
    """[F] (160 in the shipped judge)."""
    scores: Mapping[str, FloatArray] = MappingProxyType({})
    """Class scores (logits) [classes] by slot, in the order of the slot's values; empty in older records."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The judge's readings of real scenes, in two halves that share no scene.

    Attributes:
        features_a: Features of the first half, [n >= 2, F], for pictures at one resolution.
        features_b: Features of the second half, [m >= 2, F], at the same resolution.
        accuracy: The share of fresh real scenes that the judge reads correctly, per slot and for `MAIN_ACCURACY`.
    """

    features_a: FloatArray
    features_b: FloatArray
    accuracy: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, features in (("features_a", self.features_a), ("features_b", self.features_b)):
            if features.ndim != 2 or features.shape[0] < 2 or not np.all(np.isfinite(features)):
                raise ValueError(f"reference {name}: expected finite [n >= 2, F], got shape {features.shape}")
        if self.features_a.shape[1] != self.features_b.shape[1]:
            raise ValueError(
                f"reference: the halves differ in width, {self.features_a.shape[1]} and {self.features_b.shape[1]}"
            )


@dataclass(frozen=True, slots=True)
class _AccuracyBySide:
    """The judge's accuracy by side in pixels and by slot, as stored in a reference file."""

    accuracy: Mapping[str, Mapping[str, Annotated[float, Within(0.0, 1.0)]]]


def reference_arrays(sides: Mapping[int, Reference]) -> dict[str, Any]:
    """The arrays of a reference file (see `load_reference`), for `numpy.savez_compressed`."""
    arrays: dict[str, Any] = {}
    for side, one in sides.items():
        arrays[f"features_a_{side}"] = one.features_a.astype(np.float32)
        arrays[f"features_b_{side}"] = one.features_b.astype(np.float32)
    arrays["accuracy"] = np.array(json.dumps({str(side): dict(one.accuracy) for side, one in sides.items()}))
    return arrays


def load_reference(path: Path, side: int) -> Reference:
    """Load the real scenes of `side` px from a reference file.

    The file (NumPy, no pickles) has float32 `features_a_<side>` and `features_b_<side>` [n, F] for each side in pixels,
    and `accuracy`, a JSON text {"<side>": {slot: share}}. Raises OSError if it cannot be read, ValueError if invalid.
    """
    try:
        with ArrayFile(path) as arrays:
            accuracy = build_typed(_AccuracyBySide, {"accuracy": arrays.read_json("accuracy")}, "reference").accuracy
            if str(side) not in accuracy:
                raise ValueError(f"no real scenes of {side} px in it")
            halves = [
                arrays.read(f"features_{half}_{side}", ArrayForm(dimensions=2)).astype(np.float64) for half in "ab"
            ]
        return Reference(halves[0], halves[1], accuracy[str(side)])
    except ValueError as error:
        raise ValueError(f"{path} is not a reference of real scenes ({error}); export it again") from error


def read_right(readings: Sequence[Reading], prompts: Sequence[Mapping[str, str]]) -> dict[str, BoolArray]:
    """Compare a judge's readings of pictures with their prompts.

    Args:
        readings: The readings, one per picture.
        prompts: The value of every slot of each picture's prompt; see `runtime.conditions.Condition.attributes`.

    Returns:
        By slot, whether each picture [pictures] was read as its prompt says. `MAIN_ACCURACY` has whether all of
        `MAIN_SLOTS` were; its mean is called prompt accuracy.
    """
    right = {
        slot: np.array(
            [one.values[slot] == attributes[slot] for one, attributes in zip(readings, prompts, strict=True)],
            dtype=np.bool_,
        )
        for slot in TEXTURED_SLOTS
    }
    return {MAIN_ACCURACY: np.logical_and.reduce([right[slot] for slot in MAIN_SLOTS]), **right}


def gaussian_distance(
    mean_a: FloatArray, covariance_a: FloatArray, mean_b: FloatArray, covariance_b: FloatArray
) -> float:
    """Fréchet distance of two Gaussians with means [F] and covariances [F, F]: arXiv 1706.08500, equation 6.

    Raises ValueError if the widths differ.
    """
    if mean_a.shape != mean_b.shape or covariance_a.shape != covariance_b.shape:
        raise ValueError(f"Fréchet distance: features of {mean_a.size} and {mean_b.size} numbers; use one network")
    apart = mean_a - mean_b
    # (C_a C_b)^(1/2) has the trace of (C_a^(1/2) C_b C_a^(1/2))^(1/2), which is symmetric.
    values, vectors = np.linalg.eigh(covariance_a)
    root = (vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T
    between = np.sqrt(np.clip(np.linalg.eigvalsh(root @ covariance_b @ root), 0.0, None)).sum()
    return max(0.0, float(apart @ apart + np.trace(covariance_a) + np.trace(covariance_b) - 2.0 * between))


def frechet_distance(left: FloatArray, right: FloatArray) -> float:
    """Fréchet distance between the Gaussians fitted to two sets of features, [n, F] and [m, F], n and m >= 2.

    |mean_l - mean_r|^2 + tr(C_l + C_r - 2 (C_l C_r)^(1/2)), arXiv 1706.08500, equation 6. It is biased upwards for
    small sets: compare only figures of the same n against the same set.
    """
    if left.shape[0] < 2 or right.shape[0] < 2 or left.shape[1:] != right.shape[1:]:
        raise ValueError(f"frechet_distance: expected [n >= 2, F] and [m >= 2, F], got {left.shape} and {right.shape}")
    width = left.shape[1]
    covariances = [np.cov(features, rowvar=False).reshape(width, width) for features in (left, right)]
    return gaussian_distance(left.mean(axis=0), covariances[0], right.mean(axis=0), covariances[1])


def frechet_floor(reference: Reference, count: int, seed: int = 0) -> float | None:
    """Mean Fréchet distance, over several draws, of `count` real scenes of the second half to the first half.

    None if the second half has fewer scenes, or `count` is below 2.
    """
    if count < 2 or count > reference.features_b.shape[0]:
        return None
    rng = np.random.default_rng(seed)
    distances = [
        frechet_distance(rng.choice(reference.features_b, count, replace=False), reference.features_a)
        for _ in range(FLOOR_DRAWS)
    ]
    return float(np.mean(distances))
