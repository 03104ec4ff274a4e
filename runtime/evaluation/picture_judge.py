"""The judge of a folder of models, which reads pictures in the slots of the prompt grammar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_families import TEXTURED_FAMILY
from underpaint.artifacts.model_index import ModelIndex, ResolutionEntry
from underpaint.runtime.engines.context import CPU, EngineContext
from underpaint.runtime.engines.images import OnnxJudge, Picture
from underpaint.runtime.evaluation.quality import Reading, Reference, load_reference
from underpaint.runtime.models import OpenModels
from underpaint.zoo.load import locate, takes_grammar
from underpaint.zoo.textured_prompts import TEXTURED_SLOTS


@dataclass(frozen=True, slots=True)
class PictureJudge:
    """A classifier that reads pictures in the slots of the grammar, with its readings of real pictures.

    Attributes:
        hashes: The SHA-256 of its files, by name.
    """

    engine: OnnxJudge
    reference: Reference
    hashes: Mapping[str, str] = field(default_factory=dict)

    def read(self, picture: Picture) -> Reading:
        """Read a picture [side, side, 3]."""
        judged = self.engine([picture])
        values = {slot: options[int(judged.scores[slot][0].argmax())] for slot, options in TEXTURED_SLOTS.items()}
        scores = {slot: judged.scores[slot][0].astype(np.float64) for slot in TEXTURED_SLOTS}
        return Reading(values, judged.features[0].astype(np.float64), scores)


def judge_of(pipeline: OpenModels) -> PictureJudge | None:
    """The judge in the folder of a pipeline's models, for its resolution; see `open_judge`."""
    models = pipeline.folder_models()
    return None if models is None else open_judge(models.folder, models.index, models.entry, models.context)


def judged_fingerprint(pipeline: OpenModels, judge: PictureJudge | None) -> dict[str, Any]:
    """The models and their judge as JSON; see `Pipeline.fingerprint`."""
    fingerprint = dict(pipeline.fingerprint())
    if judge is None:
        return fingerprint
    return {
        **fingerprint,
        "sha256": {**fingerprint["sha256"], **judge.hashes},
        "judge_accuracy": dict(judge.reference.accuracy),
    }


def open_judge(folder: Path, index: ModelIndex, entry: ResolutionEntry, context: EngineContext) -> PictureJudge | None:
    """The judge of a folder; None if it lacks a judge or the judge's reference for this resolution.

    Also None if neither the prompts nor the family define the judge's slots. Raises ManifestError if the judge has
    other slots, or other values of them, than the grammar.
    """
    in_grammar = takes_grammar(index) or index.family == TEXTURED_FAMILY
    if not in_grammar or index.judge is None or entry.reference is None or entry.side is None:
        return None
    reference = load_reference(locate(entry.reference, "reference", folder).path, entry.side)
    engine = OnnxJudge(index.judge, folder, replace(context, backend=CPU))  # so that all pictures have one judge
    if engine.classes != {slot: len(values) for slot, values in TEXTURED_SLOTS.items()}:
        raise ManifestError(
            f"{folder}: expected a judge of {', '.join(TEXTURED_SLOTS)}, the slots of {TEXTURED_FAMILY}, got one of "
            f"{', '.join(engine.classes)}, or of other values; export the judge of these models into this folder"
        )
    return PictureJudge(engine, reference, index.hashes((index.judge, entry.reference)))
