"""The VQ tokenizer: LlamaGen's convolutional VQGAN (arXiv 2406.06525), with the same parameters.

Parameter names are those of the published checkpoints, so a state dict loads without renaming. Widths are free. Pixels
are float in [-1, 1], layout [batch, 3, height, width]; codes are int64 in raster order. The original VQGAN
(arXiv 2012.09841), which Chameleon uses, differs in two places: see the keyword arguments of `VQModel`.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from underpaint.models.typed import call
from underpaint.models.vq_layers import Level, group_norm, middle

# The published buffer has this length for every codebook size.
USAGE_LENGTH = 65536


MOST_CODES: Final = 1 << 20
MOST_WIDTH: Final = 1 << 14
MOST_BLOCKS: Final = 64
MOST_STAGES: Final = 12
"""The largest sizes that a checkpoint may have, far above those of any published tokenizer."""


@dataclass(frozen=True, slots=True)
class VQConfig:
    """The sizes of the tokenizer; the defaults are LlamaGen's VQ-16."""

    codebook_size: int = 16384
    codebook_embed_dim: int = 8
    encoder_ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    decoder_ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    z_channels: int = 256
    ch: int = 128
    num_res_blocks: int = 2

    def __post_init__(self) -> None:
        for name, most in (
            ("codebook_size", MOST_CODES),
            ("codebook_embed_dim", MOST_WIDTH),
            ("z_channels", MOST_WIDTH),
            ("ch", MOST_WIDTH),
            ("num_res_blocks", MOST_BLOCKS),
        ):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"tokenizer: {name} must be from 1 to {most}, got {getattr(self, name)}")
        for name in ("encoder_ch_mult", "decoder_ch_mult"):
            mults = getattr(self, name)
            if not 1 <= len(mults) <= MOST_STAGES or not all(1 <= mult * self.ch <= MOST_WIDTH for mult in mults):
                raise ValueError(
                    f"tokenizer: {name} must have 1 to {MOST_STAGES} factors of at least 1, with widths of at most "
                    f"{MOST_WIDTH}, got {mults}"
                )
        if len(self.encoder_ch_mult) != len(self.decoder_ch_mult):
            raise ValueError(
                "encoder_ch_mult and decoder_ch_mult must have one length, or pictures change size; "
                f"got {self.encoder_ch_mult} and {self.decoder_ch_mult}"
            )

    @property
    def stride(self) -> int:
        """Pixels per code along a side."""
        return int(2 ** (len(self.encoder_ch_mult) - 1))


class Quantized(NamedTuple):
    """The output of quantisation.

    `values` [B, C, H, W] have the straight-through gradient; `codes` [B*H*W]; `latents` [B*H*W, C] are placed (see
    `Quantizer.placed`) but not quantised; `codebook_loss` and `commitment` are scalars.
    """

    values: Tensor
    codes: Tensor
    latents: Tensor
    codebook_loss: Tensor
    commitment: Tensor


class VQEncoder(nn.Module):
    """Encodes pixels to latents."""

    def __init__(self, config: VQConfig, attention: bool) -> None:
        super().__init__()
        widths = [config.ch * factor for factor in config.encoder_ch_mult]
        self.conv_in = nn.Conv2d(3, config.ch, 3, padding=1)
        self.conv_blocks = nn.ModuleList()
        before = config.ch
        for index, width in enumerate(widths):
            last = index == len(widths) - 1
            blocks = [before] + [width] * config.num_res_blocks
            self.conv_blocks.append(Level(blocks, attention and last, None if last else "down"))
            before = width
        self.mid = middle(before)
        self.norm_out = group_norm(before)
        self.conv_out = nn.Conv2d(before, config.z_channels, 3, padding=1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode [B, 3, H, W] to [B, z_channels, H/stride, W/stride]."""
        hidden = self.conv_in(pixels)
        for block in (*self.conv_blocks, *self.mid):
            hidden = block(hidden)
        return call(self.conv_out, functional.silu(self.norm_out(hidden)))


class VQDecoder(nn.Module):
    """Decodes latents to pixels."""

    def __init__(self, config: VQConfig, attention: bool) -> None:
        super().__init__()
        widths = [config.ch * factor for factor in config.decoder_ch_mult][::-1]
        self.conv_in = nn.Conv2d(config.z_channels, widths[0], 3, padding=1)
        self.mid = middle(widths[0])
        self.conv_blocks = nn.ModuleList()
        before = widths[0]
        for index, width in enumerate(widths):
            last = index == len(widths) - 1
            blocks = [before] + [width] * (config.num_res_blocks + 1)
            self.conv_blocks.append(Level(blocks, attention and index == 0, None if last else "up"))
            before = width
        self.norm_out = group_norm(before)
        self.conv_out = nn.Conv2d(before, 3, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        """Decode [B, z_channels, h, w] to [B, 3, h*stride, w*stride]."""
        hidden = self.conv_in(latents)
        for block in (*self.mid, *self.conv_blocks):
            hidden = block(hidden)
        return call(self.conv_out, functional.silu(self.norm_out(hidden)))


class Quantizer(nn.Module):
    """Nearest neighbour in a codebook. unit: compare latents and codes as unit vectors (arXiv 2406.06525, sec. 2.1)."""

    codebook_used: Tensor

    def __init__(self, codebook_size: int, width: int, unit: bool) -> None:
        super().__init__()
        self.unit = unit
        self.embedding = nn.Embedding(codebook_size, width)
        self.register_buffer("codebook_used", torch.zeros(USAGE_LENGTH))
        nn.init.normal_(self.embedding.weight)

    @property
    def codebook(self) -> Tensor:
        """The code vectors [V, C] float32 that latents are compared with."""
        return self.placed(self.embedding.weight.float())

    @property
    def handicap(self) -> Tensor | None:
        """The value [V] subtracted from a code's product with a latent; None for unit vectors, which need none."""
        return None if self.unit else self.codebook.square().sum(dim=-1) / 2

    def placed(self, vectors: Tensor) -> Tensor:
        """Return vectors [..., C] in the form in which they are compared: normalised if `unit`, else unchanged."""
        return functional.normalize(vectors, dim=-1) if self.unit else vectors

    def nearest(self, latents: Tensor) -> Tensor:
        """Return the codes [rows] nearest to placed latents [rows, C]."""
        products, handicap = latents @ self.codebook.T, self.handicap
        return (products if handicap is None else products - handicap).argmax(dim=-1)

    def forward(self, hidden: Tensor) -> Quantized:
        """Quantise [B, C, H, W] with a straight-through gradient."""
        batch, width, height, length = hidden.shape
        latents = self.placed(hidden.float().permute(0, 2, 3, 1).reshape(-1, width))
        codes = self.nearest(latents.detach())
        chosen = functional.embedding(codes, self.codebook)
        passed = latents + (chosen - latents).detach()
        return Quantized(
            passed.reshape(batch, height, length, width).permute(0, 3, 1, 2).contiguous(),
            codes,
            latents,
            (chosen - latents.detach()).square().mean(),
            (chosen.detach() - latents).square().mean(),
        )


class VQModel(nn.Module):
    """The VQ tokenizer: encoder, codebook and decoder.

    coarse_attention: whether every block of the coarsest level is followed by attention. unit_codes: whether latents
    and codes are unit vectors. Both are fixed for a family of checkpoints, so they are not part of the config.
    """

    def __init__(self, config: VQConfig, *, coarse_attention: bool = True, unit_codes: bool = True) -> None:
        super().__init__()
        self.config = config
        self.encoder = VQEncoder(config, coarse_attention)
        self.decoder = VQDecoder(config, coarse_attention)
        self.quantize = Quantizer(config.codebook_size, config.codebook_embed_dim, unit_codes)
        self.quant_conv = nn.Conv2d(config.z_channels, config.codebook_embed_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.codebook_embed_dim, config.z_channels, 1)

    def latents(self, pixels: Tensor) -> Tensor:
        """Encode [B, 3, H, W] to unquantised latents [B, codebook_embed_dim, h, w]."""
        return call(self.quant_conv, self.encoder(pixels))

    def decode(self, values: Tensor) -> Tensor:
        """Decode quantised values [B, codebook_embed_dim, h, w] to pixels [B, 3, H, W] (not clamped)."""
        return call(self.decoder, self.post_quant_conv(values))

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode pixels [B, 3, H, W] in [-1, 1] to codes [B, h*w] int64."""
        if pixels.ndim != 4 or pixels.shape[1] != 3 or any(s % self.config.stride for s in pixels.shape[2:]):
            raise ValueError(
                f"pixels must be [B, 3, H, W] with sides divisible by {self.config.stride}; got {tuple(pixels.shape)}"
            )
        codes: Tensor = self.quantize(self.latents(pixels)).codes
        return codes.reshape(pixels.shape[0], -1)

    def decode_codes(self, codes: Tensor) -> Tensor:
        """Decode codes [B, cells] of a square grid to pixels [B, 3, H, W]."""
        side = int(codes.shape[1] ** 0.5)
        if side * side != codes.shape[1]:
            raise ValueError(f"codes must fill a square grid; got {codes.shape[1]} cells")
        values = functional.embedding(codes, self.quantize.codebook)
        return self.decode(values.reshape(codes.shape[0], side, side, -1).permute(0, 3, 1, 2))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Quantized]:
        """Return the reconstruction [B, 3, H, W] and the output of quantisation."""
        quantized: Quantized = self.quantize(self.latents(pixels))
        return self.decode(quantized.values), quantized
