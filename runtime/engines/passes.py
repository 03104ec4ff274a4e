"""What an engine's pass gives and takes, and how its graph is told to make distributions of logits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.rows import SamplingParams, sampling_probs

_ALL: Final = np.finfo(np.float32).min / 2
"""Lowers the least logit that is kept so far that every one is."""


GROWN: Final = ("root_tokens", "root_masses", "next_places", "below_tokens", "below_masses", "below_laws")
"""A graph's names of what `FusedTree` holds."""


@dataclass(slots=True)
class PassTimer:
    """What the passes of an engine took: calls, new positions, seconds."""

    passes: int = 0
    positions: int = 0
    seconds: float = 0.0


class FusedTree(NamedTuple):
    """A tree of L levels, F nodes expanded in each, C children of each.

    root_tokens [1, C] int64, root_masses [1, C] float64; of the levels below places [L - 1, F] int64, tokens and masses
    [L - 1, F, C], distributions [L - 1, F, V] float32.
    """

    root_tokens: IntArray
    root_masses: FloatArray
    places: IntArray
    tokens: IntArray
    masses: FloatArray
    distributions: NDArray[np.float32]


def fused_tree_buffers(levels: int, nodes: int, children: int, vocab_size: int) -> FusedTree:
    """Buffers for a tree of these sizes."""
    more = levels - 1
    return FusedTree(
        np.zeros((1, children), dtype=np.int64),
        np.zeros((1, children)),
        np.zeros((more, nodes), dtype=np.int64),
        np.zeros((more, nodes, children), dtype=np.int64),
        np.zeros((more, nodes, children)),
        np.zeros((more, nodes, vocab_size), dtype=np.float32),
    )


class Pass(NamedTuple):
    """Outputs of one pass: views of buffers that the engine's next pass overwrites.

    logits [B, T, V]; features [B, T, D]; keys, values [L, B, H, T, hd] of the new positions. probs [T, V]: the
    distributions of the sampler that the engine was told, where the graph computes them. drafted [levels] int64: the
    greedy chain behind the last position; grown: the tree behind it, where one was asked for.
    """

    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    probs: NDArray[np.float32] | None = None
    drafted: IntArray | None = None
    grown: FusedTree | None = None

    def probs_at(self, said: IntArray | slice, sampler: SamplingParams) -> FloatArray:
        """The distributions [N, V] of the positions `said`: the graph's own where it has them, else made of the logits
        here.

        sampler: the one that the engine was told. Raises ValueError on NaN or infinity among the logits.
        """
        if self.probs is None:
            return np.asarray(sampling_probs(self.logits[:, said], sampler))
        probs = self.probs[said].copy()
        if not np.isfinite(np.add.reduce(probs[:, 0])):  # one NaN or infinity spoils the whole of its distribution
            raise ValueError("distributions: expected finite logits, got NaN or infinity; check the engine's parity")
        return probs


class Sampling:
    """The inputs of a graph that makes distributions itself (`export.probabilities`); they may change between two
    passes."""

    def __init__(self, rows: int, known: bool) -> None:
        """rows: B. known: whether the graph has these inputs."""
        self._known = known
        self.computed = False
        """Whether the graph computes the distributions of the sampler that it was told last."""
        self._mix = np.full((1, rows), 1.0 / rows, dtype=np.float32)
        self._kept = np.ones(1, dtype=np.int64)
        self._sharpness = np.ones((), dtype=np.float32)
        self._lowering = np.full((), _ALL, dtype=np.float32)

    def take(self, sampler: SamplingParams, vocab_size: int) -> None:
        """Tell the graph a sampler. Without randomness, or with a top-p, its distributions are made on the host."""
        if self._mix.size == 2:
            self._mix[:] = (sampler.guidance, 1.0 - sampler.guidance)
        self.computed = self._known and sampler.temperature > 0.0 and sampler.top_p == 1.0
        if self.computed:
            cut = 0 < sampler.top_k < vocab_size
            self._kept[:], self._lowering[...] = (sampler.top_k, 0.0) if cut else (1, _ALL)
            self._sharpness[...] = 1.0 / sampler.temperature

    def inputs(self) -> Mapping[str, NDArray[Any]]:
        """The arrays to bind, by name."""
        if not self._known:
            return {}
        values = (self._mix, self._kept, self._sharpness, self._lowering)
        return dict(zip(("mix", "kept", "sharpness", "lowering"), values, strict=True))
