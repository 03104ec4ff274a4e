"""Synthetic models on small vocabularies, whose distributions are known functions of the tokens before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.step import Scored
from underpaint.algos.tree import NO_TOKEN, DraftTree, Verdict

Prefix: TypeAlias = tuple[int, ...]
"""The tokens drawn so far, in raster order."""

PrefixDistribution: TypeAlias = Callable[[Prefix], FloatArray]
"""Maps a prefix to the distribution [V] (float64, sum 1) of the next token; it must be deterministic."""


def _digest(prefix: Prefix, seed: int) -> int:
    spelled = ",".join(str(token) for token in prefix)
    return int.from_bytes(blake2b(f"{seed}:{spelled}".encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class RandomDistribution:
    """Gives each prefix its own distribution: softmax(sharpness * normal noise), seeded by the hash of the prefix."""

    vocab_size: int
    seed: int = 0
    sharpness: float = 1.0
    _cache: dict[Prefix, FloatArray] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, prefix: Prefix) -> FloatArray:
        row = self._cache.get(prefix)
        if row is None:
            noise = np.random.default_rng(_digest(prefix, self.seed)).standard_normal(self.vocab_size)
            masses = np.exp(self.sharpness * (noise - noise.max()))
            row = self._cache[prefix] = masses / masses.sum()
        return row


@dataclass(frozen=True, slots=True)
class Blend:
    """Mixes two distributions as (1 - share) * first + share * second: a drafter with a known share of error."""

    first: PrefixDistribution
    second: PrefixDistribution
    share: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"blend: share must be in [0, 1], got {self.share!r}")

    def __call__(self, prefix: Prefix) -> FloatArray:
        return (1.0 - self.share) * self.first(prefix) + self.share * self.second(prefix)


def _prefixes(
    before: Prefix, tokens: Sequence[int], parents: Sequence[int], earlier_ends: Sequence[Prefix] = ()
) -> list[Prefix]:
    """The prefix that ends at each new node; it includes the root's token unless that is NO_TOKEN."""
    ends = list(earlier_ends)
    for token, parent in zip(tokens, parents, strict=True):
        start = before if parent < 0 else ends[parent]
        ends.append(start if token == NO_TOKEN else (*start, token))
    return ends[len(earlier_ends) :]


def _accepted_prefix(tree: DraftTree, verdict: Verdict) -> Prefix:
    return tuple(int(tree.tokens[node]) for node in (0, *verdict.path))


@dataclass(slots=True)
class SyntheticTarget:
    """A `Target` whose distribution after each node is `distribution` of the tokens on the path to it."""

    distribution: PrefixDistribution
    grid: Grid
    vocab_size: int = field(init=False)
    _committed: Prefix = ()

    def __post_init__(self) -> None:
        self.vocab_size = self.distribution(()).size

    def begin(self) -> Scored:
        self._committed = ()
        return Scored(self.distribution(())[None, :])

    def score(self, tree: DraftTree) -> Scored:
        ends = _prefixes(self._committed, tree.tokens.tolist(), tree.parents.tolist())
        return Scored(np.array([self.distribution(end) for end in ends]))

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        self._committed += _accepted_prefix(tree, verdict)


@dataclass(slots=True)
class SyntheticDrafter:
    """A `Drafter` whose distribution after each node is `distribution` of the tokens on the path to it."""

    distribution: PrefixDistribution
    vocab_size: int = field(init=False)
    _committed: Prefix = ()
    _nodes: list[Prefix] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.vocab_size = self.distribution(()).size

    def begin(self, scored: Scored) -> None:
        self._committed = ()
        self._nodes = []

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        new = _prefixes(self._committed, tokens.tolist(), parents.tolist(), self._nodes)
        self._nodes.extend(new)
        return np.array([self.distribution(end) for end in new])

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        self._committed += _accepted_prefix(tree, verdict)
        self._nodes = []
