"""The settings in a decoder's manifest: what an engine must know of a graph."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.artifacts.decoder_graph import PREDICTED_FEATURES, DecoderSizes, Precision, pass_inputs, pass_outputs
from underpaint.artifacts.typed_json import build_typed
from underpaint.runtime.engines.context import EngineError

PREFIX_CELL: Final = -1
"""The cell of a condition position where all of them stand at one."""
_MOST_SLOTS: Final = 1 << 20
"""Of a cache: no model draws a million codes, and memory is taken for all of them."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The settings in a decoder's manifest.

    vocab_size: V, the image codes. height, width: of the image, in cells. dim: D, the width of features. capacity: S,
    the slots of its cache. prefix: condition positions, the most where a prompt may be shorter.
    cond_ids: ids that a condition is made of. Row `vocab_size + id` of the embedding is condition id `id`.
    uncond_ids: the rows of the embedding that stand for no condition; empty where the condition is a prompt.
    precision: of weights and caches.
    prefix_cells: whether all condition positions stand at cell -1 ("one") or at -prefix to -1 ("each").
    external_cond_rows: embedded condition rows that come from outside the graph, of which row i is id V + i; 0 for
    none.
    uncond_keep: of a prompt, how many ids at its beginning and at its end stay where it is left out; empty for a model
    that is drawn without guidance. image_start_ids: rows of the embedding behind every
    condition.
    eol_token: the row behind every line of codes but the last, at cells -prefix - eol_tokens to -prefix - 1.
    rope, rope_prefix, rope_base, norm_eps, post_norm: options of `models.decoder_config.DecoderConfig` that the graph
    holds and its weights do not tell; for runtimes that read the weights alone. rope and rope_prefix are None where an
    older export does not say.
    """

    vocab_size: int
    height: int
    width: int
    layers: int
    heads: int
    head_dim: int
    dim: int
    capacity: int
    prefix: int
    cond_ids: int
    uncond_ids: tuple[int, ...]
    precision: Precision = "fp32"
    prefix_cells: Literal["one", "each"] = "one"
    external_cond_rows: int = 0
    uncond_keep: tuple[int, ...] = ()
    image_start_ids: tuple[int, ...] = ()
    eol_token: int | None = None
    rope: Literal["grid", "line", "none"] | None = None
    rope_prefix: Literal["zero", "identity"] | None = None
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    post_norm: bool = False

    @property
    def prompted(self) -> bool:
        """Whether the condition is a prompt of any length."""
        return self.prefix_cells == "each" and not self.external_cond_rows

    @property
    def guided(self) -> bool:
        """Whether the model knows what it draws without a condition."""
        return bool(self.uncond_keep if self.prompted else self.uncond_ids)

    @property
    def eol_tokens(self) -> int:
        """End-of-line tokens of an image."""
        return 0 if self.eol_token is None else self.height - 1

    @property
    def first_eol_cell(self) -> int:
        """The cell of the end-of-line token behind the first line."""
        return -self.prefix - self.eol_tokens

    def first_cells(self, count: int) -> IntArray:
        """The cells of `count` condition positions."""
        if self.prefix_cells == "each":
            return np.arange(-count, 0)
        return np.full(count, PREFIX_CELL, dtype=np.int64)

    @property
    def least_cell(self) -> int:
        """The least cell of a condition position or an end-of-line token."""
        return min(self.first_eol_cell, -1) if self.prefix_cells == "each" else PREFIX_CELL

    @property
    def grid(self) -> Grid:
        """The image."""
        return Grid(self.height, self.width)

    def check_cells(self, cells: IntArray, levels: int = 1) -> None:
        """EngineError unless a pass over `cells` [T] or [B, T], and `levels` - 1 more behind the last, stays on the
        grid."""
        places = cells.ravel().tolist()
        if max(places) + levels > self.height * self.width or min(places) < self.least_cell:
            raise EngineError(
                f"decoder: expected cells from {self.least_cell} to {self.height * self.width - 1}, got {places}; "
                "draft a shallower tree"
            )


def read_shape(settings: Mapping[str, Any], name: str) -> DecoderShape:
    """The shape in a manifest's settings; EngineError names what is wrong: a setting, its type, or a size."""
    what = f"manifest of '{name}': settings"
    try:
        shape = build_typed(DecoderShape, settings, what)
        _check_sizes(shape, what)
    except ValueError as error:
        raise EngineError(f"{error}; export the model again") from error
    return shape


def _check_sizes(shape: DecoderShape, what: str) -> None:
    for size in ("vocab_size", "height", "width", "layers", "heads", "head_dim", "dim"):
        if getattr(shape, size) < 1:
            raise ValueError(f"{what}: {size}: expected at least 1, got {getattr(shape, size)}")
    cells = shape.height * shape.width
    if not cells <= shape.capacity <= _MOST_SLOTS:
        raise ValueError(f"{what}: capacity: expected {cells} slots for {cells} cells, or more, got {shape.capacity}")


def graph_sizes(shape: DecoderShape, drafter: bool) -> DecoderSizes:
    """The sizes of a decoder's graph."""
    return DecoderSizes(
        layers=shape.layers,
        heads=shape.heads,
        head_dim=shape.head_dim,
        dim=shape.dim,
        vocab_size=shape.vocab_size,
        precision=shape.precision,
        drafter=drafter,
        external_cond_rows=bool(shape.external_cond_rows),
    )


def check_graph(shape: DecoderShape, inputs: Iterable[Any], outputs: Iterable[Any], name: str) -> None:
    """EngineError unless a graph's inputs and outputs (each has a name and a shape) are of the sizes that `shape` says.

    A manifest that was edited by hand would else end in the middle of a pass.
    """
    read = {each.name: tuple(each.shape) for each in inputs}
    written = {each.name: tuple(each.shape) for each in outputs}
    sizes = graph_sizes(shape, drafter=PREDICTED_FEATURES in written)
    for found, wanted in ((read, pass_inputs(sizes)), (written, pass_outputs(sizes))):
        for spec in wanted:
            held = found.get(spec.name)
            if held is None or len(held) != len(spec.shape):
                raise EngineError(f"{name}: its graph has no '{spec.name}' of its manifest's settings; export it again")
            for size, told in zip(held, spec.shape, strict=True):
                if isinstance(size, int) and isinstance(told, int) and size != told:
                    raise EngineError(
                        f"{name}: its manifest's settings make {spec.name} {list(spec.shape)}, the graph has "
                        f"{list(held)}: one of them was edited; export it again"
                    )
