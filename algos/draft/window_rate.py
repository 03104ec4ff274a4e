"""What the passes over a Jacobi window yield on this image, and when to look again at what was behind."""

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


@dataclass(slots=True)
class WindowRate:
    """The mean number of tokens that a pass over the window decides, later passes with more weight.

    A window fills up over its first passes, so it is judged after a trial of `trial` passes in a row, >= 0.
    decay: weight of a pass against that of the next, in (0, 1].
    """

    trial: int
    decay: float
    _left: int = field(init=False, default=0)
    _tokens: float = field(init=False, default=0.0)
    _passes: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.begin_trial()

    @property
    def on_trial(self) -> bool:
        """Whether the window is drafted whatever it seems to yield."""
        return self._left > 0

    @property
    def tokens(self) -> float:
        """Expected tokens of the next pass; 0 where none was made."""
        return self._tokens / self._passes if self._passes else 0.0

    def begin_trial(self) -> None:
        """Forget what was learned, and judge after `trial` more passes."""
        self._left, self._tokens, self._passes = self.trial, 0.0, 0.0

    def learn(self, tokens: int) -> None:
        """Take in a pass that decided so many tokens, >= 1."""
        self._left = max(0, self._left - 1)
        self._tokens, self._passes = self._tokens * self.decay + tokens, self._passes * self.decay + 1.0
