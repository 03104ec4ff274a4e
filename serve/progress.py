"""Progress of pictures: converts the results of decoding cycles to client events; defines batch slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple, Protocol, Self

import numpy as np

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.spatial.mulo import RepairCycle
from underpaint.algos.spatial.zipar import CellStep
from underpaint.algos.step import Cycle
from underpaint.algos.tree import NO_TOKEN, emitted
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.methods.method import DecodingResult
from underpaint.serve.models import PreparedRequest
from underpaint.serve.requests import CellsEvent, CellToken
from underpaint.serve.ticket import Ticket


class Job(NamedTuple):
    """One picture of a request.

    Attributes:
        ticket: The request's ticket.
        prepared: The checked request.
        image: Index of the picture in the request.
    """

    ticket: Ticket
    prepared: PreparedRequest
    image: int

    @property
    def seed(self) -> int:
        """The noise seed."""
        return self.prepared.request.seeds[self.image]


@dataclass(slots=True, eq=False)
class Picture:
    """A picture in a batch slot.

    Attributes:
        job: The picture's job.
        tokens: [cells] int64, `NO_TOKEN` for undecided cells; only updated while a client watches.
        started: Time when it took its slot, from `time.monotonic`.
        cycles: Number of cycles that `tokens` includes.
        partial: Number of the next partial picture.
    """

    job: Job
    tokens: IntArray
    started: float = field(default_factory=monotonic)
    cycles: int = 0
    partial: int = 0

    @property
    def watched(self) -> bool:
        """Whether its client receives events or partial pictures."""
        request = self.job.prepared.request
        return request.events or request.partial_images > 0 or request.picture_every > 0

    def partial_due(self, event: CellsEvent) -> int | None:
        """Return the number of the partial picture that is due after this event, or None.

        A picture that is not made now stays due after the next event, until one with a higher number is due.
        """
        request, due = self.job.prepared.request, self.partial
        if event.decided == event.cells:
            return None
        if request.picture_every:
            latest = event.number // request.picture_every - 1
            return latest if latest >= due else None
        if due < request.partial_images and event.decided * (request.partial_images + 1) >= (due + 1) * event.cells:
            return due
        return None

    def after_cycle(self, cycle: Cycle | RepairCycle | CellStep | None) -> CellsEvent:
        """Convert a session's last cycle to an event; see `DecodingSession.cycle`."""
        accepted: list[CellToken] = []
        redrawn: list[CellToken] = []
        drawn: list[CellToken] = []
        rejected: list[int] = []
        if isinstance(cycle, Cycle):
            placed = [
                (cycle.cell + place, int(token)) for place, token in enumerate(emitted(cycle.tree, cycle.verdict))
            ]
            accepted_count, beyond = len(cycle.verdict.path), cycle.cell + cycle.tree.depth
            accepted = placed[:accepted_count]
            rejected = list(range(cycle.cell + accepted_count, beyond))
            (redrawn if rejected else drawn).extend(placed[accepted_count:])
        elif isinstance(cycle, RepairCycle):
            before = self.tokens.size - cycle.tokens.size  # cells of a preview, which come before the picture's
            inside = np.flatnonzero(cycle.draft.ravel() != NO_TOKEN).tolist()
            region, now = cycle.region.ravel(), cycle.tokens.ravel()
            for cell in inside:
                (redrawn if region[cell] else accepted).append((before + cell, int(now[cell])))
            rejected = [before + cell for cell in np.flatnonzero(cycle.rejected).tolist()]
        elif cycle is not None:
            drawn = list(zip(cycle.cells, cycle.tokens, strict=True))
        return self._after(self.cycles + 1, accepted, redrawn, drawn, rejected)

    def after_verdicts(self, tokens: IntArray, history: IntArray) -> Iterator[CellsEvent]:
        """Yield an event for each new cycle that verified a draft tree in raster order.

        Args:
            tokens: [cells]; only cells that the cycles decided are read.
            history: [cycles, 3] of all cycles: accepted draft tokens, tree levels, tree nodes.
        """
        for number in range(self.cycles + 1, len(history) + 1):
            accepted_count, depth = history[number - 1, :2].tolist()
            first = int(np.count_nonzero(self.tokens != NO_TOKEN))
            placed = [
                (first + place, int(token)) for place, token in enumerate(tokens[first : first + accepted_count + 1])
            ]
            rejected, last = list(range(first + accepted_count, first + depth)), placed[accepted_count:]
            yield self._after(
                number, placed[:accepted_count], last if rejected else [], [] if rejected else last, rejected
            )

    def after_cells(
        self, tokens: IntArray, decided: BoolArray, cycles: int, refused: IntArray | None = None
    ) -> Iterator[CellsEvent]:
        """Yield one event for all cycles since the last event; nothing if they decided no cell.

        Args:
            tokens: [cells].
            decided: [cells], whether each cell has its token.
            cycles: Number of all cycles so far.
            refused: Cells [n] of a drafted picture that were rejected: the first event has the accepted cells, later
                ones the redrawn cells. None if no picture was drafted.
        """
        new = np.flatnonzero(decided & (self.tokens == NO_TOKEN)).tolist()
        if not new:
            return
        placed = [(cell, int(tokens[cell])) for cell in new]
        if refused is None:
            yield self._after(cycles, [], [], placed, [])
            return
        first = bool((self.tokens == NO_TOKEN).all())
        again = set(refused.tolist() if first else new)
        accepted = [one for one in placed if one[0] not in again]
        redrawn = [one for one in placed if one[0] in again]
        yield self._after(cycles, accepted, redrawn, [], refused.tolist() if first else [])

    def _after(
        self,
        number: int,
        accepted: list[CellToken],
        redrawn: list[CellToken],
        drawn: list[CellToken],
        rejected: list[int],
    ) -> CellsEvent:
        self.cycles = number
        for cell, token in (*accepted, *redrawn, *drawn):
            self.tokens[cell] = token
        decided = int(np.count_nonzero(self.tokens != NO_TOKEN))
        lists = (tuple(accepted), tuple(redrawn), tuple(drawn), tuple(rejected))
        return CellsEvent(self.job.image, number, *lists, decided, self.tokens.size)


class Finished(NamedTuple):
    """A finished picture and its cost.

    Attributes:
        tokens: [cells].
        target_passes: Number of forward passes of the target.
        drafter_passes: Number of forward passes of the drafter.
        accepted: How many of the `drafted` tokens were accepted.
        drafted: Number of draft tokens.
    """

    tokens: IntArray
    target_passes: int
    drafter_passes: int
    accepted: int
    drafted: int

    @classmethod
    def of(cls, tokens: IntArray, target_passes: int, drafter_passes: int, result: DecodingResult | Drawing) -> Self:
        """Count the draft tokens of a result: one per tree level, or one per cell of a drafted picture."""
        if result.accepted is not None:
            return cls(tokens, target_passes, drafter_passes, sum(result.accepted), sum(result.depths or ()))
        accepted = len(result.kept_cells or ())
        return cls(tokens, target_passes, drafter_passes, accepted, accepted + (result.rejected or 0))


class Turn(NamedTuple):
    """The result of one turn for one picture.

    Attributes:
        picture: The picture.
        decided: Number of tokens decided in the turn.
        events: Events of its cycles, created lazily. Empty if no client watches.
        finished: The finished picture; None if it continues.
        error: The error that ended it; None if there was none.
    """

    picture: Picture
    decided: int = 0
    events: Iterable[CellsEvent] = ()
    finished: Finished | None = None
    error: Exception | None = None


class PictureSlots(Protocol):
    """Draws several pictures at once. A picture depends only on its seed, not on the other pictures."""

    def check(self, prepared: PreparedRequest) -> None:
        """Check from any thread whether a request can be drawn; raises ValueError with the reason if not."""
        ...

    def takes(self, prepared: PreparedRequest) -> bool:
        """Return whether a picture can be opened now, given that there is a free slot."""
        ...

    def open(self, picture: Picture) -> None:
        """Start drawing a picture in a free slot."""
        ...

    def turn(self) -> Iterator[Turn]:
        """Run one or a few cycles of every picture; pictures that finished or failed leave their slots."""
        ...

    def drop(self, picture: Picture) -> None:
        """Free the slot of a picture that is not finished."""
        ...
