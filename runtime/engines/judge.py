"""The judge on ONNX Runtime: which attributes a picture shows, and features to compare sets of pictures by."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.artifacts.manifest import ManifestError
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.runtime.engines.images import to_unit
from underpaint.zoo.load import FOLDER, Located, locate


class Judged(NamedTuple):
    """scores: class scores (logits) [B, classes] by slot of the prompt grammar; features: [B, F]."""

    scores: dict[str, NDArray[np.float32]]
    features: NDArray[np.float32]


def _slots(located: Located, outputs: set[str]) -> tuple[str, ...]:
    """The slots of the prompt grammar that the graph scores; ManifestError where its manifest names others."""
    named = located.manifest.settings.get("slots")
    if not isinstance(named, list) or not all(isinstance(slot, str) for slot in named) or not outputs >= {*named}:
        raise ManifestError(
            f"{located.manifest.name}: its manifest's setting slots: expected outputs of its graph, got {named!r}; "
            "export the model again"
        )
    return tuple(named)


class OnnxJudge:
    """Scores pictures."""

    def __init__(self, name: str = "judge", folder: Path = FOLDER, settings: EngineContext | None = None) -> None:
        located = locate(name, "judge", folder)
        self.side = located.size("side")
        self._session: Any = open_session(located.path, settings)
        outputs = {each.name: each.shape[-1] for each in self._session.get_outputs()}
        self._slots = _slots(located, set(outputs))
        self.classes = {slot: outputs[slot] for slot in self._slots}
        """Number of classes that are scored, by slot."""

    def __call__(self, pictures: Sequence[NDArray[np.uint8]]) -> Judged:
        """Judge square pictures [S, S, 3], S a multiple of `side`; larger ones are averaged down by areas."""
        batch = np.stack([self._reduced(picture) for picture in pictures])
        *scores, features = self._session.run([*self._slots, "features"], {"pixels": batch})
        return Judged(dict(zip(self._slots, scores, strict=True)), features)

    def _reduced(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        size = picture.shape[0]
        if picture.shape != (size, size, 3) or size % self.side or not size:
            raise EngineError(
                f"judge: expected [S, S, 3] with S a multiple of {self.side}, got {picture.shape}; resize the picture"
            )
        factor = size // self.side
        areas = to_unit(picture).reshape(3, self.side, factor, self.side, factor)
        return np.ascontiguousarray(areas.mean(axis=(2, 4)))
