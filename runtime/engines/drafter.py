"""EAGLE's drafter on an engine (arXiv 2401.15077, section 4.1).

Each position combines a token with the feature of the token before it. Committed tokens use the target's features, and
the first pass of the next cycle adds them to the cache permanently. Draft nodes use the feature that the drafter
predicted for their parent, and are removed after their cycle.
"""

from math import isfinite
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.protocols import FusedTreeLevel, FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Scored
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.engines.context import CPU, EngineContext, EngineError, load_decoder
from underpaint.runtime.engines.engine import Engine, GuidanceEngines, LoadedDecoder, PassOutput
from underpaint.runtime.engines.pass_inputs import alone, causal, hide
from underpaint.zoo.load import FOLDER

_ROOT: Final = np.zeros(1, dtype=np.int64)
"""The place at which the first level of a tree is expanded."""


class EngineDrafter:
    """An `algos.step.Drafter` on any engine; `params` must be the target's."""

    def __init__(self, decoder: LoadedDecoder, params: SamplingParams) -> None:
        self.decoder = decoder
        self._engines = GuidanceEngines(decoder)
        self.sample_by(params)

    @classmethod
    def open(
        cls,
        name: str,
        params: SamplingParams,
        folder: Path = FOLDER,
        context: EngineContext | None = None,
        backend: str = CPU,
    ) -> "EngineDrafter":
        """Load the drafter `name` of a folder of models; see `engines.context.load_decoder`."""
        return cls(load_decoder(name, "drafter", folder, context, backend), params)

    def sample_by(self, params: SamplingParams) -> None:
        """Set the sampling parameters, the same as the target's, before the next `begin`."""
        self.params = params
        self._engine: Engine | None = None
        self._tokens: list[int] = []
        """Committed tokens that are not yet in the cache."""
        self._features: list[FloatArray] = []
        """Parts [B, n, D], in order: the target's features before those tokens, and before the next root."""
        self.prompt_positions = 0
        """Number of prompt positions before the first cell."""
        self._root: int | None = None
        """The next root, known after a verdict."""
        self._root_probs: FloatArray | None = None
        """A view of the root's distribution [1, V] after `expand_tree`, valid until the next pass."""
        self._forget_nodes()

    def fork(self) -> Self:
        """Return another drafter on the same weights, with its own cache."""
        return type(self)(self.decoder, self.params)

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
    def feature_width(self) -> int:
        """The size of a target feature, D."""
        return self.decoder.config.dim

    @property
    def fuses_chains(self) -> bool:
        return self.engine.fuses_chains

    def begin(self, scored: Scored) -> None:
        """See `Drafter`. Raises EngineError unless the features have this drafter's number of rows and feature size."""
        self.engine.begin()
        self._tokens, self.prompt_positions = [], 0
        features = self._checked(scored, begins=True)
        self._features = [features[:, -1:]]
        self._root = None
        self._forget_nodes()
        self._read_condition(features[:, :-1])

    @property
    def condition_positions(self) -> int:
        """Number of condition positions that the drafter reads before the first token; captions: all but the last."""
        config = self.decoder.config
        return config.prefix - 1 if config.reads_condition else 0

    def _read_condition(self, features: FloatArray) -> None:
        """Prefill the cache with the target's features [B, P - 1, D] of a condition, each paired with token 0.

        The drafters of LANTERN (arXiv 2410.03355) were trained like this, and the released code feeds them like this
        (`ea_model_llamagen.py`): zeros for the ids of a caption, including padding.
        """
        count = min(self.condition_positions, features.shape[1])
        if not count:
            return
        engine, most = self.engine, self.decoder.max_positions(self.engine.rows) or count
        read = features[:, features.shape[1] - count :]
        for start in range(0, count, most):
            part = read[:, start : start + most]
            size = part.shape[1]
            engine.run(np.zeros(size, dtype=np.int64), np.full(size, -1), causal(size), features=part)
            engine.cache.commit(slice(None))
        self.prompt_positions = count

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        if self._root_probs is not None and parents.tolist() == [-1]:
            return self._root_probs.copy()
        if self._count == 0:
            if tokens.shape != (1,) or parents.tolist() != [-1]:
                raise EngineError(
                    f"drafter: expected the root alone, ([root], [-1]), in the first call of a cycle, got "
                    f"({tokens.tolist()}, {parents.tolist()})"
                )
            return self._expand_root(int(tokens[0])).probs_at(slice(-1, None), self.params)
        if parents.min() < 0 or parents.max() >= self._count:
            raise EngineError(
                f"drafter: expected parents from 0 to {self._count - 1} (nodes added before in this cycle), "
                f"got {parents.tolist()}"
            )
        return self._expand_nodes(tokens, parents)

    def expand_chain(self, root: int, levels: int) -> IntArray:
        if self._count:
            raise EngineError("drafter: expected expand_chain() as the first call of a cycle; the root is expanded")
        chain = self._expand_root(root, levels).chain
        if chain is None:
            raise EngineError("drafter: this graph drafts no chain by itself; call expand() level by level")
        return chain.copy()

    @property
    def fuses_trees(self) -> bool:
        """See `TreeExpander`; the graph can draft trees if it also computes the distributions."""
        return self.engine.fuses_trees

    def expand_tree(self, root: int, growth: FusedTreeSpec) -> list[FusedTreeLevel]:
        if self._count:
            raise EngineError("drafter: expected expand_tree() as the first call of a cycle; the root is expanded")
        if not self.fuses_trees:
            raise EngineError("drafter: this engine grows no tree by itself; call expand() level by level")
        result = self._expand_root(root, tree=growth)
        assert result.tree is not None
        assert result.probs is not None
        tree, self._root_probs = result.tree, result.probs[-1:]
        if not isfinite(tree.root_probs[0, 0]):  # a single NaN or infinity spreads to the whole distribution
            raise ValueError("distributions: expected finite logits, got NaN or infinity; check the engine's parity")
        first = FusedTreeLevel(_ROOT, self._root_probs, tree.root_tokens, tree.root_probs)
        below = zip(tree.next_frontier, tree.probs, tree.tokens, tree.token_probs, strict=True)
        return [first, *(FusedTreeLevel(*level) for level in below)]

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
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
        self._root_probs = None
        self._placed = 0
        self._unwritten = False
        """Whether the last pass was over nodes whose keys and values are not yet written, which happens on demand."""
        self._depths = np.empty(0, dtype=np.int64)
        self._above: BoolArray = np.empty((0, 0), dtype=np.bool_)
        """[nodes, drafted]: the drafted nodes, without the root, that a node's children see, including the node."""
        self._predicted: NDArray[np.float32] = np.empty(0, dtype=np.float32)

    def _checked(self, scored: Scored, *, begins: bool = False) -> FloatArray:
        """Return the features [B, N, D] of `scored`; begins: whether they belong to one or more condition positions.

        Raises:
            EngineError: The features are from another model, or have another number of rows.
        """
        features = scored.features
        if begins and features is not None and features.ndim == 3 and features.shape[1] > 1:
            self._checked(scored._replace(features=features[:, -1:]))
            return features
        shape = (self.engine.rows, scored.probs.shape[0], self.feature_width)
        if scored.features is None or scored.features.shape != shape:
            got = None if scored.features is None else scored.features.shape
            raise EngineError(
                f"drafter: expected target features {shape}, got {got}; give target and drafter one sampler and "
                "models that were trained together"
            )
        return scored.features

    def _expand_root(self, root: int, levels: int = 1, tree: FusedTreeSpec | None = None) -> PassOutput:
        if not self._features:
            raise EngineError("drafter: no features to draft from; call begin() before expand()")
        if self._root is not None and root != self._root:
            raise EngineError(f"drafter: expected root {self._root}, the last verdict's token, got {root}")
        fed = np.array([*self._tokens, root], dtype=np.int64)
        cells = self.engine.cache.length - self.prompt_positions + np.arange(fed.size)
        features = self._features[0] if len(self._features) == 1 else np.concatenate(self._features, axis=1)
        most = self.decoder.max_positions(self.engine.rows) or fed.size
        while fed.size > most:  # more tokens than one pass takes, after many cycles without a draft
            self.engine.run(fed[:most], cells[:most], causal(most), features=features[:, :most])
            self.engine.cache.commit(slice(None))
            fed, cells, features = fed[most:], cells[most:], features[:, most:]
        result = self.engine.run(fed, cells, causal(fed.size), features=features, chain_levels=levels, tree=tree)
        self.engine.cache.commit(slice(None))
        self._tokens = []
        self._count = 1
        self._depths = np.zeros(1, dtype=np.int64)
        self._above = np.zeros((1, 0), dtype=np.bool_)
        self._predicted = result.features[:, -1:].copy()
        return result

    def _expand_nodes(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        engine, count = self.engine, tokens.size
        self._root_probs = None  # this pass overwrites it
        if self._unwritten:
            self._placed += engine.cache.write_scratch(self._placed)
        above, length = self._above[parents], engine.cache.length
        depths = self._depths[parents] + 1
        seen = engine.cache.past_bias
        committed = seen if self.prompt_positions else seen[0]  # rows differ only in padding
        past_bias = np.repeat(committed, count, axis=-2)
        past_bias[..., length : length + above.shape[1]] = hide(above)
        cells = length - self.prompt_positions - 1 + depths
        result = engine.run(tokens, cells, alone(count), past_bias, self._predicted[:, parents])
        self._unwritten = True
        self._predicted = np.concatenate([self._predicted, result.features], axis=1)
        self._depths = np.concatenate([self._depths, depths])
        self._above = _with_new(self._above, above)
        self._count += count
        return result.probs_at(slice(None), self.params)

    def close(self) -> None:
        """Free the memory of the engines."""
        self._engine = None
        self._engines.close()


def _with_new(above: BoolArray, new: BoolArray) -> BoolArray:
    """Extend the visibility mask of the nodes' children by one level of nodes, each of which also sees itself."""
    (old, seen), count = above.shape, len(new)
    grown = np.zeros((old + count, seen + count), dtype=np.bool_)
    grown[:old, :seen] = above
    grown[old:, :seen] = new
    grown[old:, seen:] = np.eye(count, dtype=np.bool_)
    return grown
