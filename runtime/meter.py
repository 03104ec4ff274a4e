"""Counts and clocks around a target and a drafter: passes, and the time spent in them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from algos.arrays import FloatArray, IntArray
from algos.draft import Grid
from algos.step import Drafter, Scored, Target
from algos.tree import DraftTree, Verdict


@dataclass(slots=True)
class Meter:
    """Passes of one model, and the seconds they took."""

    passes: int = 0
    seconds: float = 0.0

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Count a pass and clock it."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started
        self.passes += 1


@dataclass(slots=True)
class MeteredTarget:
    """A `Target` that counts and clocks its passes."""

    inner: Target
    meter: Meter = field(default_factory=Meter)

    @property
    def vocab_size(self) -> int:
        """See `Target`."""
        return self.inner.vocab_size

    @property
    def grid(self) -> Grid:
        """See `Target`."""
        return self.inner.grid

    def begin(self) -> Scored:
        """See `Target`."""
        with self.meter.one_pass():
            return self.inner.begin()

    def score(self, tree: DraftTree) -> Scored:
        """See `Target`."""
        with self.meter.one_pass():
            return self.inner.score(tree)

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """See `Target`."""
        self.inner.commit(tree, verdict)


@dataclass(slots=True)
class MeteredDrafter:
    """A `Drafter` that counts and clocks its passes."""

    inner: Drafter
    meter: Meter = field(default_factory=Meter)

    @property
    def vocab_size(self) -> int:
        """See `Drafter`."""
        return self.inner.vocab_size

    def begin(self, scored: Scored) -> None:
        """See `Drafter`."""
        self.inner.begin(scored)

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        """See `Drafter`."""
        with self.meter.one_pass():
            return self.inner.expand(tokens, parents)

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        """See `Drafter`."""
        self.inner.commit(tree, verdict, scored)
