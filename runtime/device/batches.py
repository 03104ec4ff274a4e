"""What is drawn in batches on the device, and what comes of it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from underpaint.runtime.conditions import Condition
from underpaint.runtime.device.runner import Watch
from underpaint.runtime.drawing import Drawing


class Wanted(NamedTuple):
    """One picture: its condition and the seed of its noise."""

    condition: Condition
    seed: int


class NotDrawn(NamedTuple):
    """A picture that ended with an error, which the others of its batch did not."""

    wanted: Wanted
    error: str


class BatchProgram(Protocol):
    """A method ready to draw batches."""

    def prime(self, wanted: Sequence[Wanted]) -> None:
        """Compile, capture and allocate, so that no later drawing is charged for it."""
        ...

    def draw(self, wanted: Sequence[Wanted], watch: Watch | None = None) -> list[Drawing | NotDrawn]:
        """Draw at most a batch."""
        ...
