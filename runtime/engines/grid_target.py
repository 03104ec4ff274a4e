"""A target on an engine for the spatial methods: any cells, given any committed cells."""

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.target import Feed
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.engine import Engine
from underpaint.runtime.engines.eol_tokens import PassLayout
from underpaint.runtime.engines.masks import hide
from underpaint.runtime.engines.target import EngineTarget, check_tokens


class EngineGridTarget:
    """Implements `algos.spatial.target.GridTarget`: the engine of a target, with one cache slot a cell.

    A cell that an end-of-line token follows has a second slot for that, which is seen and committed with its own.
    """

    def __init__(self, target: EngineTarget) -> None:
        self._target = target
        self._begun = False
        self._fed: PassLayout | None = None

    @property
    def engine(self) -> Engine:
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

    def most_nodes(self, most: int) -> int:
        """See `EngineTarget.most_nodes`."""
        return self._target.most_nodes(most)

    def condition(self, condition: Condition) -> None:
        """See `EngineTarget.condition`."""
        self._target.condition(condition)

    def begin(self) -> FloatArray:
        self._fed = None
        probs: FloatArray = self._target.begin().probs[0]
        self._begun = True
        return probs

    def score(self, feed: Feed) -> FloatArray:
        """See `GridTarget`. Raises EngineError before `begin`, or on a cell or token out of range."""
        engine, prefix, eol_layout = self.engine, self._target.prefix, self._target.eol_layout
        if not self._begun or prefix is None or engine.length != prefix:
            raise EngineError("target: nothing is begun yet; call begin() before score()")
        check_tokens(feed.tokens, self.vocab_size)
        layout = eol_layout.lay(feed.tokens, feed.cells, feed.visible)
        cached = feed.cached if layout.node is None else feed.cached[layout.node]
        if eol_layout.cell_of is not None:
            cached = cached[:, eol_layout.cell_of]
        width = min(engine.slots - prefix, cached.shape[1])
        if cached[:, width:].any():
            raise EngineError("target: expected cached cells that were committed, got others; commit them first")
        past_bias = np.repeat(engine.past_bias, layout.cells.size, axis=1)
        past_bias[:, :, prefix : prefix + width] = hide(cached[:, :width])
        result = engine.run(layout.tokens, layout.cells, hide(layout.visible), past_bias)
        self._fed = layout
        return result.probs_at(layout.outputs, self._target.params)

    def commit(self, rows: IntArray) -> None:
        """See `GridTarget`; once for each pass."""
        if self._fed is None or self._target.prefix is None:
            raise EngineError("target: commit() expects a pass that was not committed yet; score first")
        layout = self._fed
        positions = np.arange(layout.cells.size)[layout.positions(np.asarray(rows, dtype=np.int64))]
        places = self._target.eol_layout.places(layout.cells[positions])
        self.engine.write_at(positions, self._target.prefix + places)
        self._fed = None
