"""Real scenes as the judge sees them, written once so that measuring pictures needs no art."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import numpy as np
import torch

from underpaint.algos.arrays import FloatArray
from underpaint.artifacts.manifest import Manifest
from underpaint.export.store import Origin, draft_manifest, store_bytes
from underpaint.models.data.batches import batch, scenes
from underpaint.models.data.scenes import SpriteSheet
from underpaint.models.judge import Judge, to_judge_side
from underpaint.models.train.judge import accuracy
from underpaint.models.train.pictures import SCENE_SEED, to_pixels
from underpaint.runtime.evaluation.quality import REFERENCE_KIND, Reference, reference_arrays, reference_name
from underpaint.zoo.sides import SHIPPED_SIDES

SCENES_PER_HALF: Final = 1000
_BATCH: Final = 100


@torch.no_grad()
def features(judge: Judge, sheet: SpriteSheet, side: int, first: int, count: int) -> FloatArray:
    """The judge's features [count, F] of the seen scenes number `first` onwards, drawn at `side` px."""
    found = []
    for start in range(first, first + count, _BATCH):
        real = batch(scenes(SCENE_SEED, start, min(_BATCH, first + count - start), "seen"), sheet, side)
        found.append(judge(to_judge_side(to_pixels(real.pictures))).features.numpy())
    return np.concatenate(found)


def real_scenes(judge: Judge, sheet: SpriteSheet, side: int, count: int = SCENES_PER_HALF) -> Reference:
    """Two halves of `count` fresh scenes of seen pairs, and the judge's own accuracy on the first."""
    return Reference(
        features(judge, sheet, side, 0, count),
        features(judge, sheet, side, count, count),
        accuracy(judge, sheet, "seen", side, count),
    )


def write_reference(
    judge: Judge,
    sheet: SpriteSheet,
    folder: Path,
    origin: Origin,
    sides: tuple[int, ...] = SHIPPED_SIDES,
    count: int = SCENES_PER_HALF,
) -> Manifest:
    """Write real scenes of `sides`, which share one file, and its manifest into `folder`.

    The file is `<runtime.quality.reference_name>.npz`; see `load_reference` there.
    """
    (name,) = {reference_name(side) for side in sides}
    arrays = reference_arrays({side: real_scenes(judge, sheet, side, count) for side in sides})
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    settings = {"sides": list(sides), "scenes_per_half": count, "split": "seen", "scene_seed": SCENE_SEED}
    shapes = {key: list(array.shape) for key, array in arrays.items()}
    return store_bytes(
        packed.getvalue(), ".npz", draft_manifest(name, REFERENCE_KIND, origin, settings), folder, shapes
    )
