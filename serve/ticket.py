"""A request on its way: events that the engine loop puts in and a client's connection takes out."""

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
"""Pictures on the way that wait for a client which reads slowly; more are left out."""


class Ticket:
    """The events of one request, in order. Any thread may put them; one coroutine takes them.

    What a client does not read waits here, so a slow client holds no slot. It is bounded by what the request can give.
    """

    def __init__(self, request: DrawRequest, deadline: float, cancel: Callable[[Ticket], None]) -> None:
        """Start a ticket.

        Args:
            request: What is drawn.
            deadline: By `time.monotonic`.
            cancel: Told when the client leaves.
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
        """Whether it takes no more events: all pictures are drawn, it failed, or the client left."""
        return self._closed

    def put(self, event: Event) -> bool:
        """Hand an event to the client.

        Returns:
            Whether it was taken: not after the last one, nor another picture on the way where too many wait.
        """
        with self._lock:
            if self._closed or (isinstance(event, PartialImage) and self._partial >= _MOST_PARTIAL):
                return False
            self._partial += isinstance(event, PartialImage)
            self._left -= isinstance(event, FinishedImage)
            self._closed = isinstance(event, RequestError) or self._left == 0
            self._events.append(event)
            wake = self._wake
        if wake is not None:
            with suppress(RuntimeError):  # the client's event loop has ended
                wake()
        return True

    def cancel(self) -> None:
        """Give it up: what is drawn for it is dropped, and its slots are free after their current turn."""
        with self._lock:
            self._closed = True
            self._events.clear()
        self._cancel(self)

    async def events(self) -> AsyncIterator[Event]:
        """Every event, up to the last picture or a RequestError."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._wake = lambda: loop.call_soon_threadsafe(ready.set)
        while True:
            ready.clear()
            with self._lock:
                events, self._events, self._partial = self._events, deque(), 0
                ended = self._closed
            for event in events:
                yield event
            if ended:
                return
            await ready.wait()
