"""The only source of randomness: each decision requests a flip or a draw at an address.

An address names the decision (cycle, role and node), not its position in a sequence. So an outcome does not depend on
batch order, on the device, or on the number of draws made for other roles.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import fsum, inf
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from underpaint.algos.arrays import FloatArray

_BLOCK = 64
MOST_SEED: Final = 2**64 - 1
"""The largest seed and the largest image number: the generator's key holds two 64-bit words."""


class Role(IntEnum):
    """The purpose of a decision. The values are part of noise addresses: append new ones, never renumber."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2
    BONUS = 3
    REFILL = 4
    SKIP = 5
    PATH = 6
    CELL = 7
    WINDOW = 8
    NOISE = 9
    COUPLE = 10
    CANDIDATE = 11


class At(NamedTuple):
    """The address of a decision within a cycle: its role, and the node (or position) that it is about."""

    role: Role
    node: int


class Chance(Protocol):
    """The randomness for one cycle of one image."""

    def cycle(self, index: int) -> Self:
        """Return the same source for cycle `index` (0-based)."""
        ...

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        """Return True with probability min(1, chance_of / out_of); never if `chance_of` is 0."""
        ...

    def draw(self, weights: FloatArray, at: At) -> int:
        """Return an index with probability proportional to `weights` [V] (>= 0, positive sum), never of weight 0."""
        ...


class Source(Protocol):
    """A source of uniform numbers in [0, 1), one per address."""

    def __call__(self, cycle: int, at: At) -> float:
        """Return the uniform number at this address."""
        ...


def _cumulated(weights: FloatArray) -> FloatArray:
    """Return cumulative sums [V] float64; raise ValueError unless weights are >= 0 with a positive finite sum."""
    cumulated = np.add.accumulate(weights, dtype=np.float64)
    total = float(cumulated[-1]) if cumulated.size else 0.0
    if not 0.0 < total < inf or float(np.minimum.reduce(weights)) < 0.0:
        raise ValueError(
            f"draw: expected non-negative weights with a positive finite sum, got sum {total!r} and minimum "
            f"{float(weights.min(initial=inf))!r}; a distribution with no support cannot be drawn from"
        )
    return cumulated


def index_of(weights: FloatArray, uniform: float) -> int:
    """Return the index into which `uniform` in [0, 1) falls in the cumulated `weights` [V]; its weight is never 0."""
    cumulated = _cumulated(weights)
    index = int(cumulated.searchsorted(uniform * cumulated[-1], side="right"))
    if index >= weights.size:  # uniform * total was rounded up to the total
        index = int(np.flatnonzero(weights)[-1])
    return index


@dataclass(frozen=True, slots=True)
class FromUniforms:
    """Makes flips and draws from the uniform numbers that `source` has at their addresses."""

    source: Source
    index: int = 0

    def cycle(self, index: int) -> Self:
        return type(self)(self.source, index)

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        """The comparison is strict, so a uniform of exactly 0 does not accept an impossible token."""
        if chance_of >= out_of:  # certain, however the product below would be rounded
            return chance_of > 0.0
        return self.source(self.index, at) * out_of < chance_of

    def draw(self, weights: FloatArray, at: At) -> int:
        return index_of(weights, self.source(self.index, at))

    def uniforms(self, role: Role, nodes: range) -> list[float]:
        """Return the uniforms of `nodes` for draws made elsewhere, in the way of `index_of`."""
        return [self.source(self.index, At(role, node)) for node in nodes]


@dataclass(slots=True)
class Philox:
    """A counter-based source: Philox 4x64 keyed by (seed, image), with counter (cycle, role, node block).

    Each uniform can be computed independently. Blocks of 64 nodes are generated at a time and cached for the cycle.
    """

    seed: int
    image: int = 0
    _cycle: int = -1
    _blocks: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    _stream: np.random.Generator = field(init=False, repr=False, compare=False)
    _fresh: dict[str, Any] = field(init=False, repr=False, compare=False)
    """The initial state of the stream; resetting to it is four times as fast as creating a new stream."""

    def __post_init__(self) -> None:
        keyed = np.array([self.seed, self.image], dtype=np.uint64)
        self._stream = np.random.Generator(np.random.Philox(key=keyed))
        self._fresh = dict(self._stream.bit_generator.state)

    def __call__(self, cycle: int, at: At) -> float:
        if cycle != self._cycle:
            self._blocks.clear()
            self._cycle = cycle
        which, place = divmod(at.node, _BLOCK)
        key = (int(at.role), which)
        block = self._blocks.get(key)
        if block is None:
            block = self._block(cycle, at.role, which)
            self._blocks[key] = block
        return float(block[place])

    def _block(self, cycle: int, role: int, which: int) -> FloatArray:
        self._fresh["state"]["counter"][:] = (0, which, role, cycle)
        self._stream.bit_generator.state = self._fresh
        return self._stream.random(_BLOCK)

    def uniforms(self, cycle: int, role: Role, count: int) -> FloatArray:
        """Return the uniforms of nodes 0..count-1 as a float64 array [count], the input of a device kernel."""
        blocks = [self._block(cycle, role, which) for which in range(-(-count // _BLOCK))]
        return np.concatenate(blocks)[:count] if blocks else np.empty(0)


def sampling(seed: int, image: int = 0) -> FromUniforms:
    """Return randomness for image number `image` under `seed`, both from 0 to `MOST_SEED`."""
    if not (0 <= seed <= MOST_SEED and 0 <= image <= MOST_SEED):
        raise ValueError(f"sampling: expected seed >= 0 and image >= 0, at most {MOST_SEED}, got {seed} and {image}")
    return FromUniforms(Philox(seed, image))


def scripted(uniforms: Mapping[tuple[int, Role, int], float]) -> FromUniforms:
    """Return randomness that replays uniforms recorded by (cycle, role, node); a missing address raises KeyError."""
    return FromUniforms(lambda cycle, at: uniforms[cycle, at.role, at.node])


def from_arrays(arrays: Mapping[Role, FloatArray]) -> FromUniforms:
    """Return randomness from one array of uniforms [nodes] per role: the inputs of a device kernel for one cycle."""
    return FromUniforms(lambda cycle, at: float(arrays[at.role][at.node]))


class _Decision(NamedTuple):
    """request: The input that determines `options`; a later branch with the same request reuses them."""

    options: tuple[tuple[int, float], ...]
    chosen: int
    request: Hashable


@dataclass(slots=True)
class Enumerating:
    """Walks one branch of all outcomes; `enumerate_outcomes` walks all branches.

    Using the same address twice raises RuntimeError, because decisions with reused noise are not independent.
    """

    script: tuple[_Decision, ...] = ()
    decisions: list[_Decision] = field(default_factory=list)
    seen: set[tuple[int, At]] = field(default_factory=set)
    index: int = 0

    def cycle(self, index: int) -> Self:
        return type(self)(self.script, self.decisions, self.seen, index)

    def _choose(self, request: Hashable, options: Callable[[], tuple[tuple[int, float], ...]], at: At) -> int:
        if (self.index, at) in self.seen:
            raise RuntimeError(f"the noise at cycle {self.index}, {at} was asked for twice")
        turn = len(self.decisions)
        decision = self.script[turn] if turn < len(self.script) else None
        if decision is None or decision.request != request:
            decision = _Decision(options(), 0 if decision is None else decision.chosen, request)
        self.seen.add((self.index, at))
        self.decisions.append(decision)
        return decision.options[decision.chosen][0]

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        def options() -> tuple[tuple[int, float], ...]:
            share = min(1.0, chance_of / out_of) if 0.0 < chance_of < out_of else float(chance_of > 0.0)
            return tuple((value, weight) for value, weight in ((1, share), (0, 1.0 - share)) if weight > 0.0)

        return bool(self._choose((chance_of, out_of), options, at))

    def draw(self, weights: FloatArray, at: At) -> int:
        def options() -> tuple[tuple[int, float], ...]:
            total = float(_cumulated(weights)[-1])
            return tuple((i, float(weights[i]) / total) for i in np.flatnonzero(weights).tolist())

        return self._choose((weights.dtype.char, weights.tobytes()), options, at)

    def weight(self) -> float:
        """Return the probability of the branch walked so far."""
        product = 1.0
        for decision in self.decisions:
            product *= decision.options[decision.chosen][1]
        return product

    def next_branch(self) -> Self | None:
        """Return the next branch in depth-first order, not walked yet; None after the last."""
        for turn in range(len(self.decisions) - 1, -1, -1):
            decision = self.decisions[turn]
            if decision.chosen + 1 < len(decision.options):
                return type(self)((*self.decisions[:turn], decision._replace(chosen=decision.chosen + 1)))
        return None


Outcome = TypeVar("Outcome", bound=Hashable)


def enumerate_outcomes(program: Callable[[Enumerating], Outcome]) -> dict[Outcome, float]:
    """Return the exact distribution of `program(chance)`: each branch runs once and counts with its probability.

    `program` must depend only on `chance`, and be cheap, because the number of branches grows exponentially.
    """
    weights: dict[Outcome, list[float]] = {}
    chance: Enumerating | None = Enumerating()
    while chance is not None:
        outcome = program(chance)
        weights.setdefault(outcome, []).append(chance.weight())
        chance = chance.next_branch()
    return {outcome: fsum(parts) for outcome, parts in weights.items()}
