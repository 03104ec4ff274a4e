"""When to look again at what was behind."""

from dataclasses import dataclass, field
from typing import Final

MOST_DOUBLINGS: Final = 6


@dataclass(slots=True)
class Backoff:
    """Tells when to look again: after `first` cycles, >= 1, then after twice as many, and so on."""

    first: int
    _cycles: int = field(init=False, default=0)
    _doublings: int = field(init=False, default=0)

    def is_due(self) -> bool:
        """Count a cycle: is the wait over? Then a longer one begins."""
        self._cycles += 1
        if self._cycles < self.first << self._doublings:
            return False
        self._cycles, self._doublings = 0, min(self._doublings + 1, MOST_DOUBLINGS)
        return True
