"""Whether training prints its progress; a recipe's caller decides, without passing it through every function."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_VERBOSE: Final = ContextVar("verbose", default=True)


def is_verbose() -> bool:
    """Return whether steps and figures are printed."""
    return _VERBOSE.get()


@contextmanager
def verbose(enabled: bool) -> Iterator[None]:
    """Set whether trainings inside print their steps and figures."""
    before = _VERBOSE.set(enabled)
    try:
        yield
    finally:
        _VERBOSE.reset(before)
