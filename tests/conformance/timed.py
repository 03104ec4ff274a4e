"""Where a decode's time goes: wrappers that measure what happens inside target and drafter."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.step import Drafter, Scored, Target
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(slots=True)
class Tally:
    """Calls and seconds by part ("verify", "draft", "commit", "begin")."""

    calls: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time of the block to `part`."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - start
            self.calls[part] = self.calls.get(part, 0) + 1

    @property
    def total_seconds(self) -> float:
        """All parts; what a decode took beyond this is the loop, the policy and the rule."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class TimedTarget:
    """A target whose calls are measured."""

    target: Target
    tally: Tally

    @property
    def vocab_size(self) -> int:
        """See `Target`."""
        return self.target.vocab_size

    @property
    def grid(self) -> Grid:
        """See `Target`."""
        return self.target.grid

    def begin(self) -> Scored:
        """See `Target`."""
        with self.tally.measure("begin"):
            return self.target.begin()

    def score(self, tree: DraftTree) -> Scored:
        """See `Target`."""
        with self.tally.measure("verify"):
            return self.target.score(tree)

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """See `Target`."""
        with self.tally.measure("commit"):
            self.target.commit(tree, verdict)


@dataclass(frozen=True, slots=True)
class TimedDrafter:
    """A drafter whose calls are measured."""

    drafter: Drafter
    tally: Tally

    @property
    def vocab_size(self) -> int:
        """See `Drafter`."""
        return self.drafter.vocab_size

    def begin(self, scored: Scored) -> None:
        """See `Drafter`."""
        with self.tally.measure("begin"):
            self.drafter.begin(scored)

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        """See `Drafter`."""
        with self.tally.measure("draft"):
            return self.drafter.expand(tokens, parents)

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        """See `Drafter`."""
        with self.tally.measure("commit"):
            self.drafter.commit(tree, verdict, scored)
