"""Interface of the models that are open in this process, as commands use them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from underpaint.algos.arrays import IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.methods.method import PipelineModels

if TYPE_CHECKING:
    from underpaint.runtime.engines.drafter import EngineDrafter
    from underpaint.runtime.engines.target import EngineTarget
    from underpaint.runtime.pipeline import Pipeline


class OpenModels(PipelineModels, Protocol):
    """A folder's models (`runtime.pipeline.Pipeline`) or a live model (`runtime.live.pipeline.LivePipeline`)."""

    @property
    def folder(self) -> Path:
        """The folder that the models were read from."""
        ...

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters that the models are meant for."""
        ...

    @property
    def backend(self) -> str:
        """The backend that runs the models."""
        ...

    @property
    def high(self) -> EngineTarget:
        """The target, for code that times its passes."""
        ...

    @property
    def loaded_drafter(self) -> EngineDrafter | None:
        """The drafter, or None."""
        ...

    @property
    def resolution(self) -> int | None:
        """Side of the pictures in pixels; None if unknown."""
        ...

    @property
    def decoder(self) -> Any:
        """The decoder from tokens to pictures, or None."""
        ...

    def title(self) -> str:
        """The pictures' size in words, for table headings."""
        ...

    def fingerprint(self) -> Mapping[str, Any]:
        """The models and the engine as JSON; two fingerprints are equal only if the pictures would be equal.

        Returns:
            At least "target" and "drafter" (their names), "engine", "threads" (None means as many as there are cores)
            and "sha256", the hashes of models by name.
        """
        ...

    def condition(self, text: str) -> Condition:
        """Parse a user's text as a condition of these models; raises ValueError that says what was expected."""
        ...

    def picture(self, tokens: IntArray) -> Picture:
        """The picture [H, W, 3] of tokens [cells]; raises ValueError without a decoder."""
        ...

    def fork(self) -> OpenModels:
        """Models with the same weights and their own caches; their sessions need not take turns with these."""
        ...

    def folder_models(self) -> Pipeline | None:
        """The exported folder, which may hold a judge and a prompt grammar; None for a live model."""
        ...
