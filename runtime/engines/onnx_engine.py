"""One decoder graph and its cache: passes over new positions, with every buffer bound once."""

from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.draft.spec import FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.engines.cache import KeyValueCache
from underpaint.runtime.engines.context import EngineContext, EngineError, bind, open_session
from underpaint.runtime.engines.passes import GROWN, Pass, PassTimer, Sampling, fused_tree_buffers
from underpaint.runtime.engines.shape import DecoderShape, read_shape
from underpaint.zoo.load import FOLDER, locate

_Sizes: TypeAlias = tuple[int, int, int]
"""Of a tree: levels, nodes expanded in each, children of each."""
_NO_TREE: Final[_Sizes] = (0, 1, 1)


def _sizes(growth: FusedTreeSpec) -> _Sizes:
    levels, nodes, children = growth.uniforms.shape
    return levels, nodes, children


class _Bound(NamedTuple):
    binding: Any
    tokens: NDArray[np.int64]
    cells: NDArray[np.int64]
    bias: NDArray[np.float32]
    features: NDArray[np.float32]
    levels: IntArray
    places: IntArray
    uniforms: FloatArray
    ranked: BoolArray
    drawn: BoolArray
    result: Pass


class OnnxDecoder(NamedTuple):
    """A session and its shape; any number of engines may share one."""

    session: Any
    shape: DecoderShape
    name: str

    def engine(self, rows: int) -> "OnnxEngine":
        """A new engine for `rows` sequences."""
        return OnnxEngine(self, rows)


def load_decoder(name: str, kind: str, folder: Path = FOLDER, settings: EngineContext | None = None) -> OnnxDecoder:
    """Load the decoder `name` ("target" or "drafter" in `kind`) after checking it against its manifest.

    Raises ManifestError (missing, damaged, another kind) or EngineError (not loadable as asked).
    """
    located = locate(name, kind, folder)
    settings = settings or EngineContext()
    if settings.provider != "cpu":
        raise EngineError(
            f"decoder: expected provider 'cpu', got '{settings.provider}': caches live in host memory, which another "
            "device would copy at every pass"
        )
    shape = read_shape(located.manifest.settings, name)
    if shape.precision != "fp32":
        raise EngineError(
            f"{name}: expected a float32 export for ONNX Runtime on the CPU, got {shape.precision}; export with "
            "--precision fp32, or build TensorRT engines of this one"
        )
    return OnnxDecoder(open_session(located.path, settings), shape, name)


class OnnxEngine:
    """Runs a decoder graph on `rows` sequences against one cache.

    Buffers are made once and bound by pointer, one binding for each number of new positions and of slots; a pass
    moves tokens and biases in and nothing of the cache anywhere.
    """

    def __init__(self, loaded: OnnxDecoder, rows: int) -> None:
        self.shape = loaded.shape
        self.rows = rows
        self.spent = PassTimer()
        shape = loaded.shape
        self.conditions = np.zeros((shape.external_cond_rows, shape.dim), dtype=np.float32)
        self.unseen = np.zeros(rows, dtype=np.int64)
        """[B]: how many of the first slots a row does not see, where ids of a prompt are `kept`."""
        self.cache = KeyValueCache(shape.layers, rows, shape.heads, shape.head_dim, shape.capacity)
        self._session = loaded.session
        inputs = {each.name for each in loaded.session.get_inputs()}
        self._reads_features = "features" in inputs
        self.fuses_chains = "levels" in inputs
        """Whether a pass can go on by itself."""
        self._sampling = Sampling(rows, "sharpness" in inputs)
        if self.fuses_chains and "uniforms" not in inputs:
            raise EngineError(f"{loaded.name}: this graph is of an older form; export the model again")
        self._bound: dict[tuple[int, int, int, _Sizes], _Bound] = {}
        self._memory: dict[str, NDArray[Any]] = {}

    @property
    def fuses_trees(self) -> bool:
        """Whether a pass can grow a tree: its graph makes the distributions that tokens are taken from."""
        return self.fuses_chains and self._sampling.computed

    def sample_by(self, sampler: SamplingParams) -> None:
        """Say how logits become distributions, in passes bound from now on; do so before the first."""
        self._sampling.take(sampler, self.shape.vocab_size)

    def run(
        self,
        tokens: IntArray,
        cells: IntArray,
        bias: FloatArray,
        past_bias: FloatArray | None = None,
        features: FloatArray | None = None,
        levels: int = 1,
        growth: FusedTreeSpec | None = None,
    ) -> Pass:
        """One pass over T new positions; nothing is committed.

        tokens: [T], the same in every row, or [B, T]. cells: [T] (-1 on the prefix).
        bias: [T, T] among the new positions, 0 or `cache.HIDDEN`. past_bias: [S] or [T, S] on the `cache.slots`; None
        shows what is committed. features: [B, T, D], for drafters. levels: tokens of the greedy chain behind the last
        position, for graphs that `chains`; growth: the tree behind it, for those that `grows`. Each level counts as a
        pass.
        Raises EngineError on a cell outside the grid, or more positions than the cache has slots.
        """
        deep = levels if growth is None else len(growth.places)
        self.shape.check_cells(cells, deep)
        slots, sizes = self.cache.slots, _NO_TREE if growth is None else _sizes(growth)
        bound = self._bound.get((len(cells), slots, levels, sizes))
        if bound is None:
            bound = self._bound[len(cells), slots, levels, sizes] = self._bind(len(cells), levels, sizes)
        bound.tokens[:] = tokens
        bound.cells[:] = cells
        bound.bias[:, :slots] = self.cache.bias if past_bias is None else past_bias
        bound.bias[:, slots:] = bias
        if self._reads_features:
            if features is None:
                raise EngineError("decoder: this graph reads features, got none; run it through EngineDrafter")
            bound.features[:] = features
        if growth is not None:
            bound.places[:], bound.uniforms[:] = growth.places, growth.uniforms
            bound.ranked[...], bound.drawn[...] = growth.ranked, growth.drawn
        start_time = perf_counter()
        self._session.run_with_iobinding(bound.binding)
        self.spent.seconds += perf_counter() - start_time
        self.spent.passes += deep
        self.spent.positions += len(cells) + (deep - 1) * sizes[1]
        return bound.result

    def _view(self, name: str, shape: tuple[int, ...], most: int, kind: type = np.float32) -> NDArray[Any]:
        """An array at the start of the buffer `name`, which is `most` elements long."""
        if name not in self._memory:
            self._memory[name] = np.zeros(most, dtype=kind)
        return self._memory[name][: int(np.prod(shape))].reshape(shape)

    def _bind(self, count: int, levels: int, sizes: _Sizes) -> _Bound:
        shape, rows, most, slots = self.shape, self.rows, self.cache.capacity, self.cache.slots
        if not 1 <= count <= most:
            raise EngineError(f"decoder: expected 1 to {most} new positions, got {count}; score a smaller tree")
        if (levels != 1 and not (self.fuses_chains and 1 <= levels <= most)) or (sizes[0] and not self.fuses_trees):
            deep = sizes[0] or levels
            raise EngineError(f"decoder: expected 1 level from this graph, got {deep}; draft level by level")
        layered = (shape.layers, rows, shape.heads, count, shape.head_dim)
        result = Pass(
            self._view("logits", (rows, count, shape.vocab_size), rows * most * shape.vocab_size),
            self._view("features", (rows, count, shape.dim), rows * most * shape.dim),
            self._view("keys", layered, self.cache.key_memory.size),
            self._view("values", layered, self.cache.value_memory.size),
            self._view("laws", (count, shape.vocab_size), most * shape.vocab_size)
            if self._sampling.computed and levels == 1
            else None,
            self._view("drafted", (levels,), most, np.int64) if self.fuses_chains else None,
            fused_tree_buffers(*sizes, shape.vocab_size) if sizes[0] else None,
        )
        bound = _Bound(
            self._session.io_binding(),
            self._view("tokens", (rows, count), rows * most, np.int64),
            self._view("cells", (count,), most, np.int64),
            self._view("bias", (count, slots + count), 2 * most * most),
            self._view("given_features", (rows, count, shape.dim), rows * most * shape.dim),
            np.array(levels, dtype=np.int64),
            np.zeros(sizes[:2], dtype=np.int64),
            np.zeros(sizes),
            np.zeros((), dtype=np.bool_),
            np.zeros((), dtype=np.bool_),
            result,
        )
        self._attach(bound)
        return bound

    def _attach(self, bound: _Bound) -> None:
        named: dict[str, NDArray[Any]] = {"tokens": bound.tokens, "cells": bound.cells, "bias": bound.bias}
        if self._reads_features:
            named["features"] = bound.features
        if self.fuses_chains:
            named |= {"levels": bound.levels, "places": bound.places, "uniforms": bound.uniforms}
            named |= {"ranked": bound.ranked, "drawn": bound.drawn}
        named |= self._sampling.inputs()
        if self.shape.external_cond_rows:
            named["conditions"] = self.conditions
        if self.shape.uncond_keep:
            named["unseen"] = self.unseen
        for index in range(self.shape.layers):
            named[f"past_key_{index}"] = self.cache.keys[index]
            named[f"past_value_{index}"] = self.cache.values[index]
        for name, array in named.items():
            bind(bound.binding, "input", name, array)
        results: dict[str, NDArray[Any]] = {"logits": bound.result.logits}
        if bound.result.probs is not None:
            results["laws"] = bound.result.probs
        if bound.result.drafted is not None:
            results["drafted"] = bound.result.drafted
        if bound.result.grown is not None:
            # A loop that never turns gives arrays of no shape that could be known.
            grown: dict[str, NDArray[Any]] = dict(zip(GROWN, bound.result.grown, strict=True))
            results |= {name: array for name, array in grown.items() if array.size}
        results["predicted" if self._reads_features else "features"] = bound.result.features
        for index in range(self.shape.layers):
            results[f"new_key_{index}"] = bound.result.keys[index]
            results[f"new_value_{index}"] = bound.result.values[index]
        for name, array in results.items():
            bind(bound.binding, "output", name, array)
