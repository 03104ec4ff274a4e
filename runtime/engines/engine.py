"""What every engine is: one decoder on B rows of sequences, and a cache to which only `commit` adds."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import FusedTreeSpec, PassKind
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.artifacts.decoder_config import DecoderConfig, read_config
from underpaint.artifacts.decoder_graph import PREDICTED_FEATURES, pass_inputs, pass_outputs
from underpaint.runtime.engines.cache import KeyValueCache
from underpaint.runtime.engines.context import EngineError

_MOST_LOOKS: Final = 1_000_000
"""Times that a clock is looked at before it counts as standing still: a tenth of a second; real ones move at once."""


def manifest_config(settings: Mapping[str, Any], name: str) -> DecoderConfig:
    """The config in the manifest of model `name`; EngineError names the setting that is wrong, its type, or a size."""
    try:
        return read_config(settings, f"manifest of '{name}': settings")
    except ValueError as error:
        raise EngineError(f"{error}; export the model again") from error


def check_graph(config: DecoderConfig, inputs: Iterable[Any], outputs: Iterable[Any], name: str) -> None:
    """EngineError unless a graph's inputs and outputs (each has a name and a shape) are of the sizes of `config`.

    A manifest that was edited by hand would else end in the middle of a pass.
    """
    read = {each.name: tuple(each.shape) for each in inputs}
    written = {each.name: tuple(each.shape) for each in outputs}
    if (PREDICTED_FEATURES in written) != config.drafter:
        what = "a drafter" if config.drafter else "a target"
        raise EngineError(f"{name}: its manifest's settings are of {what}, its graph is of another; export it again")
    for shapes, specs in ((read, pass_inputs(config)), (written, pass_outputs(config))):
        for spec in specs:
            shape = shapes.get(spec.name)
            if shape is None or len(shape) != len(spec.shape):
                raise EngineError(f"{name}: its graph has no '{spec.name}' of its manifest's settings; export it again")
            for size, expected in zip(shape, spec.shape, strict=True):
                if isinstance(size, int) and isinstance(expected, int) and size != expected:
                    raise EngineError(
                        f"{name}: its manifest's settings make {spec.name} {list(spec.shape)}, the graph has "
                        f"{list(shape)}: one of them was edited; export it again"
                    )


def check_cells(config: DecoderConfig, cells: IntArray, levels: int = 1) -> None:
    """EngineError unless a pass over `cells` [T] or [B, T], and `levels` - 1 cells behind them, stays on the grid."""
    places = cells.ravel().tolist()
    if max(places) + levels > config.cells or min(places) < config.least_cell:
        raise EngineError(
            f"decoder: expected cells from {config.least_cell} to {config.cells - 1}, got {places}; draft a shallower "
            "tree"
        )


@dataclass(slots=True)
class PassTimer:
    """What the forward passes of a model took so far: calls, new positions, seconds, and calls by their kind."""

    passes: int = 0
    positions: int = 0
    seconds: float = 0.0
    kinds: Counter[PassKind] = field(default_factory=Counter)

    def add(self, kind: PassKind, positions: int, seconds: float) -> None:
        """Count a call.

        Args:
            kind: Its kind; each of its levels is a pass.
            positions: New positions of all its passes.
            seconds: That it took.
        """
        self.passes += kind.levels
        self.positions += positions
        self.seconds += seconds
        self.kinds[kind] += 1


def call_kind(
    cache: KeyValueCache, positions: int, chain_levels: int = 1, tree: FusedTreeSpec | None = None
) -> PassKind:
    """The kind of a call that an engine is about to make.

    Args:
        cache: The engine's, before the call.
        positions: New positions that the call is fed.
        chain_levels: Levels of the chain that it drafts; 1 for none.
        tree: What it drafts instead.

    Returns:
        The kind.
    """
    if tree is not None:
        return PassKind("sampled" if tree.drawn else "ranked", len(tree.uniforms), tree.places.shape[1])
    if chain_levels > 1:
        return PassKind("chain", chain_levels, positions)
    return PassKind("begin" if cache.is_empty else "pass", 1, positions)


def check_clock() -> None:
    """Raise OSError unless the clock moves that passes are timed by: speeds would be divisions by zero."""
    first = perf_counter()
    if all(perf_counter() == first for _ in range(_MOST_LOOKS)):
        raise OSError(
            "the clock of this process stands still, so nothing can be timed; run it without a fixed time (as "
            "libfaketime sets one), or on another machine"
        )


class FusedTreeOutput(NamedTuple):
    """A tree of L levels, F nodes expanded in each, C children of each, as a graph gives it in one call.

    root_tokens [1, C] int64, root_probs [1, C] float64: the root's children. Of the levels below: next_frontier
    [L - 1, F] int64, tokens and token_probs [L - 1, F, C], and probs [L - 1, F, V] float32, the distributions that
    those tokens are of.
    """

    root_tokens: IntArray
    root_probs: FloatArray
    next_frontier: IntArray
    tokens: IntArray
    token_probs: FloatArray
    probs: NDArray[np.float32]


class PassOutput(NamedTuple):
    """What one pass gives: views of buffers that the engine's next pass overwrites.

    logits [B, T, V]; features [B, T, D]. probs [T, V]: the distributions of the sampling that the engine was told,
    where it `makes_probs`. chain [levels] int64: the greedy chain behind the last position, from engines that
    `fuses_chains`. tree: the tree behind it, where one was asked for.
    """

    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    probs: NDArray[np.float32] | None = None
    chain: IntArray | None = None
    tree: FusedTreeOutput | None = None

    def probs_at(self, positions: IntArray | slice, params: SamplingParams) -> FloatArray:
        """The distributions [N, V] behind `positions`: the graph's own where it has them, else made of the logits here.

        params: those that the engine was told. Raises ValueError on NaN or infinity among the logits.
        """
        if self.probs is None:
            return sampling_probs(self.logits[:, positions], params)
        probs = self.probs[positions].copy()
        if not np.isfinite(np.add.reduce(probs[:, 0])):  # one NaN or infinity spoils the whole of its distribution
            raise ValueError("distributions: expected finite logits, got NaN or infinity; check the engine's parity")
        return probs


class Engine(Protocol):
    """A decoder on B rows of sequences.

    One sequence has a row of its own, and with guidance a second one without its condition. Rows have a length each,
    and a pass may put each at other cells and under another bias, so that rows of unequal progress fit one pass.
    """

    @property
    def config(self) -> DecoderConfig:
        """What the decoder's manifest says."""
        ...

    @property
    def rows(self) -> int:
        """B."""
        ...

    @property
    def makes_probs(self) -> bool:
        """Whether passes give the distributions of the sampling told last; else the host makes them of the logits."""
        ...

    @property
    def fuses_chains(self) -> bool:
        """Whether a pass can draft a greedy chain behind its last position."""
        ...

    @property
    def fuses_trees(self) -> bool:
        """Whether a pass can draft a tree behind its last position, under the sampling told last."""
        ...

    @property
    def cost(self) -> PassTimer:
        """What its passes took so far."""
        ...

    @property
    def cache(self) -> KeyValueCache:
        """Its cache, to which positions of the last pass are committed."""
        ...

    def sample_by(self, params: SamplingParams) -> None:
        """Say how logits become distributions, from the next pass on."""
        ...

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        """Forget every position. hidden: [B], how many of the first slots each row never sees once they are committed.

        cond_rows: [C, D] float32, the embedded condition of a decoder that takes `external_cond_rows`.
        """
        ...

    def run(
        self,
        tokens: IntArray,
        cells: IntArray,
        bias: FloatArray,
        past_bias: FloatArray | None = None,
        features: FloatArray | None = None,
        chain_levels: int = 1,
        tree: FusedTreeSpec | None = None,
    ) -> PassOutput:
        """One pass over T new positions; nothing is committed. What lacks B is the same in every row.

        tokens, cells: [T] or [B, T]. bias: [T, T] or [B, T, T] among the new positions, 0 or `MASKED_SCORE`.
        past_bias: [S], [T, S] or [B, T, S] on the slots; None shows what is committed. features: [B, T, D], for
        drafters. chain_levels: tokens of the greedy chain behind the last position; tree: the tree behind it. Each
        level counts as a pass.
        Raises EngineError on a cell outside the grid, more positions than the engine takes, or what it cannot fuse.
        """
        ...

    def close(self) -> None:
        """Give its memory back; it runs no more."""
        ...


class LoadedDecoder(Protocol):
    """A decoder whose file was checked and read once; any number of engines may run it."""

    @property
    def name(self) -> str:
        """The model's name in its folder."""
        ...

    @property
    def config(self) -> DecoderConfig:
        """What the decoder's manifest says."""
        ...

    @property
    def row_counts(self) -> tuple[int, ...] | None:
        """The numbers of rows that it was built for; None where it runs any."""
        ...

    def max_positions(self, rows: int) -> int | None:
        """The most new positions of a pass of `rows` rows; None where only the cache bounds them.

        Raises EngineError where it was not built for so many rows.
        """
        ...

    def open(self, rows: int) -> Engine:
        """A new engine for `rows` rows, with a cache of its own."""
        ...


def rows_of(params: SamplingParams) -> int:
    """Rows of a pass: one with guidance 1, else a guidance pair."""
    return 1 if params.guidance == 1.0 else 2


class GuidanceEngines:
    """Opens an engine when it is first needed; one at a time, whatever the sampling.

    An engine of another number of rows takes the place of the one before, whose memory is given back once what both
    share, as the weights, is the new one's too.
    """

    def __init__(self, decoder: LoadedDecoder) -> None:
        self._decoder = decoder
        self._open: Engine | None = None

    def under(self, params: SamplingParams) -> Engine:
        """The engine of one row (guidance 1), or of a guidance pair, that samples by `params` from now on."""
        rows = rows_of(params)
        if self._open is None or self._open.rows != rows:
            fresh = self._decoder.open(rows)
            self.close()
            self._open = fresh
        self._open.sample_by(params)
        return self._open

    def close(self) -> None:
        """Close it."""
        if self._open is not None:
            self._open.close()
            self._open = None
