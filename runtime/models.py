"""Models that are open in this process, as commands use them."""

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
        """Where they were read from."""
        ...

    @property
    def sampling(self) -> SamplingParams:
        """How they are meant to be sampled."""
        ...

    @property
    def backend(self) -> str:
        """What runs them."""
        ...

    @property
    def high(self) -> EngineTarget:
        """The target, for what times its passes."""
        ...

    @property
    def loaded_drafter(self) -> EngineDrafter | None:
        """The drafter; None where there is none."""
        ...

    @property
    def resolution(self) -> int | None:
        """Side of the pictures in pixels; None where nothing tells."""
        ...

    @property
    def decoder(self) -> Any:
        """What makes pictures of tokens; None where nothing does."""
        ...

    def title(self) -> str:
        """The pictures' size in words, for the heads of tables."""
        ...

    def fingerprint(self) -> Mapping[str, Any]:
        """The models and the engine, as JSON holds them; equal only if the pictures would be.

        Returns:
            At least "target" and "drafter" (their names), "engine", "threads" (None: as many as there are cores) and
            "sha256", the hashes of models by name.
        """
        ...

    def condition(self, text: str) -> Condition:
        """What was typed, as the models take it; ValueError says what was expected."""
        ...

    def picture(self, tokens: IntArray) -> Picture:
        """The picture [H, W, 3] of tokens [cells]; ValueError where nothing makes pictures."""
        ...

    def fork(self) -> OpenModels:
        """Other models of the same weights, with caches of their own: their sessions need not take turns with these."""
        ...

    def folder_models(self) -> Pipeline | None:
        """The exported folder, which may hold a judge and a prompt grammar; None for a live model."""
        ...
