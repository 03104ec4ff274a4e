"""Shared noise: draws of one cell from several distributions use the same noise, so that they mostly agree.

A race gives token i the arrival time noise_i / weight_i with exponential noise; the token that arrives first is a draw
from the weights (like the argmax of log weight + Gumbel noise). With the same noise, a second distribution gives the
same winner with probability at least (1 - TV) / (1 + TV), where TV is their total variation.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Enumerating, FromUniforms, Philox, Role

_MOST_RACES = 1 << 10


class Noise(Protocol):
    """One noise vector per cell of an image. Repeated requests return the same noise."""

    def race(self, weights: FloatArray, cell: int) -> int:
        """Return the winner at `cell` under `weights` [V] (>= 0, positive sum); its weight is never 0."""
        ...


def _checked(weights: FloatArray) -> None:
    total = float(weights.sum())
    if not (np.isfinite(total) and total > 0.0) or float(weights.min()) < 0.0:
        raise ValueError(f"race: expected non-negative weights with a positive finite sum, got sum {total!r}")


@dataclass(slots=True)
class SampledNoise:
    """Exponential noise from Philox 4x64, keyed by (seed, image) and counted by cell; caches `keep` cells."""

    seed: int
    image: int = 0
    keep: int = 256
    _rows: dict[int, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seed < 0 or self.image < 0 or self.keep < 1:
            raise ValueError(f"noise: expected seed, image >= 0 and keep >= 1, got {self}")

    def race(self, weights: FloatArray, cell: int) -> int:
        _checked(weights)
        noise = self._rows.get(cell)
        if noise is None or noise.size != weights.size:
            noise = self.row(cell, weights.size)
            if len(self._rows) >= self.keep:
                self._rows.pop(next(iter(self._rows)))
            self._rows[cell] = noise
        arrivals = np.full(weights.size, np.inf)
        np.divide(noise, weights, out=arrivals, where=weights > 0.0)
        return int(arrivals.argmin())

    def row(self, cell: int, vocab_size: int) -> FloatArray:
        """Return the noise [V] of a cell."""
        counter = np.array([0, 0, Role.NOISE, cell], dtype=np.uint64)
        keyed = np.array([self.seed, self.image], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(counter=counter, key=keyed)).exponential(size=vocab_size)


class _Past(NamedTuple):
    distribution: FloatArray
    winner: int


@dataclass(slots=True)
class EnumeratedNoise:
    """Enumerates all outcomes of races, each with its exact probability given the earlier races at the same cell.

    At one cell it supports any number of races between the same two tokens, or two different distributions over any
    vocabulary. Other cases have no closed form here and raise ValueError.
    """

    chance: Chance
    _past: dict[int, list[_Past]] = field(default_factory=dict)

    def race(self, weights: FloatArray, cell: int) -> int:
        _checked(weights)
        distribution = weights.astype(np.float64) / float(weights.sum())
        past = self._past.setdefault(cell, [])
        for seen in past:
            if np.array_equal(seen.distribution, distribution):
                return seen.winner
        if len(past) >= _MOST_RACES:
            raise ValueError(f"race: more than {_MOST_RACES} distributions raced at cell {cell}")
        winner = self.chance.draw(_conditional(past, distribution), At(Role.NOISE, cell * _MOST_RACES + len(past)))
        past.append(_Past(distribution, winner))
        return winner


def noise_of(chance: Chance) -> Noise:
    """Return the cell noise of the image that `chance` draws: same seed and image, separate addresses.

    Raises ValueError if `chance` uses fixed uniforms, such as recorded ones, which cannot be extended.
    """
    if isinstance(chance, Enumerating):
        return EnumeratedNoise(chance)
    if isinstance(chance, FromUniforms) and isinstance(chance.source, Philox):
        return SampledNoise(chance.source.seed, chance.source.image)
    raise ValueError("noise: expected randomness by a seed, got recorded uniforms, which hold no noise of cells")


def _conditional(past: list[_Past], distribution: FloatArray) -> FloatArray:
    """Return the distribution [V] of the next winner, given the earlier races."""
    if not past:
        return distribution
    tokens = np.flatnonzero(np.any([distribution, *(seen.distribution for seen in past)], axis=0))
    if tokens.size <= 2:
        return _between_two(past, distribution, int(tokens[0]))
    if len(past) == 1:
        return second_race(past[0].distribution, past[0].winner, distribution)
    raise ValueError("race: a third distribution over three tokens or more cannot be enumerated; use a vocabulary of 2")


def _between_two(past: list[_Past], distribution: FloatArray, token: int) -> FloatArray:
    """Distribution for two tokens: `token` wins if one uniform (its share of the noise) is below its probability."""
    low, high = 0.0, 1.0
    for seen in past:
        if seen.winner == token:
            high = min(high, float(seen.distribution[token]))
        else:
            low = max(low, float(seen.distribution[token]))
    wins = min(1.0, max(0.0, (float(distribution[token]) - low) / (high - low)))
    conditional = np.where(distribution > 0.0, 1.0 - wins, 0.0)
    conditional[token] = wins
    return conditional


def second_race(first: FloatArray, winner: int, second: FloatArray) -> FloatArray:
    """Return the distribution [V] of the winner under `second`, given that `winner` won under `first` (same noise).

    Both are [V] with sum 1. In units of the first winner's arrival time, token l arrives after first[l] / second[l],
    with hazard rate second[l]; the first winner arrives at first[winner] / second[winner]. P(winner wins both) is
    1 / sum_l max(first[l] / first[winner], second[l] / second[winner]).
    """
    others = np.flatnonzero(second > 0.0)
    others = others[others != winner]
    starts = first[others] / second[others]
    end = float(first[winner] / second[winner]) if second[winner] > 0.0 else np.inf
    distribution = np.zeros(first.size)
    edges = np.unique(np.append(starts[starts < end], end))

    for begin, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        running = others[starts <= begin]
        distribution[running] += (
            second[running]
            / second[running].sum()
            * (_outlasts(begin, first[others], second[others]) - _outlasts(stop, first[others], second[others]))
        )
    distribution[winner] = _outlasts(end, first[others], second[others])
    return distribution


def _outlasts(edge: float, first: FloatArray, second: FloatArray) -> float:
    """Return the probability that no other token, with weights `first` and `second`, has arrived by `edge`."""
    return 0.0 if edge == np.inf else 1.0 / (1.0 + float(np.maximum(second * edge - first, 0.0).sum()))
