"""How far pictures are: what a cycle did to one, as its client sees it, and what draws several of them at once."""

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
    """One picture of a request. image: its place in the request."""

    ticket: Ticket
    prepared: PreparedRequest
    image: int

    @property
    def seed(self) -> int:
        """Of its noise."""
        return self.prepared.request.seeds[self.image]


@dataclass(slots=True, eq=False)
class Picture:
    """A picture in a slot.

    Attributes:
        job: What is drawn.
        tokens: [cells] int64, `NO_TOKEN` where none is decided; kept up to date only while somebody watches.
        started: When it took its slot, by `time.monotonic`.
        cycles: That `tokens` is up to date with.
        partial: Pictures on the way that were made.
    """

    job: Job
    tokens: IntArray
    started: float = field(default_factory=monotonic)
    cycles: int = 0
    partial: int = 0

    @property
    def watched(self) -> bool:
        """Whether its client sees it on the way."""
        request = self.job.prepared.request
        return request.events or request.partial_images > 0 or request.picture_every > 0

    def partial_due(self, event: CellsEvent) -> bool:
        """Whether the client is to see the picture now, behind an event."""
        request, sent = self.job.prepared.request, self.partial
        if event.decided == event.cells:
            return False
        if request.picture_every:
            return event.number % request.picture_every == 0
        return (
            sent < request.partial_images and event.decided * (request.partial_images + 1) >= (sent + 1) * event.cells
        )

    def after_cycle(self, cycle: Cycle | RepairCycle | CellStep | None) -> CellsEvent:
        """What a cycle of a session did; see `DecodingSession.cycle`."""
        accepted: list[CellToken] = []
        redrawn: list[CellToken] = []
        drawn: list[CellToken] = []
        rejected: list[int] = []
        if isinstance(cycle, Cycle):
            placed = [
                (cycle.cell + place, int(token)) for place, token in enumerate(emitted(cycle.tree, cycle.verdict))
            ]
            kept, beyond = len(cycle.verdict.path), cycle.cell + cycle.tree.depth
            accepted = placed[:kept]
            rejected = list(range(cycle.cell + kept, beyond))
            (redrawn if rejected else drawn).extend(placed[kept:])
        elif isinstance(cycle, RepairCycle):
            before = self.tokens.size - cycle.tokens.size  # a preview's cells, drawn before the picture's
            inside = np.flatnonzero(cycle.draft.ravel() != NO_TOKEN).tolist()
            region, now = cycle.region.ravel(), cycle.tokens.ravel()
            for cell in inside:
                (redrawn if region[cell] else accepted).append((before + cell, int(now[cell])))
            rejected = [before + cell for cell in np.flatnonzero(cycle.rejected).tolist()]
        elif cycle is not None:
            drawn = list(zip(cycle.cells, cycle.tokens, strict=True))
        return self._after(self.cycles + 1, accepted, redrawn, drawn, rejected)

    def after_verdicts(self, tokens: IntArray, history: IntArray) -> Iterator[CellsEvent]:
        """What the cycles since the last event did, in raster order by draft trees; an event for each.

        Args:
            tokens: [cells], of which those that the cycles decided are read.
            history: [cycles, 3] of all cycles: drafted tokens that were accepted, levels of the tree, its nodes.
        """
        for number in range(self.cycles + 1, len(history) + 1):
            kept, depth = history[number - 1, :2].tolist()
            first = int(np.count_nonzero(self.tokens != NO_TOKEN))
            placed = [(first + place, int(token)) for place, token in enumerate(tokens[first : first + kept + 1])]
            rejected, last = list(range(first + kept, first + depth)), placed[kept:]
            yield self._after(number, placed[:kept], last if rejected else [], [] if rejected else last, rejected)

    def after_cells(
        self, tokens: IntArray, decided: BoolArray, cycles: int, refused: IntArray | None = None
    ) -> Iterator[CellsEvent]:
        """What the cycles since the last event decided together; nothing where they decided no cell.

        Args:
            tokens: [cells].
            decided: [cells], of which tokens are decided.
            cycles: All so far.
            refused: Cells [n] whose drafts were refused, where a picture was drafted: its first event has what stays
                of the draft, later ones what is drawn in the place of the rest. None where no picture was drafted.
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
    """A picture's tokens [cells], and what it cost. accepted: of `drafted` tokens, how many were kept."""

    tokens: IntArray
    target_passes: int
    drafter_passes: int
    accepted: int
    drafted: int

    @classmethod
    def of(cls, tokens: IntArray, target_passes: int, drafter_passes: int, result: DecodingResult | Drawing) -> Self:
        """Count the drafts of a result: tokens, one a level of a tree, or the cells of a drafted picture."""
        if result.accepted is not None:
            return cls(tokens, target_passes, drafter_passes, sum(result.accepted), sum(result.depths or ()))
        kept = len(result.kept_cells or ())
        return cls(tokens, target_passes, drafter_passes, kept, kept + (result.rejected or 0))


class Turn(NamedTuple):
    """What a turn did to one picture.

    Attributes:
        picture: The picture.
        decided: How many tokens it decided.
        events: What its cycles did; they are made as they are taken. Empty where nobody watches.
        finished: The picture; None where it goes on.
        error: Why it ended; None where it did not.
    """

    picture: Picture
    decided: int = 0
    events: Iterable[CellsEvent] = ()
    finished: Finished | None = None
    error: Exception | None = None


class PictureSlots(Protocol):
    """Draws several pictures at once. A picture depends on its seed alone, and not on what else is drawn."""

    def check(self, prepared: PreparedRequest) -> None:
        """Look whether a request can be drawn, in any thread; ValueError says why not."""
        ...

    def takes(self, prepared: PreparedRequest) -> bool:
        """Whether a picture can be opened now; there is a free slot."""
        ...

    def open(self, picture: Picture) -> None:
        """Let a picture take a slot."""
        ...

    def turn(self) -> Iterator[Turn]:
        """Make a cycle or a few of every picture; one that finished or failed has left its slot."""
        ...

    def drop(self, picture: Picture) -> None:
        """Free the slot of a picture that is not finished."""
        ...
