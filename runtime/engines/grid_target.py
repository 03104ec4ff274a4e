"""A target on ONNX Runtime for the spatial methods: any cells, given any committed cells."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft.spec import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.target import Feed
from underpaint.runtime.engines.cache import hide
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.engines.line_tokens import Laid
from underpaint.runtime.engines.onnx_engine import OnnxEngine, load_decoder
from underpaint.runtime.engines.passes import Pass
from underpaint.runtime.engines.target import EngineTarget
from underpaint.zoo.load import FOLDER


class EngineGridTarget:
    """Implements `algos.spatial.target.GridTarget`: the same graph and cache, with one slot a cell.

    A cell that a line token follows has a second slot for that, which is seen and committed with the cell's own.
    """

    def __init__(self, target: EngineTarget) -> None:
        self._target = target
        self._prefix = 0
        """Condition positions of the picture begun; a prompt may be shorter than the longest."""
        self._fed: tuple[Laid, Pass] | None = None

    @classmethod
    def open(
        cls, name: str, sampler: SamplingParams, folder: Path = FOLDER, settings: EngineContext | None = None
    ) -> "EngineGridTarget":
        """The target `name` of a folder of models."""
        return cls(EngineTarget(load_decoder(name, "target", folder, settings), sampler))

    @property
    def engine(self) -> OnnxEngine:
        """The engine below."""
        return self._target.engine

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._target.vocab_size

    @property
    def grid(self) -> Grid:
        """The image to draw."""
        return self._target.grid

    def condition(self, ids: IntArray) -> None:
        """See `EngineTarget.condition`."""
        self._target.condition(ids)

    def condition_rows(self, rows: NDArray[np.float32], padding: int = 0) -> None:
        """See `EngineTarget.condition_rows`."""
        self._target.condition_rows(rows, padding)

    def begin(self) -> FloatArray:
        """See `GridTarget`."""
        self._fed = None
        distribution: FloatArray = self._target.begin().probs[0]
        self._prefix = self.engine.cache.length
        return distribution

    def score(self, feed: Feed) -> FloatArray:
        """See `GridTarget`. Raises EngineError before `begin`, or on a cell or token out of range."""
        prefix, slots = self._prefix, self.engine.cache.slots
        if not prefix or self.engine.cache.length != prefix:
            raise EngineError("target: nothing is begun yet; call begin() before score()")
        if feed.tokens.min() < 0 or feed.tokens.max() >= self.vocab_size:
            raise EngineError(f"target: expected tokens from 0 to {self.vocab_size - 1}, got {feed.tokens.tolist()}")
        lines = self._target.lines
        laid = lines.lay(feed.tokens, feed.cells, feed.visible)
        cached = feed.cached if laid.node is None else feed.cached[laid.node]
        if lines.cell_of is not None:
            cached = cached[:, lines.cell_of]
        width = min(slots - prefix, cached.shape[1])
        if cached[:, width:].any():
            raise EngineError("target: expected cached cells that were committed, got others; commit them first")
        past_bias = np.tile(self.engine.cache.bias, (laid.cells.size, 1))
        past_bias[:, prefix : prefix + width] = hide(cached[:, :width])
        result = self.engine.run(laid.tokens, laid.cells, hide(laid.visible), past_bias)
        self._fed = (laid, result)
        return result.probs_at(laid.said, self._target.sampler)

    def commit(self, rows: IntArray) -> None:
        """See `GridTarget`; once for each pass."""
        if self._fed is None:
            raise EngineError("target: commit() expects a pass that was not committed yet; score first")
        laid, result = self._fed
        positions = np.arange(laid.cells.size)[laid.positions(np.asarray(rows, dtype=np.int64))]
        slots = self._prefix + self._target.lines.places(laid.cells[positions])
        self.engine.cache.write(result.keys, result.values, positions, slots)
        self._fed = None
