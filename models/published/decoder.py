"""One decoder for every published model: the options by which they differ, and one cached pass over all of them.

LlamaGen turns queries and keys by the cell's row and column, Chameleon and Qwen2 by the place in the sequence, Tar's
AR-DTok adds a learnt vector instead. Rotary pairs are half a head apart here; loaders reorder those that are not.
Positions are cells: c >= 0 is cell c of the grid in raster order, -prefix to -1 the condition before it. Rotary
attention sees differences of places only, so counting from the first cell changes nothing. Where rows of the grid end
in a line token, that of row r is cell r - prefix - lines; cells behind it stand a place further on for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.models.layers import RMSNorm
from underpaint.models.transformer import StepOutput
from underpaint.models.typed import call

QK_NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and options.

    hidden: width of the SwiGLU layer. prefix: condition positions at most. rotary: by "grid" cell, along the "line", or
    "none" (a learnt vector a position is added). qk_norm: queries and keys are normalised a head at a time.
    post_norm: norms stand after attention and feed-forward. first_norm, final_norm: whether the first layer normalises
    its input, and the model its output. condition: "table" (ids index `conditions` rows of the model's own), "rows"
    (embedded rows come from outside), or "none". drafter: whether it reads features too.
    line_token: vocabulary id that ends each row of the grid but the last, along the "line"; None for none. marks: ids
    that end every prompt. kept: how many ids at the beginning and at the end of a prompt are all that is left of it
    without a condition; None for a model whose condition is no prompt, or that is drawn without guidance.
    grid_side: rows of the grid; grid_width: cells of a row, None for as many.
    """

    dim: int
    layers: int
    heads: int
    hidden: int
    vocab_size: int
    grid_side: int
    prefix: int
    norm_eps: float = 1e-5
    rotary: Literal["grid", "line", "none"] = "grid"
    rope_base: float = 10000.0
    qk_norm: bool = False
    post_norm: bool = False
    first_norm: bool = True
    final_norm: bool = True
    qkv_bias: bool = False
    condition: Literal["table", "rows", "none"] = "table"
    conditions: int = 0
    drafter: bool = False
    line_token: int | None = None
    marks: tuple[int, ...] = ()
    kept: tuple[int, int] | None = None
    grid_width: int | None = None

    def __post_init__(self) -> None:
        if self.dim % self.heads or (self.rotary == "grid" and (self.dim // self.heads) % 4):
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
    def lines(self) -> int:
        """Line tokens of a picture."""
        return 0 if self.line_token is None else self.grid_side - 1

    @property
    def slots(self) -> int:
        """Positions of the longest prompt and a picture."""
        return self.prefix + self.cells + self.lines


def turn_angles(config: DecoderConfig) -> Tensor:
    """Rotary angles float32 [cells + lines + prefix, head_dim / 2]; the last `prefix` rows are the condition's."""
    half = config.head_dim // 2
    if config.rotary == "line":
        frequencies = config.rope_base ** -(torch.arange(half).double() / half)
        cells, lines, width = torch.arange(config.cells), torch.arange(config.lines), config.width
        before = cells // width if config.line_token is not None else 0
        places = torch.cat([cells + before, lines * (width + 1) + width, torch.arange(-config.prefix, 0)])
        return torch.outer(places.double(), frequencies).float()
    frequencies = config.rope_base ** -(torch.arange(0, half, 2).double() / half)
    turns = torch.outer(torch.arange(max(config.grid_side, config.width)).double(), frequencies)
    rows = turns[: config.grid_side].repeat_interleave(config.width, dim=0)
    columns = turns[: config.width].repeat(config.grid_side, 1)
    prefix = torch.zeros(config.prefix, half, dtype=torch.float64)
    return torch.cat([torch.cat([rows, columns], dim=1), prefix]).float()


def turn_table(config: DecoderConfig) -> Tensor:
    """Cosine and sine float32 [cells + lines + prefix, 2, head_dim / 2]; LlamaGen's condition has zeros for both."""
    angles = turn_angles(config)
    table = torch.stack([angles.cos(), angles.sin()], dim=1)
    if config.rotary == "grid":
        table[config.cells :] = 0
    return table


class Layer(nn.Module):
    """One layer; matrices are [out, in] as published. Norms that a model lacks are None."""

    q_scale: Tensor
    q_shift: Tensor
    k_scale: Tensor
    k_shift: Tensor

    def __init__(self, config: DecoderConfig, first: bool) -> None:
        super().__init__()
        dim, heads = config.dim, config.heads
        self.config = config
        self.attention_norm = RMSNorm(dim, config.norm_eps) if config.first_norm or not first else None
        self.qkv = nn.Linear(dim, 3 * dim, bias=config.qkv_bias)
        self.out = nn.Linear(dim, dim, bias=False)
        self.ffn_norm = RMSNorm(dim, config.norm_eps)
        self.gate_up = nn.Linear(dim, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, dim, bias=False)
        if config.qk_norm:
            for name in ("q_scale", "q_shift", "k_scale", "k_shift"):
                self.register_parameter(name, nn.Parameter(torch.empty(heads, config.head_dim)))

    def _heads(self, hidden: Tensor, turns: Tensor | None) -> list[Tensor]:
        """Query, key and value [B, heads, T, head_dim] of the new positions."""
        config = self.config
        shape = (*hidden.shape[:2], config.heads, config.head_dim)
        query, key, value = (part.reshape(shape) for part in self.qkv(hidden).chunk(3, dim=-1))
        if config.qk_norm:
            query = _normed(query) * self.q_scale + self.q_shift
            key = _normed(key) * self.k_scale + self.k_shift
        if turns is not None:
            query, key = _turn(query, turns), _turn(key, turns)
        return [part.transpose(1, 2) for part in (query, key, value)]

    def attend(
        self, hidden: Tensor, turns: Tensor | None, bias: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mixed values [B, T, D] under `bias`, see `Decoder.step`, and the new key and value."""
        query, key, value = self._heads(hidden, turns)
        keys, values = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        scores = (query @ keys.transpose(2, 3)).float() * self.config.head_dim**-0.5 + bias
        mixed = torch.softmax(scores, dim=-1).to(value.dtype) @ values
        return self.out(mixed.transpose(1, 2).flatten(2)), key, value

    def feed(self, hidden: Tensor) -> Tensor:
        """SwiGLU, shape kept."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return call(self.down, functional.silu(gate) * up)

    def forward(
        self, hidden: Tensor, turns: Tensor | None, bias: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Decoder.step`."""
        read = hidden if self.attention_norm is None or self.config.post_norm else self.attention_norm(hidden)
        mixed, key, value = self.attend(read, turns, bias, past)
        if self.config.post_norm and self.attention_norm is not None:
            mixed = self.attention_norm(mixed)
        hidden = hidden + mixed
        fed = self.ffn_norm(self.feed(hidden)) if self.config.post_norm else self.feed(self.ffn_norm(hidden))
        return hidden + fed, key, value


def _normed(heads: Tensor) -> Tensor:
    return functional.layer_norm(heads, heads.shape[-1:], eps=QK_NORM_EPS)


def _turn(heads: Tensor, turns: Tensor) -> Tensor:
    """Turn [B, T, heads, head_dim] by `turns` [T, 2, head_dim / 2]; pairs are half a head apart. In float32."""
    low, high = heads.float().chunk(2, dim=-1)
    cosine, sine = turns[:, None, 0], turns[:, None, 1]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1).to(heads.dtype)


def _table(rows: int, dim: int) -> nn.Embedding:
    """An embedding that a checkpoint fills: drawing random rows on the meta device takes seconds of imports."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))


class Decoder(nn.Module):
    """Target or drafter. A drafter's `codes` are its own embedding, its head the target's."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.codes = _table(config.vocab_size, dim)
        self.conditions = _table(config.conditions, dim) if config.condition == "table" else None
        self.positions = _table(config.cells + config.prefix, dim) if config.rotary == "none" else None
        self.layers = nn.ModuleList(Layer(config, index == 0) for index in range(config.layers))
        self.norm = RMSNorm(dim, config.norm_eps) if config.final_norm else None
        self.head = nn.Linear(dim, config.vocab_size, bias=False)
        self.fc = nn.Linear(2 * dim, dim) if config.drafter else None
        self._table: Tensor | None = None

    def turns(self, cells: Tensor) -> Tensor | None:
        """`turn_table`'s rows of `cells`, kept where they were last used; None for learnt positions."""
        if self.config.rotary == "none":
            return None
        if self._table is None or self._table.device != cells.device:
            self._table = turn_table(self.config).to(cells.device)
        return self._table[cells]

    def embed(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        """Ids [B, T]: codes, or condition row `id - V` of the model's own table or of `rows` [C, D]."""
        table = rows if self.conditions is None else self.conditions.weight
        limit = self.config.vocab_size
        if table is None:
            return call(self.codes, tokens)
        found = self.codes(tokens.clamp(max=limit - 1))
        other = table.to(found.dtype)[(tokens - limit).clamp(min=0)]
        return torch.where((tokens >= limit)[..., None], other, found)

    def step(
        self,
        tokens: Tensor,
        cells: Tensor,
        bias: Tensor,
        past_keys: Sequence[Tensor],
        past_values: Sequence[Tensor],
        rows: Tensor | None = None,
        features: Tensor | None = None,
    ) -> StepOutput:
        """Pass over T new positions given a cache.

        tokens: int64 [B, T], see `embed`. cells: int64 [T], from -prefix - lines. bias: float32 [T, S + T], or
        [B, 1, T, S + T] where rows see different positions, added to the scores, large and negative where a position
        may not see. past_keys, past_values: [B, heads, S, head_dim] a layer. features: [B, T, D] of the token before
        each, for drafters.
        """
        hidden = self.embed(tokens, rows)
        if self.fc is not None:
            if features is None:
                raise ValueError("a drafter reads features, got none")
            hidden = self.fc(torch.cat([features.to(hidden.dtype), hidden], dim=-1))
        if self.positions is not None:
            hidden = hidden + self.positions(cells % (self.config.cells + self.config.prefix))
        turns = self.turns(cells)
        keys, values = [], []
        for layer, key, value in zip(self.layers, past_keys, past_values, strict=True):
            hidden, new_key, new_value = layer(hidden, turns, bias, (key, value))
            keys.append(new_key)
            values.append(new_value)
        found = hidden if self.norm is None else self.norm(hidden)
        return StepOutput(self.head(found).float(), found.float(), keys, values)

    def empty_cache(self, batch: int, slots: int = 0) -> list[Tensor]:
        """Zero keys (or values): one [batch, heads, slots, head_dim] a layer."""
        config, like = self.config, self.head.weight
        shape = (batch, config.heads, slots, config.head_dim)
        return [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in self.layers]


class Conditioner(nn.Module):
    """Features of a condition [P, C] to embedded rows [2P, D]: the condition's, then those of no condition.

    With `activation`, two matrices around a tanh GELU (LlamaGen's captions), else one with a bias (Tar's TA-Tok).
    """

    def __init__(self, width: int, dim: int, prefix: int, activation: bool) -> None:
        super().__init__()
        self.first = nn.Linear(width, dim, bias=not activation)
        self.second = nn.Linear(dim, dim, bias=False) if activation else None
        self.absent = nn.Parameter(torch.empty(prefix, width))

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        hidden = call(self.first, torch.cat([features, self.absent]))
        if self.second is None:
            return hidden
        return call(self.second, functional.gelu(hidden, approximate="tanh"))
