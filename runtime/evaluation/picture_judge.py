"""The judge of a folder of models: what it reads in pictures, in the slots of the folder's prompt grammar."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_index import ModelIndex, ResolutionEntry
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.judge import OnnxJudge
from underpaint.runtime.evaluation.quality import Reading, Reference, load_reference
from underpaint.zoo.grammars import TEXTURED, Grammar, index_grammar
from underpaint.zoo.load import locate

Picture: TypeAlias = NDArray[np.uint8]
"""[height, width, 3] sRGB."""


@dataclass(frozen=True, slots=True)
class PictureJudge:
    """A classifier that reads pictures in the slots of a grammar, and what it sees in real ones."""

    engine: OnnxJudge
    reference: Reference
    grammar: Grammar

    def read(self, picture: Picture) -> Reading:
        """What the judge sees in a picture [side, side, 3]."""
        judged, slots = self.engine([picture]), self.grammar.slots
        values = {slot: known[int(judged.scores[slot][0].argmax())] for slot, known in slots.items()}
        scores = {slot: judged.scores[slot][0].astype(np.float64) for slot in slots}
        return Reading(values, judged.features[0].astype(np.float64), scores)


def open_judge(folder: Path, index: ModelIndex, entry: ResolutionEntry, context: EngineContext) -> PictureJudge | None:
    """The judge of a folder, where it holds one and its view of real pictures at this resolution.

    None too where neither prompts nor the family tell what its slots are. Raises ManifestError where it reads other
    slots than those of the folder's grammar, or other values of them.
    """
    grammar = index_grammar(index) or (TEXTURED if index.family == TEXTURED.family else None)
    if grammar is None or index.judge is None or entry.reference is None or entry.side is None:
        return None
    reference = load_reference(locate(entry.reference, "reference", folder).path, entry.side)
    engine = OnnxJudge(index.judge, folder, context)
    if engine.classes != {slot: len(values) for slot, values in grammar.slots.items()}:
        raise ManifestError(
            f"{folder}: expected a judge of {', '.join(grammar.slots)}, the slots of {grammar.family}, got one of "
            f"{', '.join(engine.classes)}, or of other values; export the judge of these models into this folder"
        )
    return PictureJudge(engine, reference, grammar)
