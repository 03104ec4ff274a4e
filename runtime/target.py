"""A target on ONNX Runtime."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from algos.arrays import IntArray
from algos.draft.spec import Grid
from algos.rows import Sampler, laws
from algos.step import Scored
from algos.tree import DraftTree, Verdict
from runtime.cache import causal, hide
from runtime.decoder import Loaded, Pass, load_decoder
from runtime.session import EngineError, SessionSettings
from zoo.load import FOLDER


class OrtTarget:
    """Implements `algos.step.Target` on a decoder graph.

    With guidance 1 it runs the conditional row alone, otherwise the guidance pair. Set a condition first.
    """

    def __init__(self, loaded: Loaded, sampler: Sampler) -> None:
        self.engine = loaded.engine(1 if sampler.guidance == 1.0 else 2)
        self.sampler = sampler
        self._prefix: IntArray | None = None
        self._hidden = 0
        """Condition positions that are padding."""
        self._scored: DraftTree | None = None
        self._pass: Pass | None = None

    @classmethod
    def open(
        cls, name: str, sampler: Sampler, folder: Path = FOLDER, settings: SessionSettings | None = None
    ) -> "OrtTarget":
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

        Raises EngineError on another length or an unknown id.
        """
        shape = self.engine.shape
        ids = np.asarray(ids)
        if shape.outside:
            raise EngineError("condition: this model's condition is made of features; set it with condition_rows")
        self._hidden = 0
        if shape.prefix_cells == "each":
            self._prefix = self._prompt(ids)[: self.engine.rows]
            return
        if ids.shape != (shape.prefix,) or ids.min() < 0 or ids.max() >= shape.conditions:
            raise EngineError(
                f"condition: expected [{shape.prefix}] ids from 0 to {shape.conditions - 1}, got {ids.tolist()}; "
                "make them with zoo.prompts.word_ids"
            )
        absent = np.array(shape.unconditional, dtype=np.int64)
        given = absent if shape.prefix > 1 and not ids.any() else ids.astype(np.int64) + shape.vocab_size
        self._prefix = np.stack([given, absent])[: self.engine.rows]

    def _prompt(self, ids: IntArray) -> IntArray:
        """A prompt of vocabulary ids, and beside it one of its first and last id with nothing said between them."""
        shape = self.engine.shape
        if ids.ndim != 1 or not 2 <= ids.size <= shape.prefix or ids.min() < 0 or ids.max() >= shape.conditions:
            raise EngineError(
                f"condition: expected 2 to {shape.prefix} ids from 0 to {shape.conditions - 1}, got {ids.tolist()}; "
                "make them with the model's tokenizer, begin and image marks included"
            )
        given = ids.astype(np.int64) + shape.vocab_size
        absent = np.full_like(given, shape.unconditional[0])
        absent[0], absent[-1] = given[0], given[-1]
        return np.stack([given, absent])

    def condition_rows(self, rows: NDArray[np.float32], padding: int = 0) -> None:
        """Set the prompt by embedded rows [2 * prefix, D], the condition's and those of none.

        padding: leading condition positions that nothing may see. Raises EngineError on another shape.
        """
        shape = self.engine.shape
        if rows.shape != (shape.outside, shape.features) or not shape.outside or not 0 <= padding < shape.prefix:
            raise EngineError(
                f"condition_rows: expected [{shape.outside}, {shape.features}] and padding below {shape.prefix}, got "
                f"{list(rows.shape)} and {padding}; make them with the exported condition graph"
            )
        self.engine.conditions[:] = rows
        self._hidden = padding
        self._prefix = (shape.vocab_size + np.arange(shape.outside)).reshape(2, -1)[: self.engine.rows]

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
        result = self.engine.run(self._prefix, self.engine.shape.first_cells(prefix), bias)
        cache.commit(result.keys, result.values, slice(None))
        cache.hide_first(self._hidden)
        return Scored(laws(result.logits[:, -1:], self.sampler), result.features[:, -1:].copy())

    def score(self, tree: DraftTree) -> Scored:
        """See `Target`. Raises EngineError before `begin`, past the last cell, or on a root that is no token."""
        drawn = self.engine.cache.length - (0 if self._prefix is None else self._prefix.shape[1])
        if drawn < 0 or self.engine.cache.length == 0:
            raise EngineError("target: nothing is drawn yet; call begin() before score()")
        if tree.tokens.min() < 0 or tree.tokens.max() >= self.vocab_size:
            raise EngineError(f"target: expected tokens from 0 to {self.vocab_size - 1}, got {tree.tokens.tolist()}")
        self._pass = self.engine.run(tree.tokens, drawn + tree.depths(), hide(tree.visible()))
        self._scored = tree
        return Scored(laws(self._pass.logits, self.sampler), self._pass.features.copy())

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """See `Target`; only the tree scored last can be committed."""
        if self._pass is None or tree is not self._scored:
            raise EngineError("target: commit() expects the tree that was scored last; score it first")
        self.engine.cache.commit(self._pass.keys, self._pass.values, verdict.committed())
        self._scored = None
