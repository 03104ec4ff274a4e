"""Ctrl-C as a request: what runs finishes its step and saves."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Give an event that SIGINT sets; outside the main thread signals stay as they are."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
