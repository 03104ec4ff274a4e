"""The configuration of a decoder: sizes and options that checkpoints, manifests, graphs and devices share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.artifacts.strict_json import build_typed

Precision: TypeAlias = Literal["fp32", "fp16", "bf16"]
_MOST_SLOTS: Final = 1 << 20
_SIZES: Final[Mapping[str, tuple[int, int]]] = {
    "dim": (1, 1 << 16),
    "layers": (1, 1 << 10),
    "heads": (1, 1 << 12),
    "hidden": (1, 1 << 18),
    "vocab_size": (1, 1 << 22),
    "height": (1, 1 << 10),
    "width": (1, 1 << 10),
    "prefix": (0, _MOST_SLOTS),
    "cond_ids": (0, 1 << 22),
    "kv_heads": (0, 1 << 12),
    "head_dim": (0, 1 << 14),
}
"""Smallest and largest value of each size, so that a damaged file is refused before its model is built."""
"""`_MOST_SLOTS` limits a cache: no model draws a million codes, and memory is allocated for all of them."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The sizes and options of one target or drafter.

    A checkpoint has the options in its config. An exported model has them in the settings of its manifest, where
    `precision` and `capacity` say how it was exported. Condition ids count from 0 here; a pass reads id `i` as token
    `vocab_size + i`, after the image codes.

    Args:
        dim: Width of hidden states and features.
        layers: Number of layers.
        heads: Query heads of a layer.
        hidden: Width of the SwiGLU layer.
        vocab_size: Number of image codes.
        grid_side: Rows of the grid.
        prefix: Largest number of condition positions.
        norm_eps: Epsilon of the root-mean-square norms.
        rope: Rotary positions by "grid" cell, along the "line", or "none" (one learnt vector per position is added).
        rope_prefix: With the "grid" rope, the rotation of a condition's queries and keys. "zero" makes them 0, as in
            LlamaGen, so that every cell reads the mean of the whole condition; "identity" leaves them as they are, so
            that a cell can attend to one word.
        rope_base: Base of the rotary frequencies.
        qk_norm: Whether queries and keys are normalised per head.
        post_norm: Whether norms stand after attention and feed-forward.
        first_norm: Whether the first layer normalises its input.
        final_norm: Whether the model normalises its output.
        qkv_bias: Whether queries, keys and values have a bias.
        condition: "table" (ids index the model's own `cond_ids` rows, the last `uncond_rows` of which mean no
            condition), "external" (embedded rows are an input), or "none".
        cond_ids: Rows of the condition's table.
        uncond_rows: Number of its rows that mean no condition.
        drafter: Whether the decoder reads features too.
        fc_bias: Whether a drafter's input layer has a bias.
        reads_condition: Whether a drafter reads the condition's positions except the last, `prefix` - 1 of them.
        eol_token: Condition id after each grid row except the last, with the "line" rope; None without such tokens.
        image_start_ids: Condition ids at the end of every condition.
        prompt_end: Condition ids that every prompt must end with; its author writes them.
        uncond_keep: Numbers of ids at the beginning and the end of a prompt that remain when the condition is dropped;
            None for a model whose condition is no prompt, or that is drawn without guidance.
        grid_width: Cells per grid row; None for as many as there are rows.
        kv_heads: Heads of keys and values, each shared by as many query heads; 0 for one per query head.
        head_dim: Width of a head; 0 for dim / heads. Both are filled in: `dataclasses.replace` keeps them, or takes 0.
        precision: Precision of an exported model's weights, hidden states and caches.
        capacity: Number of cache slots of an exported model; 0 before the export.

    Raises:
        ValueError: If heads do not share keys evenly, or rotary pairs do not fill a head.
    """

    dim: int
    layers: int
    heads: int
    hidden: int
    vocab_size: int
    grid_side: int
    prefix: int
    norm_eps: float = 1e-5
    rope: Literal["grid", "line", "none"] = "grid"
    rope_prefix: Literal["zero", "identity"] = "zero"
    rope_base: float = 10000.0
    qk_norm: bool = False
    post_norm: bool = False
    first_norm: bool = True
    final_norm: bool = True
    qkv_bias: bool = False
    condition: Literal["table", "external", "none"] = "table"
    cond_ids: int = 0
    uncond_rows: int = 1
    drafter: bool = False
    fc_bias: bool = True
    reads_condition: bool = False
    eol_token: int | None = None
    image_start_ids: tuple[int, ...] = ()
    uncond_keep: tuple[int, int] | None = None
    prompt_end: tuple[int, ...] = ()
    grid_width: int | None = None
    kv_heads: int = 0
    head_dim: int = 0
    precision: Precision = "fp32"
    capacity: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in _SIZES.items():
            size = getattr(self, name)
            if size < least:
                raise ValueError(f"{name}: expected at least {least}, got {size}")
            if size > most:
                raise ValueError(f"{name}: expected at most {most}, got {size}")
        width = self.head_dim or self.dim // self.heads
        if (not self.head_dim and self.dim % self.heads) or (self.rope == "grid" and width % 4) or width < 1:
            raise ValueError(
                f"expected heads of a width that rotary pairs fill, got {self.head_dim or f'{self.dim} / {self.heads}'}"
            )
        groups = self.kv_heads or self.heads
        if groups < 1 or self.heads % groups:
            raise ValueError(f"expected heads that share keys and values evenly, got {self.heads} over {groups}")
        object.__setattr__(self, "head_dim", width)
        object.__setattr__(self, "kv_heads", groups)

    @property
    def height(self) -> int:
        """Rows of the grid."""
        return self.grid_side

    @property
    def width(self) -> int:
        """Cells of a row of the grid."""
        return self.grid_width or self.grid_side

    @property
    def grid(self) -> Grid:
        """The grid of image tokens."""
        return Grid(self.height, self.width)

    @property
    def cells(self) -> int:
        """Number of cells of the grid."""
        return self.height * self.width

    @property
    def eol_tokens(self) -> int:
        """Number of end-of-line tokens in a picture."""
        return 0 if self.eol_token is None else self.height - 1

    @property
    def slots(self) -> int:
        """Number of positions of the longest condition and a picture."""
        return self.prefix + self.cells + self.eol_tokens

    @property
    def condition_positions(self) -> int:
        """Number of condition positions that a pass reads at most: 0 for a drafter, which reads features."""
        return 0 if self.drafter else self.prefix

    @property
    def projected_heads(self) -> int:
        """Number of query, key and value heads together, which one matrix projects."""
        return self.heads + 2 * self.kv_heads

    @property
    def eol_id(self) -> int | None:
        """Token after every line of codes except the last, as a pass reads it; None if the model reads none."""
        return None if self.eol_token is None or self.drafter else self.vocab_size + self.eol_token

    @property
    def first_eol_cell(self) -> int:
        """Cell of the end-of-line token after the first line; those of other lines follow."""
        return -self.prefix - self.eol_tokens

    @property
    def prompt_ids(self) -> int:
        """Number of ids that classes and prompts can use."""
        return self.cond_ids - (self.uncond_rows if self.uncond_rows > 1 else 0)

    @property
    def external_cond_rows(self) -> int:
        """Number of embedded input rows, conditional and unconditional; tokens from `vocab_size` on refer to them."""
        return 2 * self.prefix if self.condition == "external" else 0

    @property
    def _along_line(self) -> bool:
        """Whether each position of a condition has its own cell."""
        return self.rope == "none" or (self.rope == "line" and not self.drafter)

    @property
    def prompted(self) -> bool:
        """Whether the condition is a prompt of any length."""
        return self._along_line and self.condition != "external"

    @property
    def uncond_ids(self) -> tuple[int, ...]:
        """Tokens that mean no condition; empty if the condition is a prompt, or there is none."""
        if self.condition == "external":
            return tuple(range(self.vocab_size + self.prefix, self.vocab_size + 2 * self.prefix))
        if self.condition == "none" or self.rope == "line":
            return ()
        end = self.vocab_size + self.cond_ids
        return tuple(range(end - self.uncond_rows, end))

    @property
    def guided(self) -> bool:
        """Whether the model can draw without a condition, as guidance needs."""
        return bool(self.uncond_keep if self.prompted else self.uncond_ids)

    def first_cells(self, count: int) -> IntArray:
        """Cells [count] of condition positions: all -1, or -count to -1 if each has its own place."""
        return np.arange(-count, 0) if self._along_line else np.full(count, -1, dtype=np.int64)

    @property
    def least_cell(self) -> int:
        """Smallest cell that a pass may name: that of a condition position or an end-of-line token."""
        return min(self.first_eol_cell, -1) if self._along_line and not self.drafter else -1


def read_config(settings: Mapping[str, Any], what: str) -> DecoderConfig:
    """Read a decoder's config from the settings of its manifest.

    Args:
        settings: Fields of `DecoderConfig` by name.
        what: Source of the settings; error messages begin with it.

    Raises:
        ValueError: If a setting is unknown, missing, of another type or size.
    """
    try:
        config = build_typed(DecoderConfig, settings, what)
        if not config.cells <= config.capacity <= _MOST_SLOTS:
            cells = config.cells
            raise ValueError(f"capacity: expected {cells} slots for {cells} cells, or more, got {config.capacity}")
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(what) else f"{what}: {error}") from error
    return config
