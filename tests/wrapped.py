"""Models behind which other models do the work, for tests that measure or note what passes between."""

from dataclasses import dataclass
from typing import Any

from underpaint.algos.protocols import Grid


@dataclass
class Wrapped:
    """A target or a drafter that leaves everything to `inner`; a test overrides what it watches."""

    inner: Any

    @property
    def vocab_size(self) -> int:
        return int(self.inner.vocab_size)

    @property
    def grid(self) -> Grid:
        return Grid(*self.inner.grid)

    def begin(self, *args: Any) -> Any:
        return self.inner.begin(*args)

    def score(self, asked: Any) -> Any:
        return self.inner.score(asked)

    def commit(self, *args: Any) -> None:
        self.inner.commit(*args)
