"""A target that runs on an engine and scores trees in raster order, or any cells for the spatial methods."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.target import Feed
from underpaint.algos.step import Scored
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.runtime.conditions import Condition, ConditionEncoder, EncodedCondition, load_encoder
from underpaint.runtime.engines.context import CPU, EngineContext, EngineError, load_decoder
from underpaint.runtime.engines.engine import Engine, GuidanceEngines, LoadedDecoder, PassOutput, rows_of
from underpaint.runtime.engines.pass_inputs import EolLayout, PassLayout, causal, hide, tree_bias
from underpaint.zoo.load import FOLDER

_ROOT: Final = np.ones((1, 1), dtype=np.bool_)
"""The visibility of a root without a tree: it sees itself."""


class EngineTarget:
    """An `algos.step.Target` on any engine. Set a condition before decoding.

    With guidance 1 it runs only the conditional row, otherwise the guidance pair.
    """

    def __init__(self, decoder: LoadedDecoder, params: SamplingParams, encoder: ConditionEncoder | None = None) -> None:
        """Create a target; engines are opened on first use.

        Args:
            decoder: The loaded decoder.
            params: The sampling parameters.
            encoder: Encodes conditions; None for a decoder whose conditions are ids.
        """
        self.decoder = decoder
        self.encoder = encoder or ConditionEncoder(decoder.config)
        self.eol_layout = EolLayout(decoder.config)
        self._cells = np.arange(decoder.config.cells)
        self._engines = GuidanceEngines(decoder)
        self.features_at_begin = 1
        """Number of last condition positions whose features `begin` returns; some drafters need more than one."""
        self._condition: EncodedCondition | None = None
        self.sample_by(params)

    @classmethod
    def open(
        cls,
        name: str,
        params: SamplingParams,
        folder: Path = FOLDER,
        context: EngineContext | None = None,
        backend: str = CPU,
        kind: str = "target",
    ) -> "EngineTarget":
        """Load the target `name` of a folder of models; see `engines.context.load_decoder`."""
        decoder = load_decoder(name, kind, folder, context, backend)
        return cls(decoder, params, load_encoder(decoder.config, folder, context))

    def sample_by(self, params: SamplingParams) -> None:
        """Set the sampling, before the next `begin`; raise EngineError on guidance if the model does not support it."""
        if params.guidance != 1.0 and not self.decoder.config.guided:
            raise EngineError(
                f"guidance {params.guidance:g}: this export has no prompt without a condition, as its authors draw it "
                "without guidance; use --guidance 1, or export it again with --uncond-keep FIRST LAST"
            )
        self.params = params
        self._engine: Engine | None = None
        self._prefix: int | None = None
        """Number of condition positions of the current image; prompts may differ in length."""
        self._scored: DraftTree | None = None
        self._pass: PassOutput | None = None
        self._layout: PassLayout | None = None

    def fork(self) -> "EngineTarget":
        """Return another target on the same weights, with its own cache."""
        forked = EngineTarget(self.decoder, self.params, self.encoder)
        forked.features_at_begin = self.features_at_begin
        return forked

    @property
    def engine(self) -> Engine:
        """The engine for the current sampling, opened on first use, so that unneeded engines are never loaded."""
        if self._engine is None:
            self._engine = self._engines.under(self.params)
        return self._engine

    @property
    def vocab_size(self) -> int:
        """The number of codes, V."""
        return self.decoder.config.vocab_size

    @property
    def grid(self) -> Grid:
        """The grid of the image."""
        return self.decoder.config.grid

    @property
    def prefix(self) -> int | None:
        """Number of condition positions of the current image; None before `begin`."""
        return self._prefix

    @property
    def outputs(self) -> IntArray | slice:
        """The positions of the last scored tree's node outputs in its pass; EngineError before the first `score`."""
        if self._layout is None:
            raise EngineError("target: no tree was scored; call score() first")
        return self._layout.outputs

    def check_pass(self, cells: int, params: SamplingParams) -> None:
        """Raise EngineError if the engine for this sampling cannot run a pass over this many cells."""
        most, config = self.decoder.max_positions(rows_of(params)), self.decoder.config
        eol = 0 if config.eol_id is None else -(-cells // config.width)
        if most is not None and min(cells + eol, config.cells + config.eol_tokens) > most:
            raise EngineError(
                f"{self.decoder.name}: this method passes over {cells} cells at once, its engine over {most}; build it "
                f"with larger --buckets (as 1,8,16,32,64,{cells}), or let the method draft fewer rows a cycle"
            )

    def most_nodes(self, most: int) -> int:
        """Return the length, at most `most`, of the longest chain that fits one pass of the engine."""
        widest = self.decoder.max_positions(rows_of(self.params))
        if widest is None:
            return most
        between = 0 if self.decoder.config.eol_id is None else -(-widest // self.decoder.config.width)
        return max(1, min(most, widest - between))

    def condition(self, condition: Condition) -> None:
        """Set the condition of the next `begin`; raise EngineError if the model does not accept it."""
        self.prepare(self.encoder.encode(condition))

    def prepare(self, condition: EncodedCondition) -> None:
        """Set an encoded condition for the next `begin`."""
        self._condition = condition

    def begin(self) -> Scored:
        if self._condition is None:
            raise EngineError("target: no condition is set; call condition() before decoding")
        engine = self.engine
        tokens, hidden = self._condition.tokens[: engine.rows], self._condition.hidden[: engine.rows]
        self._scored, self._prefix = None, tokens.shape[1]
        engine.begin(hidden, self._condition.cond_rows)
        bias = causal(self._prefix)
        if any(hidden):
            bias = np.stack([hiding(bias, count) for count in hidden])
        result = engine.run(tokens, engine.config.first_cells(self._prefix), bias)
        engine.cache.commit(slice(None))
        read = result.features[:, -self.features_at_begin :].copy()
        return Scored(result.probs_at(slice(-1, None), self.params), read)

    def score(self, tree: DraftTree) -> Scored:
        """See `Target`. Raises EngineError before `begin`, past the last cell, or on an invalid token."""
        if self._prefix is None:
            raise EngineError("target: nothing is drawn yet; call begin() before score()")
        check_tokens(tree.tokens, self.vocab_size)
        engine, cell = self.engine, self.eol_layout.drawn(self.engine.cache.length - self._prefix)
        if tree.tokens.size == 1 and cell < self._cells.size:  # a fast path for plain autoregression
            layout = self.eol_layout.lay(tree.tokens, self._cells[cell : cell + 1], _ROOT)
        else:
            layout = self.eol_layout.lay(tree.tokens, cell + tree.depths(), tree.visible())
        result = engine.run(layout.tokens, layout.cells, tree_bias(layout.visible))
        self._pass, self._layout, self._scored = result, layout, tree
        return Scored(result.probs_at(layout.outputs, self.params), result.features[:, layout.outputs].copy())

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """See `Target`; only the last scored tree can be committed."""
        if self._layout is None or tree is not self._scored:
            raise EngineError("target: commit() expects the tree that was scored last; score it first")
        self.engine.cache.commit(self._layout.positions(verdict.committed()))
        self._scored = None

    def close(self) -> None:
        """Free the memory of the engines."""
        self._engine = None
        self._engines.close()


def under(target: EngineTarget, condition: Condition, sampling: SamplingParams) -> EngineTarget:
    """Set the sampling and condition of a target and return it; raise EngineError if it does not accept them."""
    target.sample_by(sampling)
    target.condition(condition)
    return target


def hiding(bias: NDArray[np.float32], first: int) -> NDArray[np.float32]:
    """Return a bias [P, P] that masks the first `first` positions for all others; each of them still sees itself."""
    diagonal = np.eye(len(bias), dtype=np.bool_)
    return np.where(diagonal | (np.arange(len(bias)) >= first), bias, MASKED_SCORE)


def check_tokens(tokens: IntArray, vocab_size: int) -> None:
    """Raise EngineError unless all tokens are image codes."""
    codes = tokens.tolist()
    if min(codes) < 0 or max(codes) >= vocab_size:
        raise EngineError(f"target: expected tokens from 0 to {vocab_size - 1}, got {codes}")


class EngineGridTarget:
    """An `algos.spatial.target.GridTarget` on the engine of a target, with one cache slot per cell.

    A cell before an end-of-line token has a second slot for that token; both are visible and committed together.
    """

    def __init__(self, target: EngineTarget) -> None:
        self._target = target
        self._begun = False
        self._fed: PassLayout | None = None

    @property
    def engine(self) -> Engine:
        """The engine of the target."""
        return self._target.engine

    @property
    def vocab_size(self) -> int:
        """The number of codes, V."""
        return self._target.vocab_size

    @property
    def grid(self) -> Grid:
        """The grid of the image."""
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
        if not self._begun or prefix is None or engine.cache.length != prefix:
            raise EngineError("target: nothing is begun yet; call begin() before score()")
        check_tokens(feed.tokens, self.vocab_size)
        layout = eol_layout.lay(feed.tokens, feed.cells, feed.visible)
        cached = feed.cached if layout.node is None else feed.cached[layout.node]
        if eol_layout.cell_of is not None:
            cached = cached[:, eol_layout.cell_of]
        width = min(engine.cache.slots - prefix, cached.shape[1])
        if cached[:, width:].any():
            raise EngineError("target: expected cached cells that were committed, got others; commit them first")
        past_bias = np.repeat(engine.cache.past_bias, layout.cells.size, axis=1)
        past_bias[:, :, prefix : prefix + width] = hide(cached[:, :width])
        result = engine.run(layout.tokens, layout.cells, hide(layout.visible), past_bias)
        self._fed = layout
        return result.probs_at(layout.outputs, self._target.params)

    def commit(self, rows: IntArray) -> None:
        """See `GridTarget`; call it once per pass."""
        if self._fed is None or self._target.prefix is None:
            raise EngineError("target: commit() expects a pass that was not committed yet; score first")
        layout = self._fed
        positions = np.arange(layout.cells.size)[layout.positions(np.asarray(rows, dtype=np.int64))]
        places = self._target.eol_layout.places(layout.cells[positions])
        self.engine.cache.write_at(positions, self._target.prefix + places)
        self._fed = None
