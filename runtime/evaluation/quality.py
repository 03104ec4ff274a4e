"""What pictures are worth: prompt accuracy by the judge, and the Fréchet distance in the judge's feature space."""

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
from underpaint.runtime.evaluation.metrics.features import gaussian_distance
from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS
from underpaint.zoo.textured_prompts import MAIN_ACCURACY, MAIN_SLOTS, TEXTURED_SLOTS

REFERENCE_KIND: Final = "reference"
"""The kind, in its manifest, of a file of real scenes."""
FLOOR_DRAWS: Final = 32
"""Draws of real scenes that a floor is the mean of."""


def reference_name(side: int) -> str:
    """The file of real scenes at `side` px: one for the shipped sides together, one for each other side."""
    return "judge_reference" if side in SHIPPED_RESOLUTIONS else f"judge_reference{side}"


class Reading(NamedTuple):
    """What the judge sees in one picture."""

    values: Mapping[str, str]
    """The value of every slot of the grammar."""
    features: FloatArray
    """[F] (160 in the shipped judge)."""
    scores: Mapping[str, FloatArray] = MappingProxyType({})
    """Class scores (logits) [classes] by slot, in the order of the slot's values; empty in records of before they
    were kept."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Real scenes as the judge sees them, in two halves that share no scene.

    features_a, features_b: [n, F], the pictures drawn at the resolution asked for.
    accuracy: the judge's own share read right on fresh real scenes, per slot and for `MAIN_ACCURACY`.
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
    """The judge's shares by side in pixels and slot, as a reference file holds them."""

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
    """The real scenes of `side` px in a reference file.

    The file (NumPy, no pickles) holds float32 `features_a_<side>` and `features_b_<side>` [n, F] for each side in
    pixels, and `accuracy`, a JSON text {"<side>": {slot: share}}.
    Raises OSError where it cannot be read, ValueError where it holds something else.
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
    """Compare what a judge read in pictures with what their prompts say.

    Args:
        readings: Of the pictures.
        prompts: The value of every slot of each picture's prompt; see `runtime.conditions.Condition.attributes`.

    Returns:
        By slot, whether each picture [pictures] was read as its prompt says; as `MAIN_ACCURACY`, whether all of
        `MAIN_SLOTS` were, whose mean is called prompt accuracy.
    """
    right = {
        slot: np.array(
            [one.values[slot] == attributes[slot] for one, attributes in zip(readings, prompts, strict=True)],
            dtype=np.bool_,
        )
        for slot in TEXTURED_SLOTS
    }
    return {MAIN_ACCURACY: np.logical_and.reduce([right[slot] for slot in MAIN_SLOTS]), **right}


def frechet_distance(left: FloatArray, right: FloatArray) -> float:
    """Fréchet distance between the Gaussians fitted to two sets of features, [n, F] and [m, F], n and m >= 2.

    |mean_l - mean_r|^2 + tr(C_l + C_r - 2 (C_l C_r)^(1/2)), arXiv 1706.08500, equation 6. It is biased upwards in
    small sets: compare only figures of the same n against the same set.
    """
    if left.shape[0] < 2 or right.shape[0] < 2 or left.shape[1:] != right.shape[1:]:
        raise ValueError(f"frechet_distance: expected [n >= 2, F] and [m >= 2, F], got {left.shape} and {right.shape}")
    width = left.shape[1]
    covariances = [np.cov(features, rowvar=False).reshape(width, width) for features in (left, right)]
    return gaussian_distance(left.mean(axis=0), covariances[0], right.mean(axis=0), covariances[1])


def frechet_floor(reference: Reference, count: int, seed: int = 0) -> float | None:
    """The distance that `count` real scenes of the second half have from the first half; a mean over draws.

    None where the second half holds fewer scenes, or `count` is below 2.
    """
    if count < 2 or count > reference.features_b.shape[0]:
        return None
    rng = np.random.default_rng(seed)
    distances = [
        frechet_distance(rng.choice(reference.features_b, count, replace=False), reference.features_a)
        for _ in range(FLOOR_DRAWS)
    ]
    return float(np.mean(distances))
