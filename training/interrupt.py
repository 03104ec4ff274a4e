"""Handles Ctrl-C as a request to stop: the running step finishes and is saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that SIGINT sets; outside the main thread, signal handlers do not change."""
    stop_event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop_event
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop_event.set())
    try:
        yield stop_event
    finally:
        signal.signal(signal.SIGINT, before)
