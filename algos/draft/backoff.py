"""A counter that decides when to re-evaluate an option that was slower."""

from dataclasses import dataclass, field
from typing import Final

MOST_DOUBLINGS: Final = 6


@dataclass(slots=True)
class Backoff:
    """Decides when to re-evaluate: after `first` cycles (>= 1), then after twice as many, and so on."""

    first: int
    _cycles: int = field(init=False, default=0)
    _doublings: int = field(init=False, default=0)

    def is_due(self) -> bool:
        """Count a cycle; return True if the wait is over, and start a longer wait."""
        self._cycles += 1
        if self._cycles < self.first << self._doublings:
            return False
        self._cycles, self._doublings = 0, min(self._doublings + 1, MOST_DOUBLINGS)
        return True
