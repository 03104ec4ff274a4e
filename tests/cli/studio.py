"""A studio without engines: synthetic distributions on a small grid, and a picture and a judge made of the tokens."""

import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.wrapped import Wrapped
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.spatial.target import Feed, GridTarget
from underpaint.algos.step import Drafter, Target
from underpaint.runtime.codes import Codes
from underpaint.runtime.evaluation.quality import Reading, Reference
from underpaint.runtime.resampling.resampler import Resampler
from underpaint.runtime.studio import Clocked, Picture
from underpaint.sim.synthetic.grid_model import GridWeights, SyntheticGridTarget
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.zoo.prompts import SLOT_VALUES, Prompt

VOCAB = 40
GRID = Grid(4, 4)


@dataclass(slots=True)
class Meter:
    passes: int = 0
    seconds: float = 0.0

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started
        self.passes += 1


@dataclass
class MeteredTarget(Wrapped):
    meter: Meter = field(default_factory=Meter)

    def begin(self) -> Any:
        with self.meter.one_pass():
            return self.inner.begin()

    def score(self, asked: Any) -> Any:
        with self.meter.one_pass():
            return self.inner.score(asked)


@dataclass
class MeteredGridTarget(MeteredTarget):
    one_hot: bool = False

    def begin(self) -> FloatArray:
        return self._shaped(super().begin())

    def score(self, asked: Feed) -> FloatArray:
        return self._shaped(super().score(asked))

    def _shaped(self, distributions: FloatArray) -> FloatArray:
        return np.eye(self.vocab_size)[distributions.argmax(axis=-1)] if self.one_hot else distributions


@dataclass
class MeteredDrafter(Wrapped):
    meter: Meter = field(default_factory=Meter)

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        with self.meter.one_pass():
            return self.inner.expand(tokens, parents)


def real_scenes(seed: int = 3, count: int = 200) -> Reference:
    rng = np.random.default_rng(seed)
    return Reference(
        rng.standard_normal((count, 5)), rng.standard_normal((count, 5)), {"concept_and_style": 0.9, "style": 0.95}
    )


@dataclass(slots=True)
class Repeats:
    """Every low token fills its block; a block is read by its first token. Keeps what it was asked to read."""

    map: ResolutionMap
    read: list[IntArray] = field(default_factory=list)

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        whole = low[self.map.low_cells()].reshape(self.map.high)
        high = self.map.high_rows(rows)
        return whole[high.start : high.stop].ravel()

    def reduce(self, high: IntArray, rows: range) -> IntArray:
        width = self.map.low.width
        self.read.append(high[self.map.blocks()[:, 0]][rows.start * width : rows.stop * width])
        return self.read[-1]


@dataclass
class SyntheticStudio:
    side: int = 64
    grid: Grid = GRID
    max_nodes: int = 32
    sampler: SamplingParams = field(default_factory=lambda: SamplingParams(guidance=2.0))
    reference: Reference = field(default_factory=real_scenes)
    name: str = "synthetic"

    @property
    def codes(self) -> Codes:
        codebook = np.random.default_rng(4).standard_normal((VOCAB, 3))
        return Codes(nearest_codes(codebook, VOCAB - 1), codebook)

    def fingerprint(self) -> Mapping[str, Any]:
        return {"target": self.name, "side": self.side}

    def _distribution(self, prompt: Prompt) -> RandomDistribution:
        return RandomDistribution(VOCAB, seed=zlib.crc32(prompt.caption().encode()), sharpness=2.0)

    def target(self, prompt: Prompt, sampler: SamplingParams) -> Clocked[Target]:
        self._last = self._distribution(prompt)
        metered = MeteredTarget(SyntheticTarget(self._last, self.grid))
        return Clocked(metered, metered.meter)

    def drafter(self, sampler: SamplingParams) -> Clocked[Drafter]:
        metered = MeteredDrafter(SyntheticDrafter(Blend(self._last, RandomDistribution(VOCAB, seed=1), 0.3)))
        return Clocked(metered, metered.meter)

    def grid_target(self, prompt: Prompt, sampler: SamplingParams, cells: int = 1) -> Clocked[GridTarget]:
        return self._cells(self.grid, prompt, sampler)

    def low_target(self, prompt: Prompt, sampler: SamplingParams, ratio: int, cells: int = 1) -> Clocked[GridTarget]:
        return self._cells(Grid(self.grid.height // ratio, self.grid.width // ratio), prompt, sampler)

    def resampler(self, kind: str, ratio: int) -> Resampler:
        if kind != "latent":
            raise ValueError(f"resampler: there is no '{kind}'")
        return Repeats(ResolutionMap(Grid(self.grid.height // ratio, self.grid.width // ratio), self.grid))

    def _cells(self, grid: Grid, prompt: Prompt, sampler: SamplingParams) -> Clocked[GridTarget]:
        weights = GridWeights.random(grid, VOCAB, zlib.crc32(prompt.caption().encode()), coupling=1.5)
        metered = MeteredGridTarget(SyntheticGridTarget(weights), one_hot=sampler.temperature == 0)
        return Clocked(metered, metered.meter)

    def picture(self, tokens: IntArray) -> Picture:
        cells = (tokens * (255 // VOCAB)).astype(np.uint8).reshape(self.grid)
        return np.repeat(np.kron(cells, np.ones((16, 16), np.uint8))[..., None], 3, axis=2)

    def read(self, picture: Picture) -> Reading:
        shades = picture[::16, ::16, 0].astype(np.float64).ravel()
        first = {slot: values[int(shades[0]) % len(values)] for slot, values in SLOT_VALUES.items()}
        return Reading(first, shades[:5] / 128.0 - 1.0)
