"""Batch slots on the host: each picture is a decoding session with its own cache, and runs one cycle per turn.

Pictures of a live model share their target passes if the model's passes can be padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.drawing import noise_of
from underpaint.runtime.engines.engine import rows_of
from underpaint.runtime.methods.method import DecodingMethod, DecodingSession
from underpaint.runtime.models import OpenModels
from underpaint.serve.models import PreparedRequest, ServedModels, build
from underpaint.serve.progress import Finished, Picture, Turn

if TYPE_CHECKING:
    from underpaint.runtime.live.batch import LaneSessions

_LIVE: Final = "live"
"""The backend of live models; see `runtime.live.pipeline`."""


class Slot:
    """Draws one picture at a time, with its own caches."""

    def __init__(self, served: ServedModels, lane: int) -> None:
        """Create a slot; `lane` is its index."""
        self.lane, self._served = lane, served
        self._forks: dict[str, OpenModels] = {}
        self._methods: dict[tuple[str, str, bool, bool], DecodingMethod] = {}

    def open(self, prepared: PreparedRequest, models: OpenModels | None = None) -> DecodingSession:
        """Open a decoding session for a condition; the slot's previous session is dropped.

        Args:
            prepared: The request to draw.
            models: The models to draw with; None uses a fork of the served models.

        Raises:
            ValueError: An error of the models.
        """
        if models is None:
            if prepared.size not in self._forks:
                self._forks[prepared.size] = self._served.pipelines[prepared.size].fork()
            models = self._forks[prepared.size]
        return self._method(prepared, models).open(models, prepared.condition, prepared.sampling)

    def _method(self, prepared: PreparedRequest, models: OpenModels) -> DecodingMethod:
        """Return the method of a request on these models; rules may keep state, so each slot has its own methods.

        Guidance doubles the rows of a pass, and so changes the pass costs by which some methods choose.
        """
        sampling = prepared.sampling
        key = (prepared.request.method, prepared.size, sampling.temperature == 0, sampling.guidance == 1.0)
        if key not in self._methods:
            self._methods[key] = build(prepared, models)
        return self._methods[key]


class _Drawing(NamedTuple):
    """A picture in a slot. passes: target and drafter passes before it. lanes: set if it shares its passes."""

    picture: Picture
    slot: Slot
    session: DecodingSession
    passes: tuple[int, int]
    lanes: LaneSessions | None


class SessionSlots:
    """Implements `progress.PictureSlots` with decoding sessions."""

    def __init__(self, served: ServedModels, slots: int) -> None:
        """Create slots; the caches of a slot are allocated at its first use."""
        self._served, self._slots = served, slots
        self._free = [Slot(served, lane) for lane in range(slots)]
        self._drawings: list[_Drawing] = []
        self._lanes: dict[int, LaneSessions | None] = {}

    def check(self, prepared: PreparedRequest) -> None:
        """Do nothing: `ServedModels.prepare` has already opened the method."""

    def takes(self, prepared: PreparedRequest) -> bool:
        return bool(self._free)

    def open(self, picture: Picture) -> None:
        prepared, slot = picture.job.prepared, self._free.pop()
        try:
            lanes = self._shared_lanes(prepared.sampling)
            session = slot.open(prepared, None if lanes is None else lanes.pipelines[slot.lane])
            session.begin(noise_of(prepared.condition, picture.job.seed))
        except BaseException:
            self._free.append(slot)
            raise
        self._drawings.append(_Drawing(picture, slot, session, _passes(session), lanes))

    def drop(self, picture: Picture) -> None:
        drawing = next(one for one in self._drawings if one.picture is picture)
        self._drawings.remove(drawing)
        self._free.append(drawing.slot)
        if drawing.lanes is not None:
            drawing.lanes.forget(drawing.slot.lane)

    def turn(self) -> Iterator[Turn]:
        together: dict[int, Future[bool]] = {}
        for lanes in self._lanes.values():
            if lanes is not None:
                steps = {one.slot.lane: one.session.step for one in self._drawings if one.lanes is lanes}
                together |= lanes.run(steps)
        for drawing in tuple(self._drawings):
            try:
                shared = together.get(drawing.slot.lane)
                more = drawing.session.step() if shared is None else shared.result()
            except Exception as error:
                self.drop(drawing.picture)
                yield Turn(drawing.picture, error=error)
                continue
            if more:
                event = drawing.picture.after_cycle(drawing.session.cycle)
                count = len(event.accepted) + len(event.redrawn) + len(event.drawn)
                yield Turn(drawing.picture, count, (event,))
                continue
            self.drop(drawing.picture)
            result, now, before = drawing.session.result(), _passes(drawing.session), drawing.passes
            done = Finished.of(result.tokens, now[0] - before[0], now[1] - before[1], result)
            yield Turn(drawing.picture, finished=done)

    def _shared_lanes(self, sampling: SamplingParams) -> LaneSessions | None:
        """Return the lanes in which pictures with this sampling share passes; None if each runs its own."""
        rows = rows_of(sampling)
        if rows not in self._lanes:
            self._lanes[rows] = self._open_lanes(rows)
        return self._lanes[rows]

    def _open_lanes(self, rows: int) -> LaneSessions | None:
        models = self._served.pipelines[self._served.default_size]
        if models.backend != _LIVE or self._slots == 1:
            return None
        from underpaint.runtime.live.batch import LaneSessions
        from underpaint.runtime.live.pipeline import LivePipeline

        if not isinstance(models, LivePipeline) or not models.shares_passes:
            return None
        return LaneSessions(models, rows, self._slots)


def _passes(session: DecodingSession) -> tuple[int, int]:
    """Number of target and of drafter passes so far."""
    target, drafter, _ = session.timers
    return target.passes, 0 if drafter is None else drafter.passes
