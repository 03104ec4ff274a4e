"""Networks that convert token grids, or images, between two resolutions.

The token samplers are those of MuLo-SD (arXiv 2601.05149): row-causal masked convolutions with pixel shuffle on code
embeddings. Their output for a low row does not depend on rows below it, so rows can be resampled as they are drawn.
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
    """The sizes of a token sampler.

    Attributes:
        direction: Whether it maps to the high ("up") or to the low ("down") resolution.
        vocab_size: Number of codes.
        ratio: High-resolution cells per low-resolution cell, along a side.
        width: Number of channels.
        low_blocks: Residual blocks at the low resolution.
        high_blocks: Residual blocks at the high resolution.
        kernel_rows: Rows that a convolution sees, its own row and rows above it.
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
    """A convolution that sees its own row, `rows - 1` rows above it, and one column on each side."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.conv = nn.Conv2d(width, width, (rows, 3))

    def forward(self, hidden: Tensor) -> Tensor:
        """Convolve [B, C, H, W] and keep its shape."""
        return call(self.conv, functional.pad(hidden, (1, 1, self.rows - 1, 0)))


class CellNorm(nn.Module):
    """Root-mean-square norm over the channels of each cell, as a norm over the whole map would see later rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise [B, C, H, W] and keep its shape."""
        scale = torch.rsqrt(hidden.square().mean(dim=1, keepdim=True) + 1e-6)
        return hidden * scale * self.weight[:, None, None]


class CausalBlock(nn.Module):
    """A residual block: norm, row-causal convolution, SiLU, 1x1 convolution."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.norm = CellNorm(width)
        self.look = RowCausalConv(width, rows)
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the block to [B, C, H, W] and keep its shape."""
        return hidden + call(self.mix, functional.silu(self.look(self.norm(hidden))))


class TokenSampler(nn.Module):
    """Maps codes int64 [B, h, w] of one grid to logits [B, h', w', V] over the codes of another grid."""

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
        """Initialise the embedding as a random projection of the codebook [V, C], so that near codes start near."""
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
    """The sizes of the super-resolution network, which has `layers` convolutions in total."""

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
    """Enlarges pixels [B, 3, H, W] in [-1, 1] to [B, 3, rH, rW]: bicubic, plus a residual from convolutions.

    It follows ESPCN (arXiv 1609.05158): convolutions run at the small size, and a pixel shuffle enlarges their output.
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
    """Return the SHA-256, in hex, of a tokenizer's codebook in float16, so that rounding to float16 keeps it."""
    weight = vq.quantize.embedding.weight.detach().cpu()
    return sha256(weight.to(torch.float16).numpy().tobytes()).hexdigest()
