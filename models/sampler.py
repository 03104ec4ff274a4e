"""Networks between the token grids of two resolutions, and between their pictures.

The latent samplers of MuLo-SD (arXiv 2601.05149): row-causal masked convolutions with pixel shuffle on code
embeddings. What they give for a low row depends on no row below it, so rows can be resampled as they are drawn.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.models.typed import call
from underpaint.models.vq import VQModel

Direction: TypeAlias = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """Widths of a token sampler.

    ratio: high cells to a low one along a side. low_blocks, high_blocks: residual blocks at either resolution.
    kernel_rows: rows that a convolution sees, its own and those above.
    """

    direction: Direction
    vocab_size: int = 1024
    ratio: int = 2
    width: int = 80
    low_blocks: int = 5
    high_blocks: int = 2
    kernel_rows: int = 2

    def __post_init__(self) -> None:
        sizes = (self.vocab_size, self.ratio, self.width, self.low_blocks, self.high_blocks, self.kernel_rows)
        if self.direction not in get_args(Direction) or not 1 <= min(sizes) <= max(sizes) <= 1 << 20:
            raise ValueError(
                "sampler: expected direction up or down and sizes from 1 to 1048576, got "
                f"{self.direction!r} and {sizes}"
            )


class RowCausalConv(nn.Module):
    """A convolution that sees its own row, `rows - 1` above, and a column to either side."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.conv = nn.Conv2d(width, width, (rows, 3))

    def forward(self, hidden: Tensor) -> Tensor:
        """Keep [B, C, H, W]."""
        return call(self.conv, functional.pad(hidden, (1, 1, self.rows - 1, 0)))


class CellNorm(nn.Module):
    """Root-mean-square norm over the channels of each cell: norms over the map would look at later rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Keep [B, C, H, W]."""
        scale = torch.rsqrt(hidden.square().mean(dim=1, keepdim=True) + 1e-6)
        return hidden * scale * self.weight[:, None, None]


class CausalBlock(nn.Module):
    """A residual step: norm, row-causal convolution, SiLU, mix."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.norm = CellNorm(width)
        self.look = RowCausalConv(width, rows)
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Keep [B, C, H, W]."""
        return hidden + call(self.mix, functional.silu(self.look(self.norm(hidden))))


class TokenSampler(nn.Module):
    """Codes int64 [B, h, w] of one grid to logits [B, h', w', V] over the codes of another."""

    def __init__(self, config: SamplerConfig) -> None:
        super().__init__()
        self.config = config
        width, area = config.width, config.ratio**2
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.low = nn.Sequential(*(CausalBlock(width, config.kernel_rows) for _ in range(config.low_blocks)))
        self.high = nn.Sequential(*(CausalBlock(width, config.kernel_rows) for _ in range(config.high_blocks)))
        up = config.direction == "up"
        self.change = nn.Conv2d(width, width * area, 1) if up else nn.Conv2d(width * area, width, 1)
        self.norm = CellNorm(width)
        self.output = nn.Linear(width, config.vocab_size)

    @torch.no_grad()
    def start_from(self, codebook: Tensor) -> None:
        """Embed codes as a random projection of their vectors [V, C]: near codes start out near."""
        projection = torch.randn(codebook.shape[1], self.config.width)
        self.embedding.weight.copy_(codebook.cpu() @ projection)

    def forward(self, codes: Tensor) -> Tensor:
        hidden = self.embedding(codes).permute(0, 3, 1, 2)
        if self.config.direction == "up":
            hidden = self.high(functional.pixel_shuffle(self.change(self.low(hidden)), self.config.ratio))
        else:
            hidden = self.low(self.change(functional.pixel_unshuffle(self.high(hidden), self.config.ratio)))
        return call(self.output, self.norm(hidden).permute(0, 2, 3, 1))


@dataclass(frozen=True, slots=True)
class SuperResolutionConfig:
    """Widths of the super-resolution network: `layers` convolutions in all."""

    ratio: int = 2
    width: int = 40
    layers: int = 4

    def __post_init__(self) -> None:
        if not (1 <= self.ratio <= 64 and 1 <= self.width <= 1 << 14 and 2 <= self.layers <= 1 << 10):
            raise ValueError(
                "super-resolution: expected a ratio from 1 to 64, a width from 1 to 16384 and 2 to 1024 layers, got "
                f"{self}"
            )


class SuperResolution(nn.Module):
    """Pixels [B, 3, H, W] in [-1, 1] to [B, 3, rH, rW]: a bicubic enlargement plus what convolutions add to it.

    After ESPCN (arXiv 1609.05158): all work is done at the small size, then pixels are shuffled.
    """

    def __init__(self, config: SuperResolutionConfig) -> None:
        super().__init__()
        self.config = config
        self.conv_in = nn.Conv2d(3, config.width, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(config.width, config.width, 3, padding=1) for _ in range(config.layers - 2))
        self.conv_out = nn.Conv2d(config.width, 3 * config.ratio**2, 3, padding=1)
        for parameter in self.conv_out.parameters():
            nn.init.zeros_(parameter)

    def forward(self, pixels: Tensor) -> Tensor:
        enlarged = functional.interpolate(pixels, scale_factor=float(self.config.ratio), mode="bicubic")
        hidden = functional.silu(self.conv_in(pixels))
        for conv in self.body:
            hidden = hidden + functional.silu(conv(hidden))
        return enlarged + functional.pixel_shuffle(self.conv_out(hidden), self.config.ratio)


def codebook_name(vq: VQModel) -> str:
    """The SHA-256, in hex, of a tokenizer's codes, which rounding the model to float16 does not change."""
    weight = vq.quantize.embedding.weight.detach().cpu()
    return sha256(weight.to(torch.float16).numpy().tobytes()).hexdigest()
