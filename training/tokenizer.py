"""Recipe of the tokenizer: a small VQ autoencoder shared by all resolutions.

It uses no perceptual network and no discriminator: the loss has L1 on pixels, on their differences and on two coarser
scales, the energy of textures, and the codebook terms. The codebook starts from spherical k-means over the encoder's
outputs after a short warm-up without quantisation. Unused codes restart at latents of the current batch.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from underpaint.models.typed import channels_last
from underpaint.models.vq import VQConfig, VQModel
from underpaint.training.history import RecipeInputs, refuse_other
from underpaint.training.loop import LoopSettings, Loss, TrainingResult, train, warm_rate_share
from underpaint.training.pictures import Pictures, to_pixels
from underpaint.training.precision import autocast
from underpaint.training.reconstruction import ReconstructionWeights, reconstruction_loss

CONFIG = VQConfig(
    codebook_size=4096,
    codebook_embed_dim=8,
    encoder_ch_mult=(1, 2, 4, 8),
    decoder_ch_mult=(1, 2, 4, 8),
    z_channels=128,
    ch=16,
    num_res_blocks=1,
)
"""Narrow at full resolution, which takes most of the time."""
LOOP = LoopSettings(
    steps=4000, learning_rate=2e-3, matrix_rate=0.03, warmup_steps=40, ema_decay=0.997, validate_every=400, beta2=0.99
)

_STARTING: Final = 16
"""Number of batches whose latents the codebook starts from."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Batches and loss weights.

    Steps cycle through the picture `sides` (px), with `batch` pictures of 64 px, or as many pixels of another side, but
    at least one picture. Validation uses `validation_scenes` at each of the sides. The first `plain_steps` do not
    quantise. After them, codes that were not used for `restart_every` steps restart, until the share `restart_until` of
    the run, by steps or minutes, whichever has progressed further.
    """

    batch: int = 16
    scenes: int = 1_000_000
    validation_scenes: int = 64
    sides: tuple[int, ...] = (128, 64, 64, 64)
    weights: ReconstructionWeights = field(default_factory=ReconstructionWeights)
    commitment_weight: float = 0.25
    plain_steps: int = 150
    restart_every: int = 40
    restart_until: float = 0.7

    def at(self, step: int) -> tuple[int, int]:
        """Return the side of a step's pictures in pixels, and their number."""
        side = self.sides[step % len(self.sides)]
        return side, max(1, self.batch * 64**2 // side**2)


SETTINGS = TokenizerSettings(
    batch=24,
    validation_scenes=32,
    sides=(64, 128, 64, 128, 256),
    weights=ReconstructionWeights(gradient=0.2, energy=1.0),
)


def check_codes(config: VQConfig, settings: TokenizerSettings) -> None:
    """Raise ValueError if the codebook has more codes than there are latents to start it from."""
    batches = map(settings.at, range(settings.plain_steps, settings.plain_steps + _STARTING))
    rows = sum(count * (side // config.stride) ** 2 for side, count in batches)
    if config.codebook_size > rows:
        raise ValueError(
            f"--codes: expected at most {rows:,}, the latents of the {_STARTING} batches that a codebook starts from, "
            f"got {config.codebook_size:,}; give fewer"
        )


@torch.no_grad()
def spherical_kmeans(latents: Tensor, count: int, rounds: int, seed: int) -> Tensor:
    """Unit centres [count, C] of unit rows [N, C]; empty clusters restart at random rows."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    if len(latents) < count:
        raise ValueError(f"k-means of {count} centres needs as many rows; got {len(latents)}")
    centres = latents[torch.randperm(len(latents), generator=generator)[:count].to(latents.device)]
    for _ in range(rounds):
        nearest = (latents @ centres.T).argmax(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, latents)
        empty = torch.bincount(nearest, minlength=count) == 0
        spare = torch.randint(len(latents), (count,), generator=generator).to(latents.device)
        centres = functional.normalize(torch.where(empty[:, None], latents[spare], sums), dim=-1)
    return centres


class _Recipe:
    """The mutable state of a run: which codes were used since the last restart, or since the run continued."""

    def __init__(
        self, model: VQModel, pictures: Pictures, settings: TokenizerSettings, loop: LoopSettings, seed: int
    ) -> None:
        self.model, self.pictures, self.settings = model, pictures, settings
        self.loop, self.seed, self.share = loop, seed, 1.0
        self.device = next(model.parameters()).device
        self.used = torch.zeros(model.config.codebook_size, device=self.device)
        self.counted = 0
        """Number of steps in `used`."""
        self.latents = torch.empty(0, model.config.codebook_embed_dim, device=self.device)

    def batch(self, step: int) -> Tensor:
        random = np.random.default_rng([self.seed, step])
        side, count = self.settings.at(step)
        scenes = random.integers(self.settings.scenes, size=count).tolist()
        pixels = to_pixels(self.pictures(scenes, side, "train"), self.device)
        return pixels.flip(3) if random.random() < 0.5 else pixels

    def loss(self, step: int) -> Loss:
        pixels = self.batch(step)
        quantise = step >= self.settings.plain_steps
        if step == self.settings.plain_steps:
            self.start_codebook(step)
        with autocast(self.device):
            latents = self.model.latents(pixels)
        quantized = self.model.quantize(latents)
        passed = quantized.values if quantise else functional.normalize(latents.float(), dim=1)
        with autocast(self.device):
            reconstruction = self.model.decode(passed)
        value = reconstruction_loss(reconstruction.float(), pixels, self.settings.weights)
        mse = (reconstruction.float().clamp(-1, 1) - pixels).square().mean().detach()
        figures: dict[str, float | Tensor] = {"psnr": 10 * torch.log10(4 / mse)}
        if quantise:
            value = value + quantized.codebook_loss + self.settings.commitment_weight * quantized.commitment
            figures |= {"commitment": quantized.commitment.detach()}
            self.used += torch.bincount(quantized.codes, minlength=len(self.used))
            self.counted += 1
            self.latents = quantized.latents.detach()
        return Loss(value, figures)

    @torch.no_grad()
    def start_codebook(self, step: int) -> None:
        """Set the codebook by k-means over the latents of several batches."""
        self.model.eval()
        batch_latents = []
        for offset in range(_STARTING):
            with autocast(self.device):
                latents = self.model.latents(self.batch(step + offset))
            batch_latents.append(self.model.quantize(latents).latents)
        self.model.train()
        rows = torch.cat(batch_latents)
        self.model.quantize.embedding.weight.copy_(
            spherical_kmeans(rows, self.model.config.codebook_size, 8, self.seed)
        )

    def follow(self, share: float) -> None:
        """Remember a step's rates, as a fraction of the peak rates."""
        self.share = share

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Restart codes that have not been used for a while, until the schedule settles."""
        every, since = self.settings.restart_every, step - self.settings.plain_steps
        if since <= 0 or since % every or self.counted < every:
            return
        if step >= self.loop.warmup_steps and self.share < warm_rate_share(self.loop, self.settings.restart_until):
            return
        dead = (self.used == 0).nonzero().ravel()
        random = np.random.default_rng([self.seed, step, 1])
        rows = torch.from_numpy(random.integers(len(self.latents), size=len(dead))).to(self.device)
        self.model.quantize.embedding.weight[dead] = self.latents[rows]
        self.used.zero_()
        self.counted = 0

    def validate(self) -> dict[str, float]:
        """PSNR (dB, over [0, 255]) and the number of used codes, on scenes that are not used in training."""
        figures: dict[str, float] = {}
        codes = []
        count = self.settings.validation_scenes
        for size in sorted(set(self.settings.sides)):
            error = 0.0
            for start in range(0, count, 16):
                pixels = to_pixels(self.pictures(range(start, min(count, start + 16)), size, "seen"), self.device)
                with autocast(self.device):
                    reconstruction, quantized = self.model(pixels)
                codes.append(quantized.codes)
                error += float((reconstruction.float().clamp(-1, 1) - pixels).square().mean()) * len(pixels)
            figures[f"psnr_{size}"] = float(10 * np.log10(4 / (error / count)))
        figures["codes_used"] = float(torch.bincount(torch.cat(codes)).count_nonzero())
        return figures


def train_tokenizer(
    out: Path,
    pictures: Pictures,
    *,
    config: VQConfig = CONFIG,
    settings: TokenizerSettings = SETTINGS,
    loop: LoopSettings = LOOP,
    seed: int = 0,
    device: str = "cpu",
) -> TrainingResult:
    """Train a tokenizer into `out/checkpoint.pt` (kind "tokenizer"); continues an existing run.

    Args:
        out: Folder of the run.
        pictures: The training pictures.
        config: Widths.
        settings: Batches and loss weights.
        loop: Length and learning rates.
        seed: Seed of weights and batches.
        device: "cpu" or "cuda".

    Raises:
        ValueError: `out` has a run with other widths, seed or settings, or there are too many codes.
    """
    check_codes(config, settings)
    torch.manual_seed(seed)
    model = channels_last(VQModel(config).to(device))
    inputs = RecipeInputs({"seed": seed, "settings": asdict(settings)})
    refuse_other(out, inputs)
    recipe = _Recipe(model, pictures, settings, loop, seed)
    widths = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(config).items()}
    return train(
        model,
        recipe.loss,
        out,
        loop,
        {"kind": "tokenizer", "vq": widths, "scenes": "textured"},
        validate=recipe.validate,
        after_step=recipe.after_step,
        at_share=recipe.follow,
        inputs=inputs,
        title="tokenizer",
    )
