"""One decoder graph and its cache: passes over new positions, with every buffer bound once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from algos.arrays import FloatArray, IntArray
from algos.draft.spec import Grid
from algos.registry import build
from runtime.cache import KeyValueCache
from runtime.session import EngineError, SessionSettings, bind, open_session
from zoo.load import FOLDER, locate

PREFIX_CELL: Final = -1
"""The cell of every condition position."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The settings in a decoder's manifest.

    capacity: cache slots. prefix: condition positions. vocab_size: image codes; row `vocab_size + id` of the embedding
    is condition id `id` (< `conditions`), and `unconditional` are the rows of the prefix without a condition.
    precision: of weights and caches. prefix_cells: whether all condition positions stand at cell -1 ("one") or at
    -prefix to -1 ("each"). outside: condition rows that come from outside the graph, V + i for row i; 0 for none.
    Where the condition is a prompt, `unconditional` is empty; `kept` says how many ids at its beginning and at its end
    are left without a condition (empty for a model that is drawn without guidance), `marks` are rows put behind every
    prompt. line_token: the row behind each line of codes but the last, at cells -prefix - lines to -prefix - 1.
    """

    vocab_size: int
    height: int
    width: int
    layers: int
    heads: int
    head_dim: int
    features: int
    capacity: int
    prefix: int
    conditions: int
    unconditional: tuple[int, ...]
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    prefix_cells: Literal["one", "each"] = "one"
    outside: int = 0
    kept: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()
    line_token: int | None = None

    @property
    def prompted(self) -> bool:
        """Whether the condition is a prompt of any length."""
        return self.prefix_cells == "each" and not self.outside

    @property
    def guided(self) -> bool:
        """Whether there is a row without a condition."""
        return bool(self.kept if self.prompted else self.unconditional)

    @property
    def lines(self) -> int:
        """Line tokens of an image."""
        return 0 if self.line_token is None else self.height - 1

    @property
    def first_line(self) -> int:
        """The cell of the line token behind the first row."""
        return -self.prefix - self.lines

    def first_cells(self, count: int) -> IntArray:
        """The cells of `count` condition positions."""
        if self.prefix_cells == "each":
            return np.arange(-count, 0)
        return np.full(count, PREFIX_CELL, dtype=np.int64)

    @property
    def least_cell(self) -> int:
        """The least cell of a condition position or a line token."""
        return min(self.first_line, -1) if self.prefix_cells == "each" else PREFIX_CELL

    @property
    def grid(self) -> Grid:
        """The image."""
        return Grid(self.height, self.width)

    def check_cells(self, cells: IntArray, levels: int = 1) -> None:
        """EngineError unless a pass over `cells` [T], and `levels` - 1 more behind the last, stays on the grid."""
        places = cells.tolist()
        if max(places) + levels > self.height * self.width or min(places) < self.least_cell:
            raise EngineError(
                f"decoder: expected cells from {self.least_cell} to {self.height * self.width - 1}, got {places}; grow "
                "a shallower tree (Budget.max_depth)"
            )


@dataclass(slots=True)
class Spent:
    """What the passes of an engine took: calls, new positions, seconds."""

    passes: int = 0
    positions: int = 0
    seconds: float = 0.0


class Pass(NamedTuple):
    """Outputs of one pass: views of buffers that the engine's next pass overwrites.

    logits [B, T, V]; features [B, T, D]; keys, values [L, B, H, T, hd] of the new positions. drafted [levels] int64:
    the greedy chain behind the last position, where the graph `chains`.
    """

    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    drafted: IntArray | None = None


class _Bound(NamedTuple):
    binding: Any
    tokens: NDArray[np.int64]
    cells: NDArray[np.int64]
    bias: NDArray[np.float32]
    features: NDArray[np.float32]
    levels: IntArray
    result: Pass


class Loaded(NamedTuple):
    """A session and its shape; any number of engines may share one."""

    session: Any
    shape: DecoderShape
    name: str

    def engine(self, rows: int) -> "DecoderEngine":
        """A new engine for `rows` sequences."""
        return DecoderEngine(self, rows)


def load_decoder(name: str, kind: str, folder: Path = FOLDER, settings: SessionSettings | None = None) -> Loaded:
    """Load the decoder `name` ("target" or "drafter" in `kind`) after checking it against its manifest.

    Raises ManifestError (missing, damaged, another kind) or EngineError (not loadable as asked).
    """
    located = locate(name, kind, folder)
    settings = settings or SessionSettings()
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
    return Loaded(open_session(located.path, settings), shape, name)


def read_shape(settings: Mapping[str, Any], name: str) -> DecoderShape:
    """The shape in a manifest's settings; EngineError names what is wrong."""
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    try:
        return build(DecoderShape, plain, f"manifest of '{name}'")
    except ValueError as error:
        raise EngineError(f"{error}; export the model again") from error


class DecoderEngine:
    """Runs a decoder graph on `rows` sequences against one cache.

    Buffers are made once and bound by pointer, one binding for each number of new positions and of slots; a pass
    moves tokens and biases in and nothing of the cache anywhere.
    """

    def __init__(self, loaded: Loaded, rows: int) -> None:
        self.shape = loaded.shape
        self.rows = rows
        self.spent = Spent()
        shape = loaded.shape
        self.conditions = np.zeros((shape.outside, shape.features), dtype=np.float32)
        self.unseen = np.zeros(rows, dtype=np.int64)
        """[B]: how many of the first slots a row does not see, where ids of a prompt are `kept`."""
        self.cache = KeyValueCache(shape.layers, rows, shape.heads, shape.head_dim, shape.capacity)
        self._session = loaded.session
        inputs = {each.name for each in loaded.session.get_inputs()}
        self._reads_features = "features" in inputs
        self.chains = "levels" in inputs
        """Whether a pass can go on by itself."""
        self.mix = np.full((1, rows), 1.0 / rows, dtype=np.float32)
        """How the rows' logits add up to what a chain's tokens are the likeliest of."""
        self._bound: dict[tuple[int, int, int], _Bound] = {}
        self._memory: dict[str, NDArray[Any]] = {}

    def run(
        self,
        tokens: IntArray,
        cells: IntArray,
        bias: FloatArray,
        past_bias: FloatArray | None = None,
        features: FloatArray | None = None,
        levels: int = 1,
    ) -> Pass:
        """One pass over T new positions; nothing is committed.

        tokens: [T], the same in every row, or [B, T]. cells: [T] (-1 on the prefix).
        bias: [T, T] among the new positions, 0 or `cache.HIDDEN`. past_bias: [S] or [T, S] on the `cache.slots`; None
        shows what is committed. features: [B, T, D], for drafters. levels: tokens of the greedy chain behind the last
        position, for graphs that `chains`; each counts as a pass.
        Raises EngineError on a cell outside the grid, or more positions than the cache has slots.
        """
        self.shape.check_cells(cells, levels)
        slots = self.cache.slots
        bound = self._bound.get((len(cells), slots, levels))
        if bound is None:
            bound = self._bound[len(cells), slots, levels] = self._bind(len(cells), levels)
        bound.tokens[:] = tokens
        bound.cells[:] = cells
        bound.bias[:, :slots] = self.cache.bias if past_bias is None else past_bias
        bound.bias[:, slots:] = bias
        if self._reads_features:
            if features is None:
                raise EngineError("decoder: this graph reads features, got none; run it through OrtDrafter")
            bound.features[:] = features
        start_time = perf_counter()
        self._session.run_with_iobinding(bound.binding)
        self.spent.seconds += perf_counter() - start_time
        self.spent.passes += levels
        self.spent.positions += len(cells) + levels - 1
        return bound.result

    def _view(self, name: str, shape: tuple[int, ...], most: int, kind: type = np.float32) -> NDArray[Any]:
        """An array at the start of the buffer `name`, which is `most` elements long."""
        if name not in self._memory:
            self._memory[name] = np.zeros(most, dtype=kind)
        return self._memory[name][: int(np.prod(shape))].reshape(shape)

    def _bind(self, count: int, levels: int) -> _Bound:
        shape, rows, most, slots = self.shape, self.rows, self.cache.capacity, self.cache.slots
        if not 1 <= count <= most:
            raise EngineError(f"decoder: expected 1 to {most} new positions, got {count}; score a smaller tree")
        if levels != 1 and not (self.chains and 1 <= levels <= most):
            raise EngineError(f"decoder: expected 1 level from this graph, got {levels}; draft level by level")
        layered = (shape.layers, rows, shape.heads, count, shape.head_dim)
        result = Pass(
            self._view("logits", (rows, count, shape.vocab_size), rows * most * shape.vocab_size),
            self._view("features", (rows, count, shape.features), rows * most * shape.features),
            self._view("keys", layered, self.cache.key_memory.size),
            self._view("values", layered, self.cache.value_memory.size),
            self._view("drafted", (levels,), most, np.int64) if self.chains else None,
        )
        bound = _Bound(
            self._session.io_binding(),
            self._view("tokens", (rows, count), rows * most, np.int64),
            self._view("cells", (count,), most, np.int64),
            self._view("bias", (count, slots + count), 2 * most * most),
            self._view("given_features", (rows, count, shape.features), rows * most * shape.features),
            np.array(levels, dtype=np.int64),
            result,
        )
        self._attach(bound)
        return bound

    def _attach(self, bound: _Bound) -> None:
        named: dict[str, NDArray[Any]] = {"tokens": bound.tokens, "cells": bound.cells, "bias": bound.bias}
        if self._reads_features:
            named["features"] = bound.features
        if self.chains:
            named |= {"levels": bound.levels, "mix": self.mix}
        if self.shape.outside:
            named["conditions"] = self.conditions
        if self.shape.kept:
            named["unseen"] = self.unseen
        for index in range(self.shape.layers):
            named[f"past_key_{index}"] = self.cache.keys[index]
            named[f"past_value_{index}"] = self.cache.values[index]
        for name, array in named.items():
            bind(bound.binding, "input", name, array)
        results: dict[str, NDArray[Any]] = {"logits": bound.result.logits}
        if bound.result.drafted is not None:
            results["drafted"] = bound.result.drafted
        results["predicted" if self._reads_features else "features"] = bound.result.features
        for index in range(self.shape.layers):
            results[f"new_key_{index}"] = bound.result.keys[index]
            results[f"new_value_{index}"] = bound.result.values[index]
        for name, array in results.items():
            bind(bound.binding, "output", name, array)
