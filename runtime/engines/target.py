"""A target on ONNX Runtime."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.algos.draft.spec import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Scored
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.engines.cache import causal, hide, hide_in_pass
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.engines.line_tokens import Laid, Lines
from underpaint.runtime.engines.onnx_engine import OnnxDecoder, load_decoder
from underpaint.runtime.engines.passes import Pass
from underpaint.zoo.load import FOLDER


class EngineTarget:
    """Implements `algos.step.Target` on a decoder graph.

    With guidance 1 it runs the conditional row alone, otherwise the guidance pair. Set a condition first.
    """

    def __init__(self, loaded: OnnxDecoder, sampler: SamplingParams) -> None:
        if sampler.guidance != 1.0 and not loaded.shape.guided:
            raise EngineError(
                f"guidance {sampler.guidance:g}: this export has no prompt without a condition, as its authors draw it "
                "without guidance; use --guidance 1, or export it with --kept"
            )
        self.engine = loaded.engine(1 if sampler.guidance == 1.0 else 2)
        self.engine.sample_by(sampler)
        self.lines = Lines(loaded.shape)
        self.sampler = sampler
        self._prefix: IntArray | None = None
        self._hidden = 0
        """Condition positions that are padding."""
        self._unseen = 0
        """Condition positions that the row without a condition does not see."""
        self._scored: DraftTree | None = None
        self._pass: Pass | None = None
        self._laid: Laid | None = None

    @classmethod
    def open(
        cls, name: str, sampler: SamplingParams, folder: Path = FOLDER, settings: EngineContext | None = None
    ) -> "EngineTarget":
        """The target `name` of a folder of models."""
        return cls(load_decoder(name, "target", folder, settings), sampler)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.engine.shape.vocab_size

    @property
    def grid(self) -> Grid:
        """The image to draw."""
        return self.engine.shape.grid

    def condition(self, ids: IntArray) -> None:
        """Set the prompt for the next `begin`: word ids (or one class id) int64 [prefix]; all 0 words is no prompt.

        Models whose condition is a prompt of any length take up to `prefix` ids, those among them that are put behind
        every prompt, as the shape's `marks`. Raises EngineError on another length or an unknown id.
        """
        shape = self.engine.shape
        ids = np.asarray(ids)
        if shape.external_cond_rows:
            raise EngineError("condition: this model's condition is made of features; set it with condition_rows")
        self._hidden = self._unseen = 0
        if shape.prompted:
            self._prefix = self._prompt(ids)
            return
        if ids.shape != (shape.prefix,) or ids.min() < 0 or ids.max() >= shape.cond_ids:
            raise EngineError(
                f"condition: expected [{shape.prefix}] ids from 0 to {shape.cond_ids - 1}, got {ids.tolist()}; "
                "make them with zoo.prompts.word_ids"
            )
        absent = np.array(shape.uncond_ids, dtype=np.int64)
        given = absent if shape.prefix > 1 and not ids.any() else ids.astype(np.int64) + shape.vocab_size
        self._prefix = np.stack([given, absent])[: self.engine.rows]

    def _prompt(self, ids: IntArray) -> IntArray:
        """A prompt [B, P] of vocabulary ids and marks; the row without a condition ends in all that it sees of it."""
        shape = self.engine.shape
        marks = np.array(shape.image_start_ids, dtype=np.int64)
        own = (marks - shape.vocab_size).tolist()
        least, most = max(1, sum(shape.uncond_keep)) - len(own), shape.prefix - len(own)
        if ids.ndim != 1 or not least <= ids.size <= most or ((ids < 0) | (ids >= shape.cond_ids)).any():
            around = "begin mark" if own else "begin and image marks"
            raise EngineError(
                f"condition: expected {max(0, least)} to {most} ids from 0 to {shape.cond_ids - 1}, got "
                f"{ids.tolist()}; make them with the model's tokenizer, {around} included"
            )
        if own and ids[-len(own) :].tolist() == own:
            raise EngineError(f"condition: {own} begin the picture and are put behind every prompt; leave them out")
        given = np.concatenate([ids.astype(np.int64) + shape.vocab_size, marks])
        rows = np.tile(given, (self.engine.rows, 1))
        if self.engine.rows == 2:
            first, last = shape.uncond_keep
            self._unseen = given.size - first - last
            rows[1, self._unseen :] = np.concatenate([given[:first], given[given.size - last :]])
        return rows

    def condition_rows(self, rows: NDArray[np.float32], padding: int = 0) -> None:
        """Set the prompt by embedded rows [2 * prefix, D], the condition's and those of none.

        padding: leading condition positions that nothing may see. Raises EngineError on another shape.
        """
        shape = self.engine.shape
        wanted = (shape.external_cond_rows, shape.dim)
        if rows.shape != wanted or not wanted[0] or not 0 <= padding < shape.prefix:
            raise EngineError(
                f"condition_rows: expected {list(wanted)} and padding below {shape.prefix}, got {list(rows.shape)} and "
                f"{padding}; make them with the exported condition graph"
            )
        self.engine.conditions[:] = rows
        self._hidden, self._unseen = padding, 0
        self._prefix = (shape.vocab_size + np.arange(shape.external_cond_rows)).reshape(2, -1)[: self.engine.rows]

    def begin(self) -> Scored:
        """See `Target`."""
        if self._prefix is None:
            raise EngineError("target: no condition is set; call condition(word_ids) before decoding")
        cache, prefix = self.engine.cache, self._prefix.shape[1]
        cache.clear()
        self._scored = None
        bias = causal(prefix)
        if self._hidden:
            bias = bias + hide(np.eye(prefix, dtype=np.bool_) | (np.arange(prefix) >= self._hidden))
        cells = self.engine.shape.first_cells(prefix)
        self.engine.unseen[:] = 0
        if self._unseen:  # a pass of its own: only what is in the cache can be hidden from one row
            first = slice(self._unseen)
            told = self.engine.run(self._prefix[:, first], cells[first], bias[first, first])
            cache.commit(told.keys, told.values, slice(None))
            self.engine.unseen[1] = self._unseen
        rest = slice(self._unseen, prefix)
        result = self.engine.run(self._prefix[:, rest], cells[rest], bias[rest, rest])
        cache.commit(result.keys, result.values, slice(None))
        cache.hide_first(self._hidden)
        return Scored(result.probs_at(slice(-1, None), self.sampler), result.features[:, -1:].copy())

    def score(self, tree: DraftTree) -> Scored:
        """See `Target`. Raises EngineError before `begin`, past the last cell, or on a root that is no token."""
        places = self.engine.cache.length - (0 if self._prefix is None else self._prefix.shape[1])
        if places < 0 or self.engine.cache.length == 0:
            raise EngineError("target: nothing is drawn yet; call begin() before score()")
        tokens = tree.tokens.tolist()
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise EngineError(f"target: expected tokens from 0 to {self.vocab_size - 1}, got {tokens}")
        laid = self.lines.lay(tree.tokens, self.lines.drawn(places) + tree.depths(), tree.visible())
        self._pass = self.engine.run(laid.tokens, laid.cells, hide_in_pass(laid.visible))
        self._laid, self._scored = laid, tree
        return Scored(self._pass.probs_at(laid.said, self.sampler), self._pass.features[:, laid.said].copy())

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """See `Target`; only the tree scored last can be committed."""
        if self._pass is None or self._laid is None or tree is not self._scored:
            raise EngineError("target: commit() expects the tree that was scored last; score it first")
        self.engine.cache.commit(self._pass.keys, self._pass.values, self._laid.positions(verdict.committed()))
        self._scored = None
