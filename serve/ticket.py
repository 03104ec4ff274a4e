"""A request in progress: the engine loop adds events, and the client's connection reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Final

from underpaint.serve.requests import DrawRequest, Event, FinishedImage, PartialImage, RequestError

_MOST_PARTIAL: Final = 4
"""Maximum number of partial pictures of a request that are being encoded or unread; further ones are skipped."""


class Ticket:
    """The events of one request, in order. Any thread may add them; one coroutine reads them.

    Unread events are stored here, so a slow client blocks no batch slot. A request has a bounded number of events.
    """

    def __init__(self, request: DrawRequest, deadline: float, cancel: Callable[[Ticket], None]) -> None:
        """Create a ticket.

        Args:
            request: The request.
            deadline: Deadline on the clock `time.monotonic`.
            cancel: Callback for when the client leaves.
        """
        self.request, self.deadline, self.arrived = request, deadline, monotonic()
        self._cancel = cancel
        self._lock = Lock()
        self._events: deque[Event] = deque()
        self._partial = 0
        self._left = len(request.seeds)
        self._closed = False
        self._wake: Callable[[], object] | None = None

    @property
    def closed(self) -> bool:
        """Whether it accepts no more events: all pictures are drawn, it failed, or the client left."""
        return self._closed

    def put(self, event: Event) -> bool:
        """Add an event for the client; a partial picture needs a place from `reserve_partial` first.

        Returns:
            False if the ticket is closed.
        """
        with self._lock:
            if self._closed:
                return False
            self._left -= isinstance(event, FinishedImage)
            self._closed = isinstance(event, RequestError) or self._left == 0
            self._events.append(event)
            wake = self._wake
        if wake is not None:
            with suppress(RuntimeError):  # the client's event loop has ended
                wake()
        return True

    def reserve_partial(self) -> bool:
        """Reserve a place for one partial picture until the client reads it.

        Returns:
            False if the ticket is closed, or if too many partial pictures are being encoded or unread.
        """
        with self._lock:
            if self._closed or self._partial >= _MOST_PARTIAL:
                return False
            self._partial += 1
            return True

    def cancel(self) -> None:
        """Cancel the request: its pictures are dropped, and their slots are freed after the current turn."""
        with self._lock:
            self._closed = True
            self._events.clear()
        self._cancel(self)

    async def events(self) -> AsyncIterator[Event]:
        """Yield every event, up to the last picture or a RequestError."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._wake = lambda: loop.call_soon_threadsafe(ready.set)
        while True:
            ready.clear()
            with self._lock:
                events, self._events = self._events, deque()
                self._partial -= sum(isinstance(event, PartialImage) for event in events)
                ended = self._closed
            for event in events:
                yield event
            if ended:
                return
            await ready.wait()
