"""EAGLE's drafter on ONNX Runtime (arXiv 2401.15077, section 4.1).

Each position pairs a token with the feature of the token before it. Committed tokens come with the target's own
features and enter the cache for good, in the first pass of the next cycle; the nodes of a draft come with the
feature that the drafter predicted for their parent, and leave no trace after their cycle.
"""

from functools import partial
from math import isfinite
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.draft.spec import FusedTreeLevel, FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Scored
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.engines.cache import alone, causal, hide
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.engines.onnx_engine import OnnxDecoder, load_decoder
from underpaint.runtime.engines.passes import Pass
from underpaint.zoo.load import FOLDER

_ROOT: Final = np.zeros(1, dtype=np.int64)
"""Where a tree's first level is expanded."""


class EngineDrafter:
    """Implements `algos.step.Drafter` on a drafter graph; `sampler` must be the target's."""

    def __init__(self, loaded: OnnxDecoder, sampler: SamplingParams) -> None:
        self.engine = loaded.engine(1 if sampler.guidance == 1.0 else 2)
        self.engine.sample_by(sampler)
        self.sampler = sampler
        self._tokens: list[int] = []
        """Committed tokens that are not in the cache yet."""
        self._features: list[FloatArray] = []
        """[B, n, D] each, one after another: the target's features before those tokens, and before the next root."""
        self._root: int | None = None
        """The next root, once a verdict has named it."""
        self._said: FloatArray | None = None
        """The root's distribution [1, V], after a tree was grown from it and before any other pass; a view."""
        self._forget_nodes()

    @classmethod
    def open(
        cls, name: str, sampler: SamplingParams, folder: Path = FOLDER, settings: EngineContext | None = None
    ) -> "EngineDrafter":
        """The drafter `name` of a folder of models."""
        return cls(load_decoder(name, "drafter", folder, settings), sampler)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.engine.shape.vocab_size

    @property
    def fuses_chains(self) -> bool:
        """See `ChainExpander`."""
        return self.engine.fuses_chains

    def begin(self, scored: Scored) -> None:
        """See `Drafter`. Raises EngineError unless the features fit: as many rows and as wide as this drafter's."""
        self.engine.cache.clear()
        self._tokens = []
        self._features = [self._checked(scored)[:, -1:]]
        self._root = None
        self._forget_nodes()

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        """See `Expander`."""
        if self._said is not None and parents.tolist() == [-1]:
            return self._said.copy()
        if self._count == 0:
            if tokens.shape != (1,) or parents.tolist() != [-1]:
                raise EngineError(
                    f"drafter: expected the root alone, ([root], [-1]), in the first call of a cycle, got "
                    f"({tokens.tolist()}, {parents.tolist()})"
                )
            return self._expand_root(int(tokens[0])).probs_at(slice(-1, None), self.sampler)
        if parents.min() < 0 or parents.max() >= self._count:
            raise EngineError(
                f"drafter: expected parents from 0 to {self._count - 1} (nodes added before in this cycle), "
                f"got {parents.tolist()}"
            )
        return self._expand_nodes(tokens, parents)

    def expand_chain(self, root: int, levels: int) -> IntArray:
        """See `ChainExpander`."""
        if self._count:
            raise EngineError("drafter: expected expand_chain() as the first call of a cycle; the root is expanded")
        drafted = self._expand_root(root, levels).drafted
        if drafted is None:
            raise EngineError("drafter: this graph drafts no chain by itself; call expand() level by level")
        return drafted.copy()

    @property
    def fuses_trees(self) -> bool:
        """See `TreeExpander`; the graph can where it makes the sampler's distributions itself."""
        return self.engine.fuses_trees

    def expand_tree(self, root: int, growth: FusedTreeSpec) -> list[FusedTreeLevel]:
        """See `TreeExpander`."""
        if self._count:
            raise EngineError("drafter: expected expand_tree() as the first call of a cycle; the root is expanded")
        if not self.fuses_trees:
            raise EngineError("drafter: this engine grows no tree by itself; call expand() level by level")
        result = self._expand_root(root, growth=growth)
        assert result.grown is not None
        assert result.probs is not None
        grown, self._said = result.grown, result.probs[-1:]
        if not isfinite(grown.root_masses[0, 0]):  # one NaN or infinity spoils the whole of its distribution
            raise ValueError("distributions: expected finite logits, got NaN or infinity; check the engine's parity")
        first = FusedTreeLevel(_ROOT, self._said, grown.root_tokens, grown.root_masses)
        below = zip(grown.places, grown.distributions, grown.tokens, grown.masses, strict=True)
        return [first, *(FusedTreeLevel(*level) for level in below)]

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        """See `Drafter`."""
        features = self._checked(scored)
        if self._count == 0:  # nothing was drafted, so the root is not in the cache
            self._tokens.append(int(tree.tokens[0]))
        else:
            self._features = []
        committed = verdict.committed()
        self._tokens.extend(tree.tokens[committed][1:].tolist())
        self._features.append(features[:, committed])
        self._root = verdict.token
        self._forget_nodes()

    def _forget_nodes(self) -> None:
        self._count = 0
        self._said = None
        self._placed = 0
        self._last: Pass | None = None
        self._depths = np.empty(0, dtype=np.int64)
        self._above: BoolArray = np.empty((0, 0), dtype=np.bool_)
        """[nodes, drafted]: the drafted nodes (the root is not one) that a node's children see, itself included."""
        self._predicted: NDArray[np.float32] = np.empty(0, dtype=np.float32)

    def _checked(self, scored: Scored) -> FloatArray:
        wanted = (self.engine.rows, scored.probs.shape[0], self.engine.shape.dim)
        if scored.features is None or scored.features.shape != wanted:
            got = None if scored.features is None else scored.features.shape
            raise EngineError(
                f"drafter: expected target features {wanted}, got {got}; give target and drafter one sampler and "
                "models that were trained together"
            )
        return scored.features

    def _expand_root(self, root: int, levels: int = 1, growth: FusedTreeSpec | None = None) -> Pass:
        if not self._features:
            raise EngineError("drafter: no features to draft from; call begin() before expand()")
        if self._root is not None and root != self._root:
            raise EngineError(f"drafter: expected root {self._root}, the last verdict's token, got {root}")
        cache = self.engine.cache
        fed = np.array([*self._tokens, root], dtype=np.int64)
        cells = cache.length + np.arange(fed.size)
        features = self._features[0] if len(self._features) == 1 else np.concatenate(self._features, axis=1)
        # Only graphs that chain are asked for more than one level; other engines need not know of them.
        run = self.engine.run
        if levels > 1 or growth is not None:
            run = partial(self.engine.run, levels=levels, growth=growth)
        result = run(fed, cells, causal(fed.size), features=features)
        cache.commit(result.keys, result.values, slice(None))
        self._tokens = []
        self._count = 1
        self._depths = np.zeros(1, dtype=np.int64)
        self._above = np.zeros((1, 0), dtype=np.bool_)
        self._predicted = result.features[:, -1:].copy()
        return result

    def _expand_nodes(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        cache, count = self.engine.cache, tokens.size
        self._said = None  # this pass writes where it lies
        if self._last is not None:
            self._placed += cache.place(self._last.keys, self._last.values, slice(None), self._placed)
        above = self._above[parents]
        depths = self._depths[parents] + 1
        past_bias = np.empty((count, cache.slots), dtype=np.float32)
        past_bias[:] = cache.bias
        past_bias[:, cache.length : cache.length + above.shape[1]] = hide(above)
        cells = cache.length - 1 + depths
        result = self.engine.run(tokens, cells, alone(count), past_bias, self._predicted[:, parents])
        self._last = result
        self._predicted = np.concatenate([self._predicted, result.features], axis=1)
        self._depths = np.concatenate([self._depths, depths])
        self._above = self._grown(above, count)
        self._count += count
        return result.probs_at(slice(None), self.sampler)

    def _grown(self, above: BoolArray, count: int) -> BoolArray:
        old, seen = self._above.shape
        grown = np.zeros((old + count, seen + count), dtype=np.bool_)
        grown[:old, :seen] = self._above
        grown[old:, :seen] = above
        grown[old:, seen:] = np.eye(count, dtype=np.bool_)
        return grown
