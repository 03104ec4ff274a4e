"""The one source of randomness: every decision asks for a flip or a draw at an address.

An address names the decision (which cycle, which role, which node), never its turn in a sequence, so an
outcome does not depend on batch order, on the device, or on how many draws another role made.
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
"""The largest seed, and number of a picture: the generator's key holds two words of 64 bits."""


class Role(IntEnum):
    """What a decision is for. Values are part of the noise's address: append, never renumber."""

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
    """The address of a decision within a cycle: its role, and the node (or position) it decides."""

    role: Role
    node: int


class Chance(Protocol):
    """Randomness for one cycle of one image."""

    def cycle(self, index: int) -> Self:
        """The same source, for cycle `index` (0-based)."""
        ...

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        """True with probability min(1, chance_of / out_of); never when `chance_of` is 0."""
        ...

    def draw(self, weights: FloatArray, at: At) -> int:
        """An index drawn in proportion to `weights` [V] (>= 0, positive sum); never one of weight 0."""
        ...


class Source(Protocol):
    """Uniforms in [0, 1), by address."""

    def __call__(self, cycle: int, at: At) -> float:
        """The uniform at this address."""
        ...


def _cumulated(weights: FloatArray) -> FloatArray:
    """[V] float64; ValueError unless the weights are non-negative with a positive finite sum."""
    cumulated = np.add.accumulate(weights, dtype=np.float64)
    total = float(cumulated[-1]) if cumulated.size else 0.0
    if not 0.0 < total < inf or float(np.minimum.reduce(weights)) < 0.0:
        raise ValueError(
            f"draw: expected non-negative weights with a positive finite sum, got sum {total!r} and minimum "
            f"{float(weights.min(initial=inf))!r}; a distribution with no support cannot be drawn from"
        )
    return cumulated


def index_of(weights: FloatArray, uniform: float) -> int:
    """The index that `uniform` in [0, 1) falls on in the cumulated `weights` [V]; its weight is never 0."""
    cumulated = _cumulated(weights)
    found = int(cumulated.searchsorted(uniform * cumulated[-1], side="right"))
    if found >= weights.size:  # uniform * total rounded up to the total itself
        found = int(np.flatnonzero(weights)[-1])
    return found


@dataclass(frozen=True, slots=True)
class FromUniforms:
    """Flips and draws decided by addressed uniforms; `source` says where those come from."""

    source: Source
    index: int = 0

    def cycle(self, index: int) -> Self:
        return type(self)(self.source, index)

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        """The comparison is strict: a draw of exactly 0 does not accept an impossible token."""
        if chance_of >= out_of:  # certain, whatever the product below would round to
            return chance_of > 0.0
        return self.source(self.index, at) * out_of < chance_of

    def draw(self, weights: FloatArray, at: At) -> int:
        return index_of(weights, self.source(self.index, at))

    def uniforms(self, role: Role, nodes: range) -> list[float]:
        """The uniforms of `nodes`, for draws that are made elsewhere, as `index_of` makes them."""
        return [self.source(self.index, At(role, node)) for node in nodes]


@dataclass(slots=True)
class Philox:
    """A counter-based source: Philox 4x64 keyed by (seed, image), counting (cycle, role, node block).

    Any uniform can be computed alone; a block of 64 nodes is made at a time and kept for the cycle.
    """

    seed: int
    image: int = 0
    _cycle: int = -1
    _blocks: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    _stream: np.random.Generator = field(init=False, repr=False, compare=False)
    _fresh: dict[str, Any] = field(init=False, repr=False, compare=False)
    """The stream's state before its first number; setting it anew is four times as fast as a new stream."""

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
        """The uniforms of nodes 0..count-1 as one float64 array [count], as handed to a device kernel."""
        blocks = [self._block(cycle, role, which) for which in range(-(-count // _BLOCK))]
        return np.concatenate(blocks)[:count] if blocks else np.empty(0)


def sampling(seed: int, image: int = 0) -> FromUniforms:
    """Randomness for sampling picture number `image` under `seed`, both from 0 to `MOST_SEED`."""
    if not (0 <= seed <= MOST_SEED and 0 <= image <= MOST_SEED):
        raise ValueError(f"sampling: expected seed >= 0 and image >= 0, at most {MOST_SEED}, got {seed} and {image}")
    return FromUniforms(Philox(seed, image))


def scripted(uniforms: Mapping[tuple[int, Role, int], float]) -> FromUniforms:
    """Randomness that replays recorded uniforms, by (cycle, role, node); a missing address raises KeyError."""
    return FromUniforms(lambda cycle, at: uniforms[cycle, at.role, at.node])


def given(arrays: Mapping[Role, FloatArray]) -> FromUniforms:
    """Randomness from one array of uniforms [nodes] per role: what a device kernel was handed for one cycle."""
    return FromUniforms(lambda cycle, at: float(arrays[at.role][at.node]))


class _Decision(NamedTuple):
    """asked: what the options followed from; where a later branch asks the same at its turn, they are taken over."""

    options: tuple[tuple[int, float], ...]
    chosen: int
    asked: Hashable


@dataclass(slots=True)
class Enumerating:
    """Walks one branch of every outcome; `enumerate_outcomes` walks them all.

    Asking twice for the same address raises: a rule that reuses its noise has no distribution of its own.
    """

    script: tuple[_Decision, ...] = ()
    decisions: list[_Decision] = field(default_factory=list)
    seen: set[tuple[int, At]] = field(default_factory=set)
    index: int = 0

    def cycle(self, index: int) -> Self:
        return type(self)(self.script, self.decisions, self.seen, index)

    def _choose(self, asked: Hashable, options: Callable[[], tuple[tuple[int, float], ...]], at: At) -> int:
        if (self.index, at) in self.seen:
            raise RuntimeError(f"the noise at cycle {self.index}, {at} was asked for twice")
        turn = len(self.decisions)
        decision = self.script[turn] if turn < len(self.script) else None
        if decision is None or decision.asked != asked:
            decision = _Decision(options(), 0 if decision is None else decision.chosen, asked)
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
        """The probability of the branch that was walked."""
        product = 1.0
        for decision in self.decisions:
            product *= decision.options[decision.chosen][1]
        return product

    def next_branch(self) -> Self | None:
        """The next branch in depth-first order, to be walked; None after the last."""
        for turn in range(len(self.decisions) - 1, -1, -1):
            decision = self.decisions[turn]
            if decision.chosen + 1 < len(decision.options):
                return type(self)((*self.decisions[:turn], decision._replace(chosen=decision.chosen + 1)))
        return None


Outcome = TypeVar("Outcome", bound=Hashable)


def enumerate_outcomes(program: Callable[[Enumerating], Outcome]) -> dict[Outcome, float]:
    """The exact distribution of `program(chance)`: every branch is run once, with its weight.

    `program` must depend on nothing but `chance`, and be cheap: the branches multiply.
    """
    weights: dict[Outcome, list[float]] = {}
    chance: Enumerating | None = Enumerating()
    while chance is not None:
        outcome = program(chance)
        weights.setdefault(outcome, []).append(chance.weight())
        chance = chance.next_branch()
    return {outcome: fsum(parts) for outcome, parts in weights.items()}
