"""Runs the application: it binds the socket before models load, and finishes accepted requests at shutdown."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, Protocol

import uvicorn
from fastapi import FastAPI

_SPARE: Final = 5
"""Seconds after the engine has drained, for the last answers to reach their clients."""
_CONNECTIONS: Final = 1024
"""Maximum number of connections, besides one for each waiting picture."""
BACKLOG: Final = 1024
"""Maximum number of connections that wait to be accepted."""


class Drains(Protocol):
    """The engine interface that a shutdown uses."""

    def drain(self, seconds: float) -> None:
        """Stop accepting requests, and refuse those not finished after `seconds`; returns immediately."""
        ...

    def close(self) -> None:
        """Close the engine."""
        ...


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but not listening yet; port 0 chooses a free port.

    Raises:
        ValueError: The address does not belong to this machine, or the port is in use.
    """
    bound: socket.socket | None = None
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, number)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        if bound is not None:
            bound.close()
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"--host {host} --port {port}: expected an address of this machine where nothing listens, got: {reason}; "
            "choose another port, or stop what listens there"
        ) from error
    return bound


class Server(uvicorn.Server):
    """A uvicorn server. The first SIGTERM or Ctrl-C drains the engine; a second Ctrl-C ends at once."""

    def __init__(self, app: FastAPI, engine: Drains, drain_seconds: float, waiting: int = 0) -> None:
        """Create the server of an application.

        Args:
            app: The application.
            engine: The engine that draws for it.
            drain_seconds: Seconds that a shutdown leaves for accepted requests.
            waiting: Maximum number of waiting pictures, each of which may hold a connection.
        """
        self._engine, self._drain_seconds = engine, drain_seconds
        self.handled_signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                limit_concurrency=_CONNECTIONS + waiting,
                timeout_graceful_shutdown=int(drain_seconds) + _SPARE,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See `uvicorn.Server`."""
        if not self.should_exit:
            self._engine.drain(self._drain_seconds)
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; after a drain the process exits with code 0 instead of by the signal."""
        before = {number: signal.signal(number, self.handle_exit) for number in self.handled_signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run_on(self, bound: socket.socket) -> None:
        """Serve until a signal arrives, then close the engine."""
        try:
            self.run(sockets=[bound])
        finally:
            self._engine.close()
