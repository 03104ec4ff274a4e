"""A pipeline without engines: synthetic distributions on a small grid, and a picture and a judge made of the tokens."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.grid_model import GridWeights, SyntheticGridTarget
from tests.wrapped import Wrapped
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid, PassKind
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.spatial.target import Feed, GridTarget
from underpaint.algos.step import Drafter, Scored, Target
from underpaint.algos.tree import DraftTree
from underpaint.artifacts.model_families import TEXTURED_FAMILY
from underpaint.artifacts.model_index import ModelIndex
from underpaint.runtime.conditions import Condition, parse_condition
from underpaint.runtime.engines.engine import PassTimer
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.evaluation import picture_judge
from underpaint.runtime.evaluation.quality import Reading, Reference
from underpaint.runtime.methods.method import ModelTables, Timed
from underpaint.runtime.pipeline import Pipeline
from underpaint.runtime.resampling.resampler import Resampler
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.zoo.textured_prompts import MAIN_ACCURACY, TEXTURED_SLOTS

VOCAB = 40
GRID = Grid(4, 4)
INDEX_OF_PROMPTS = ModelIndex({}, (), condition="prompt_grammar", family=TEXTURED_FAMILY)


@contextmanager
def one_pass(timer: PassTimer, kind: PassKind) -> Iterator[None]:
    started = time.perf_counter()
    yield
    timer.add(kind, kind.size, time.perf_counter() - started)


@dataclass
class TimedTarget(Wrapped):
    timer: PassTimer = field(default_factory=PassTimer)

    def begin(self) -> Any:
        with one_pass(self.timer, PassKind("begin", 1, 1)):
            return self.inner.begin()

    def score(self, asked: Any) -> Any:
        with one_pass(self.timer, PassKind("pass", 1, asked.tokens.size)):
            return self.inner.score(asked)


@dataclass
class OneHotTarget(TimedTarget):
    """A target at temperature 0: every distribution holds its likeliest token alone."""

    def begin(self) -> Scored:
        return self._cold(super().begin())

    def score(self, asked: DraftTree) -> Scored:
        return self._cold(super().score(asked))

    def _cold(self, scored: Scored) -> Scored:
        return scored._replace(probs=np.eye(self.vocab_size)[scored.probs.argmax(axis=-1)])


@dataclass
class TimedGridTarget(TimedTarget):
    one_hot: bool = False

    def begin(self) -> FloatArray:
        return self._shaped(super().begin())

    def score(self, asked: Feed) -> FloatArray:
        return self._shaped(super().score(asked))

    def _shaped(self, distributions: FloatArray) -> FloatArray:
        return np.eye(self.vocab_size)[distributions.argmax(axis=-1)] if self.one_hot else distributions


@dataclass
class TimedDrafter(Wrapped):
    timer: PassTimer = field(default_factory=PassTimer)

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        with one_pass(self.timer, PassKind("pass", 1, tokens.size)):
            return self.inner.expand(tokens, parents)


def real_scenes(seed: int = 3, count: int = 200) -> Reference:
    rng = np.random.default_rng(seed)
    return Reference(
        rng.standard_normal((count, 5)), rng.standard_normal((count, 5)), {MAIN_ACCURACY: 0.9, "finish": 0.95}
    )


@dataclass(slots=True)
class Repeats:
    """Every low token fills its block; a block is read by its first token. Keeps what it was asked to read."""

    map: ResolutionMap
    read: list[IntArray] = field(default_factory=list)

    def enlarge(self, low: IntArray, rows: range) -> IntArray:
        whole = low[np.argsort(self.map.blocks().reshape(-1)) // self.map.ratio**2].reshape(self.map.high)
        high = self.map.high_rows(rows)
        return whole[high.start : high.stop].ravel()

    def reduce(self, high: IntArray, rows: range) -> IntArray:
        width = self.map.low.width
        self.read.append(high[self.map.blocks()[:, 0]][rows.start * width : rows.stop * width])
        return self.read[-1]


class SyntheticJudge:
    """Reads attributes and features off the first cells."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.hashes: Mapping[str, str] = {}

    def read(self, picture: Picture) -> Reading:
        shades = picture[::16, ::16, 0].astype(np.float64).ravel()
        first = {slot: values[int(shades[0]) % len(values)] for slot, values in TEXTURED_SLOTS.items()}
        scores = {slot: np.resize(shades / 64.0, len(values)) for slot, values in TEXTURED_SLOTS.items()}
        return Reading(first, shades[:5] / 128.0 - 1.0, scores)


@dataclass
class SyntheticPipeline:
    resolution: int = 64
    grid: Grid = GRID
    max_nodes: int = 32
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(guidance=2.0))
    judge: SyntheticJudge | None = field(default_factory=lambda: SyntheticJudge(real_scenes()))
    name: str = "synthetic"
    folder: Path = Path("synthetic")
    index: ModelIndex = field(
        default_factory=lambda: ModelIndex({}, (), condition="prompt_grammar", family=TEXTURED_FAMILY)
    )
    decoder: Any = True
    context: None = None
    loaded_drafter: None = None  # nothing of it is an engine, so no curve is measured

    @property
    def tables(self) -> ModelTables:
        codebook = np.random.default_rng(4).standard_normal((VOCAB, 3))
        return ModelTables(nearest_codes(codebook, VOCAB - 1), codebook)

    @property
    def entry(self) -> Any:
        """What `judge_of` hands to the patched `open_judge`; see `replace_models`."""
        return self.judge

    def title(self) -> str:
        return f"{self.resolution} px"

    def fingerprint(self) -> Mapping[str, Any]:
        return {
            "grid": list(self.grid),
            "target": self.name,
            "resolution": self.resolution,
            "engine": "synthetic",
            "sha256": {},
        }

    def folder_models(self) -> "SyntheticPipeline":
        """It stands in for a folder of exported models."""
        return self

    def condition(self, text: str) -> Condition:
        return parse_condition(text, self.index.condition)

    def _distribution(self, condition: Condition) -> RandomDistribution:
        return RandomDistribution(VOCAB, seed=condition.noise_key, sharpness=2.0)

    _last = RandomDistribution(VOCAB, seed=0)

    def target(self, condition: Condition, sampling: SamplingParams) -> Timed[Target]:
        self._last = self._distribution(condition)
        kind = OneHotTarget if sampling.temperature == 0 else TimedTarget
        timed = kind(SyntheticTarget(self._last, self.grid))
        return Timed(timed, timed.timer)

    def drafter(self, sampling: SamplingParams) -> Timed[Drafter]:
        timed = TimedDrafter(SyntheticDrafter(Blend(self._last, RandomDistribution(VOCAB, seed=1), 0.3)))
        return Timed(timed, timed.timer)

    def grid_target(self, condition: Condition, sampling: SamplingParams, cells: int = 1) -> Timed[GridTarget]:
        return self._cells(self.grid, condition, sampling)

    def low_target(
        self, condition: Condition, sampling: SamplingParams, ratio: int, cells: int = 1, int8: bool | None = None
    ) -> Timed[GridTarget]:
        return self._cells(Grid(self.grid.height // ratio, self.grid.width // ratio), condition, sampling)

    def preview(self, condition: object, sampling: SamplingParams) -> None:
        """None: the models of a folder draw no preview of their own."""

    def resampler(self, kind: str, ratio: int) -> Resampler:
        if kind not in ("latent", "superres"):
            raise ValueError(f"resampler: there is no '{kind}'")
        return Repeats(ResolutionMap(Grid(self.grid.height // ratio, self.grid.width // ratio), self.grid))

    def _cells(self, grid: Grid, condition: Condition, sampling: SamplingParams) -> Timed[GridTarget]:
        weights = GridWeights.random(grid, VOCAB, condition.noise_key, coupling=1.5)
        timed = TimedGridTarget(SyntheticGridTarget(weights), one_hot=sampling.temperature == 0)
        return Timed(timed, timed.timer)

    def picture(self, tokens: IntArray) -> Picture:
        cells = (tokens * (255 // VOCAB)).astype(np.uint8).reshape(self.grid)
        return np.repeat(np.kron(cells, np.ones((16, 16), np.uint8))[..., None], 3, axis=2)


def replace_models(monkeypatch: pytest.MonkeyPatch, make: Callable[[int | None], Any]) -> None:
    """Let every command open what `make` makes of the resolution asked for."""

    def opened(folder: Path | None = None, *, resolution: int | None = None, **options: Any) -> Any:
        return make(resolution)

    monkeypatch.setattr(Pipeline, "open", staticmethod(opened))
    monkeypatch.setattr(picture_judge, "open_judge", lambda folder, index, entry, context: entry)
