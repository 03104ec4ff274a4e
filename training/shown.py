"""Whether a training says how far it is: a recipe's caller decides, whatever lies between them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_SHOWN: Final = ContextVar("shown", default=True)


def is_shown() -> bool:
    """Whether steps and figures are printed."""
    return _SHOWN.get()


@contextmanager
def shown(whether: bool) -> Iterator[None]:
    """Trainings inside print their steps and figures, or nothing."""
    before = _SHOWN.set(whether)
    try:
        yield
    finally:
        _SHOWN.reset(before)
