"""Whether training prints its progress; a recipe's caller decides, without passing it through every function."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_SHOWN: Final = ContextVar("shown", default=True)


def is_shown() -> bool:
    """Return whether steps and figures are printed."""
    return _SHOWN.get()


@contextmanager
def shown(whether: bool) -> Iterator[None]:
    """Set whether trainings inside print their steps and figures."""
    before = _SHOWN.set(whether)
    try:
        yield
    finally:
        _SHOWN.reset(before)
