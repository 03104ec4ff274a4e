"""What is drawn in batches on the device, and what comes of it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from underpaint.runtime.device.runner import Watch
from underpaint.runtime.drawing import Drawing, ImageTask


class NotDrawn(NamedTuple):
    """Why a picture ended with an error, which others beside it did not."""

    error: str


class BatchProgram(Protocol):
    """A method ready to draw batches."""

    def prime(self, wanted: Sequence[ImageTask]) -> None:
        """Compile, capture and allocate, so that no later drawing is charged for it."""
        ...

    def draw_all(
        self, wanted: Sequence[ImageTask], watch: Watch | None = None
    ) -> Iterator[tuple[int, Drawing | NotDrawn]]:
        """Draw any number of pictures, each in the next free slot; yields numbers and outcomes as they end."""
        ...
