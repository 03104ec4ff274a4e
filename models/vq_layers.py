"""The layers of the VQ tokenizer's encoder and decoder (arXiv 2406.06525, based on 2012.09841)."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.models.typed import call


def group_norm(channels: int) -> nn.GroupNorm:
    """Return a group norm with 32 groups at the published widths, and at least 4 channels per group below them."""
    return nn.GroupNorm(min(32, max(1, channels // 4)), channels, eps=1e-6)


class ResidualBlock(nn.Module):
    """Two normalised 3x3 convolutions with a shortcut."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.norm1 = group_norm(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.norm2 = group_norm(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Convert [B, channels_in, H, W] to [B, channels_out, H, W]."""
        update = self.conv1(functional.silu(self.norm1(hidden)))
        update = call(self.conv2, functional.silu(self.norm2(update)))
        shortcut = hidden if self.nin_shortcut is None else call(self.nin_shortcut, hidden)
        return shortcut + update


class AttentionBlock(nn.Module):
    """Single-head attention over all cells of the map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Keep the shape [B, C, H, W]."""
        normed = self.norm(hidden)
        query, key, value = (layer(normed).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(query @ key.transpose(1, 2) * query.shape[-1] ** -0.5, dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(hidden.shape)
        return hidden + call(self.proj_out, mixed)


class Downsample(nn.Module):
    """Halves the map, with padding only on the right and below."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C, H/2, W/2]."""
        return call(self.conv, functional.pad(hidden, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Doubles the map by nearest neighbour, then convolves it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C, 2H, 2W]."""
        return call(self.conv, functional.interpolate(hidden, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """The blocks of one resolution, and the step to the next resolution."""

    def __init__(self, widths: list[int], attention: bool, resample: str | None) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.res = nn.ModuleList(ResidualBlock(before, after) for before, after in pairs)
        self.attn = nn.ModuleList(AttentionBlock(after) for _, after in pairs if attention)
        if resample == "down":
            self.downsample = Downsample(widths[-1])
        elif resample == "up":
            self.upsample = Upsample(widths[-1])
        self.resample = resample

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, widths[0], H, W] to [B, widths[-1], H', W']."""
        for index, block in enumerate(self.res):
            hidden = block(hidden)
            if len(self.attn) > 0:
                hidden = self.attn[index](hidden)
        if self.resample == "down":
            hidden = self.downsample(hidden)
        elif self.resample == "up":
            hidden = self.upsample(hidden)
        return hidden


def middle(channels: int) -> nn.ModuleList:
    """Return the blocks between the levels and the latents."""
    return nn.ModuleList(
        [ResidualBlock(channels, channels), AttentionBlock(channels), ResidualBlock(channels, channels)]
    )
