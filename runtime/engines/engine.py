"""The protocol of every engine: a decoder for B rows of sequences, and a KV cache to which only `commit` adds."""

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
"""Reads of a clock before it counts as stopped; they take a tenth of a second. A real clock moves at once."""


def manifest_config(settings: Mapping[str, Any], name: str) -> DecoderConfig:
    """Read the config in the manifest of model `name`; raise EngineError, naming the setting, if it is invalid."""
    try:
        return read_config(settings, f"manifest of '{name}': settings")
    except ValueError as error:
        raise EngineError(f"{error}; export the model again") from error


def check_graph(config: DecoderConfig, inputs: Iterable[Any], outputs: Iterable[Any], name: str) -> None:
    """Raise EngineError unless a graph's inputs and outputs (each has a name and a shape) have the sizes of `config`.

    Otherwise a manifest that was edited by hand would fail in the middle of a pass.
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
    """Raise EngineError unless `cells` [T] or [B, T] and the `levels` - 1 cells after them are on the grid."""
    places = cells.ravel().tolist()
    if max(places) + levels > config.cells or min(places) < config.least_cell:
        raise EngineError(
            f"decoder: expected cells from {config.least_cell} to {config.cells - 1}, got {places}; draft a shallower "
            "tree"
        )


@dataclass(slots=True)
class PassTimer:
    """The cost of a model's forward passes so far: passes, new positions, seconds, and calls of each kind."""

    passes: int = 0
    positions: int = 0
    seconds: float = 0.0
    kinds: Counter[PassKind] = field(default_factory=Counter)

    def add(self, kind: PassKind, positions: int, seconds: float) -> None:
        """Count a call.

        Args:
            kind: The kind of the call; each of its levels counts as a pass.
            positions: New positions of all passes of the call.
            seconds: Duration of the call in seconds.
        """
        self.passes += kind.levels
        self.positions += positions
        self.seconds += seconds
        self.kinds[kind] += 1


def call_kind(
    cache: KeyValueCache, positions: int, chain_levels: int = 1, tree: FusedTreeSpec | None = None
) -> PassKind:
    """Return the kind of the next call of an engine.

    Args:
        cache: The cache of the engine before the call.
        positions: Number of new positions in the call.
        chain_levels: Levels of the chain that the call drafts; 1 drafts none.
        tree: The tree that the call drafts instead, if any.

    Returns:
        The kind.
    """
    if tree is not None:
        return PassKind("sampled" if tree.drawn else "ranked", len(tree.uniforms), tree.places.shape[1])
    if chain_levels > 1:
        return PassKind("chain", chain_levels, positions)
    return PassKind("begin" if cache.is_empty else "pass", 1, positions)


def check_clock() -> None:
    """Raise OSError if the clock that times passes is stopped, as speeds would divide by zero."""
    first = perf_counter()
    if all(perf_counter() == first for _ in range(_MOST_LOOKS)):
        raise OSError(
            "the clock of this process stands still, so nothing can be timed; run it without a fixed time (as "
            "libfaketime sets one), or on another machine"
        )


class FusedTreeOutput(NamedTuple):
    """A draft tree from a single call of a graph: L levels, F expanded nodes per level, C children per node.

    root_tokens [1, C] int64, root_probs [1, C] float64: the children of the root. For the levels below: next_frontier
    [L - 1, F] int64, tokens and token_probs [L - 1, F, C], and probs [L - 1, F, V] float32, the distributions of those
    tokens.
    """

    root_tokens: IntArray
    root_probs: FloatArray
    next_frontier: IntArray
    tokens: IntArray
    token_probs: FloatArray
    probs: NDArray[np.float32]


class PassOutput(NamedTuple):
    """The outputs of one pass: views of buffers that the engine's next pass overwrites.

    Attributes:
        logits: [B, T, V] float32.
        features: [B, T, D] float32.
        probs: [T, V] float32, the distributions under the engine's sampling parameters; None if the host has to
            compute them.
        chain: [levels] int64, the greedy chain after the last position, if the engine `fuses_chains`.
        tree: The draft tree after the last position, if the call requested one.
    """

    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    probs: NDArray[np.float32] | None = None
    chain: IntArray | None = None
    tree: FusedTreeOutput | None = None

    def probs_at(self, positions: IntArray | slice, params: SamplingParams) -> FloatArray:
        """Return the distributions [N, V] after `positions`: those of the graph, or else computed here from the logits.

        Args:
            positions: N positions of the pass.
            params: The engine's sampling parameters.

        Raises:
            ValueError: A logit is NaN or infinite.
        """
        if self.probs is None:
            return sampling_probs(self.logits[:, positions], params)
        probs = self.probs[positions].copy()
        if not np.isfinite(np.add.reduce(probs[:, 0])):  # a single NaN or infinity spreads to the whole distribution
            raise ValueError("distributions: expected finite logits, got NaN or infinity; check the engine's parity")
        return probs


class Engine(Protocol):
    """A decoder that runs B rows of sequences.

    Each sequence has one row, and with guidance a second row without the condition. Every row has its own length, cells
    and bias, so that one pass can advance rows of different progress.
    """

    @property
    def config(self) -> DecoderConfig:
        """The config in the decoder's manifest."""
        ...

    @property
    def rows(self) -> int:
        """The number of rows, B."""
        ...

    @property
    def fuses_chains(self) -> bool:
        """Whether a pass can draft a greedy chain after its last position."""
        ...

    @property
    def fuses_trees(self) -> bool:
        """Whether a pass can draft a tree after its last position, under the current sampling."""
        ...

    @property
    def cost(self) -> PassTimer:
        """The cost of the passes so far."""
        ...

    @property
    def cache(self) -> KeyValueCache:
        """The KV cache, to which positions of the last pass are committed."""
        ...

    def sample_by(self, params: SamplingParams) -> None:
        """Set the sampling parameters, from the next pass on."""
        ...

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        """Clear the cache.

        Args:
            hidden: [B], for each row, the number of first slots that stay masked after their commit; empty masks none.
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
        """Run one pass over T new positions without committing them; arguments without B apply to every row.

        Args:
            tokens: [T] or [B, T], the tokens at the positions.
            cells: [T] or [B, T], the cells of the tokens.
            bias: [T, T] or [B, T, T] among the new positions, 0 or `MASKED_SCORE`.
            past_bias: [S], [T, S] or [B, T, S] on the slots; None shows the committed slots.
            features: [B, T, D], for drafters.
            chain_levels: Tokens of the greedy chain after the last position; each level counts as a pass.
            tree: The tree to draft after the last position; each level counts as a pass.

        Raises:
            EngineError: A cell is off the grid, there are too many positions, or the engine cannot draft the request.
        """
        ...

    def close(self) -> None:
        """Free the memory; the engine cannot run afterwards."""
        ...


class LoadedDecoder(Protocol):
    """A decoder whose file was checked and read once, and which any number of engines can run."""

    @property
    def name(self) -> str:
        """The name of the model in its folder."""
        ...

    @property
    def config(self) -> DecoderConfig:
        """The config in the decoder's manifest."""
        ...

    @property
    def row_counts(self) -> tuple[int, ...] | None:
        """The numbers of rows that the decoder was built for; None if it runs any number."""
        ...

    def max_positions(self, rows: int) -> int | None:
        """Return the largest number of new positions in a pass of `rows` rows; None if only the cache limits it.

        Raises EngineError if the decoder was not built for this number of rows.
        """
        ...

    def open(self, rows: int) -> Engine:
        """Open a new engine for `rows` rows, with its own cache."""
        ...


def rows_of(params: SamplingParams) -> int:
    """Return the number of rows of a pass: 1 with guidance 1, else 2."""
    return 1 if params.guidance == 1.0 else 2


class GuidanceEngines:
    """Opens an engine on first use, and keeps only one open at a time.

    An engine with another number of rows replaces the open one. The old engine's memory is freed only after the new one
    shares what both use, such as the weights.
    """

    def __init__(self, decoder: LoadedDecoder) -> None:
        self._decoder = decoder
        self._open: Engine | None = None

    def under(self, params: SamplingParams) -> Engine:
        """Return the engine for one row (guidance 1) or a guidance pair, set to sample with `params`."""
        rows = rows_of(params)
        if self._open is None or self._open.rows != rows:
            fresh = self._decoder.open(rows)
            self.close()
            self._open = fresh
        self._open.sample_by(params)
        return self._open

    def close(self) -> None:
        """Close the open engine, if any."""
        if self._open is not None:
            self._open.close()
            self._open = None
