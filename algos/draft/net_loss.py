"""What a picture has lost to plain decoding so far, by an engine's cost curve."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class NetLoss:
    """Milliseconds spent beyond those that plain decoding would have taken for the same tokens; below 0 is a gain.

    plain_ms: of a token that is decoded plainly, > 0. most: of such tokens that may be lost, >= 0.
    """

    plain_ms: float
    most: float
    _ms: float = field(init=False, default=0.0)

    def add(self, spent_ms: float, tokens: int) -> None:
        """Count a cycle that gave so many tokens, >= 1."""
        self._ms += spent_ms - tokens * self.plain_ms

    @property
    def is_too_large(self) -> bool:
        """Whether nothing more may be lost."""
        return self._ms > self.most * self.plain_ms
