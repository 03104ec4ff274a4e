"""The options by which decoders differ: sizes, rotary scheme, condition, image tokens, and the rotary table of each."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and options.

    hidden: width of the SwiGLU layer. prefix: condition positions at most. rope: rotary positions by "grid" cell, along
    the "line", or "none" (a learnt vector a position is added). rope_prefix: by the "grid", what turns a condition's
    queries and keys: "zero" makes them 0, as LlamaGen's are, so that every cell reads the mean of all of the condition;
    "identity" leaves them as they are, so that a cell can choose a word. qk_norm: queries and keys are normalised a
    head at a time. post_norm: norms stand after attention and feed-forward. first_norm, final_norm: whether the first
    layer normalises its input, and the model its output.
    condition: "table" (ids index `cond_ids` rows of the model's own, the last `uncond_rows` of which stand for no
    condition), "external" (embedded rows come from outside), or "none".
    drafter: whether it reads features too; fc_bias: whether its input layer has a bias.
    eol_token: vocabulary id that ends each row of the grid but the last, along the "line"; None for none.
    image_start_ids: ids that end every condition. uncond_keep: how many ids at the beginning and at the end of a prompt
    are all that is left of it without a condition; None for a model whose condition is no prompt, or that is drawn
    without guidance. grid_side: rows of the grid; grid_width: cells of a row, None for as many.
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
    eol_token: int | None = None
    image_start_ids: tuple[int, ...] = ()
    uncond_keep: tuple[int, int] | None = None
    grid_width: int | None = None

    def __post_init__(self) -> None:
        if self.dim % self.heads or (self.rope == "grid" and (self.dim // self.heads) % 4):
            raise ValueError(f"expected heads of a width that rotary pairs fill, got {self.dim} / {self.heads}")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    @property
    def cells(self) -> int:
        """Cells of the grid."""
        return self.grid_side * self.width

    @property
    def width(self) -> int:
        """Cells of a row."""
        return self.grid_width or self.grid_side

    @property
    def eol_tokens(self) -> int:
        """End-of-line tokens of a picture."""
        return 0 if self.eol_token is None else self.grid_side - 1

    @property
    def slots(self) -> int:
        """Positions of the longest prompt and a picture."""
        return self.prefix + self.cells + self.eol_tokens


def rope_angles(config: DecoderConfig) -> Tensor:
    """Rotary angles float32 [cells + eol_tokens + prefix, head_dim / 2]; the last `prefix` rows are the condition's."""
    half = config.head_dim // 2
    if config.rope == "line":
        frequencies = config.rope_base ** -(torch.arange(half).double() / half)
        cells, lines, width = torch.arange(config.cells), torch.arange(config.eol_tokens), config.width
        before = cells // width if config.eol_token is not None else 0
        places = torch.cat([cells + before, lines * (width + 1) + width, torch.arange(-config.prefix, 0)])
        return torch.outer(places.double(), frequencies).float()
    frequencies = config.rope_base ** -(torch.arange(0, half, 2).double() / half)
    turns = torch.outer(torch.arange(max(config.grid_side, config.width)).double(), frequencies)
    rows = turns[: config.grid_side].repeat_interleave(config.width, dim=0)
    columns = turns[: config.width].repeat(config.grid_side, 1)
    prefix = torch.zeros(config.prefix, half, dtype=torch.float64)
    return torch.cat([torch.cat([rows, columns], dim=1), prefix]).float()


def rope_table(config: DecoderConfig) -> Tensor:
    """Cosine and sine float32 [cells + eol_tokens + prefix, 2, head_dim / 2]; a condition's by `rope_prefix`."""
    angles = rope_angles(config)
    table = torch.stack([angles.cos(), angles.sin()], dim=1)
    if config.rope == "grid" and config.rope_prefix == "zero":
        table[config.cells :] = 0
    return table
