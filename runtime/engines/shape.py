"""The settings in a decoder's manifest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.draft.spec import Grid
from underpaint.algos.registry import build
from underpaint.runtime.engines.context import EngineError

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


def read_shape(settings: Mapping[str, Any], name: str) -> DecoderShape:
    """The shape in a manifest's settings; EngineError names what is wrong."""
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    try:
        return build(DecoderShape, plain, f"manifest of '{name}'")
    except ValueError as error:
        raise EngineError(f"{error}; export the model again") from error
