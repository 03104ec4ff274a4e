"""What a loop takes beside its models, timed on this machine: wrappers that count the seconds within a model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import ParamSpec, TypeVar

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.target import Feed, GridTarget
from underpaint.algos.step import Scored, decode
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.sim.batched.decoding import Scheme, make_scheme
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget

Given = ParamSpec("Given")
Result = TypeVar("Result")


@dataclass(slots=True)
class ModelTimer:
    """Seconds spent inside the models."""

    seconds: float = 0.0

    def during(self, call: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
        """What `call` returns; its seconds are added."""
        started = perf_counter()
        result = call(*given, **named)
        self.seconds += perf_counter() - started
        return result


@dataclass(slots=True)
class _TimedTarget:
    target: TableTarget
    timer: ModelTimer
    vocab_size: int = field(init=False)
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.grid = self.target.vocab_size, self.target.grid

    def begin(self) -> Scored:
        return self.timer.during(self.target.begin)

    def score(self, tree: DraftTree) -> Scored:
        return self.timer.during(self.target.score, tree)

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        self.timer.during(self.target.commit, tree, verdict)


@dataclass(slots=True)
class _TimedDrafter:
    drafter: TableDrafter
    timer: ModelTimer
    vocab_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size = self.drafter.vocab_size

    def begin(self, scored: Scored) -> None:
        self.timer.during(self.drafter.begin, scored)

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        return self.timer.during(self.drafter.expand, tokens, parents)

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        self.timer.during(self.drafter.commit, tree, verdict, scored)


@dataclass(slots=True)
class TimedGridTarget:
    """A `GridTarget` whose seconds are counted."""

    target: GridTarget
    timer: ModelTimer
    vocab_size: int = field(init=False)
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.vocab_size, self.grid = self.target.vocab_size, self.target.grid

    def begin(self) -> FloatArray:
        return self.timer.during(self.target.begin)

    def score(self, feed: Feed) -> FloatArray:
        return self.timer.during(self.target.score, feed)

    def commit(self, rows: IntArray) -> None:
        self.timer.during(self.target.commit, rows)


def overhead_ms(model: TableModel, scheme: Scheme | None, images: int, max_nodes: int) -> float:
    """What a cycle of the loop, the policy and the rule takes on this machine, the models' share left out.

    scheme: None for plain autoregression.
    """
    timer, cycles, started = ModelTimer(), 0, perf_counter()
    plain = scheme or make_scheme(model, "chain", "chain")
    for image in range(images):
        target, drafter = _TimedTarget(TableTarget(model, image), timer), None
        if scheme is not None:
            drafter = _TimedDrafter(TableDrafter(model, image), timer)
        decoded = decode(target, drafter, plain.policy, plain.rule, sampling(0, image), max_nodes)
        cycles += len(decoded.cycles)
    return 1e3 * (perf_counter() - started - timer.seconds) / cycles
