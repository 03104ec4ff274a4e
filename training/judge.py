"""Recipe of the judge: trains on real scenes with slight damage, like that of a tokenizer or a decoder.

Half of each batch is rendered at 64 px, half at 128 px and averaged. Blur, noise, block-transform rounding and small
colour shifts are drawn per picture, so that the judge reads the content and not the storage format. If a tokenizer is
given, a share of each half is first encoded and decoded by it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from underpaint.models.checkpoints import load_vq
from underpaint.models.judge import Judge, JudgeConfig, Judgement, to_judge_side
from underpaint.models.sampler import codebook_name
from underpaint.models.typed import channels_last
from underpaint.models.vq import VQModel
from underpaint.training.data.batches import numbered_batch
from underpaint.training.data.textured_render import TexturedSheet
from underpaint.training.data.textured_scenes import Split
from underpaint.training.history import RecipeInputs
from underpaint.training.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.training.pictures import SCENE_SEED, to_pixels
from underpaint.training.precision import autocast
from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS
from underpaint.zoo.textured_prompts import MAIN_ACCURACY, MAIN_SLOTS, TEXTURED_SLOTS

DEFAULT_LOOP = LoopSettings(
    steps=5000, learning_rate=3e-3, minutes=12, warmup_steps=100, ema_decay=0.995, validate_every=1000
)
_BLOCK: Final = 8
_RECONSTRUCTED: Final = 300
"""Maximum number of validation scenes that pass through the tokenizer."""


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """Batch sizes, and the maximum of each kind of damage (amounts are drawn from 0 up to these).

    Attributes:
        batch: Scenes per step.
        validation_scenes: Number of scenes for validation.
        clean_share: Share of a batch without damage.
        blur: Maximum weight of the neighbours in the blur.
        noise: Maximum standard deviation of the noise.
        block_step: Maximum step to which cosine coefficients of blocks are rounded.
        colour_shift: Maximum shift, and maximum gain, of colours.
        place_weight: Weight of the slots outside `MAIN_SLOTS` in the loss.
        reconstructed_share: Share of a batch that first passes through the tokenizer, if there is one.
    """

    batch: int = 48
    validation_scenes: int = 1000
    clean_share: float = 0.3
    blur: float = 0.22
    noise: float = 0.06
    block_step: float = 0.35
    colour_shift: float = 0.04
    place_weight: float = 0.5
    reconstructed_share: float = 0.5

    def __post_init__(self) -> None:
        shares = (self.clean_share, self.reconstructed_share)
        if self.batch < 2 or self.validation_scenes < 1 or not all(0 <= share <= 1 for share in shares):
            raise ValueError(
                "judge settings: expected batch >= 2, validation_scenes >= 1 and clean_share and reconstructed_share "
                f"in [0, 1], got {self.batch}, {self.validation_scenes}, {shares[0]} and {shares[1]}"
            )


def _cosine_basis() -> Tensor:
    """Return the orthonormal type-II cosine transform of 8 samples, float [8, 8]."""
    frequency, sample = torch.meshgrid(torch.arange(_BLOCK), torch.arange(_BLOCK), indexing="ij")
    basis = torch.cos(math.pi * (sample + 0.5) * frequency / _BLOCK) * math.sqrt(2 / _BLOCK)
    basis[0] /= math.sqrt(2)
    return basis


def damage(pixels: Tensor, settings: JudgeSettings, generator: torch.Generator) -> Tensor:
    """Return pictures [B, 3, 64, 64] in [-1, 1] with random damage each; some stay clean."""
    count = len(pixels)

    def amounts(most: float) -> Tensor:
        return most * torch.rand(count, 1, 1, 1, generator=generator)

    shift = settings.colour_shift * (2 * torch.rand(count, 3, 1, 1, generator=generator) - 1)
    gain = 1 + settings.colour_shift * (2 * torch.rand(count, 1, 1, 1, generator=generator) - 1)
    hurt = _blurred(pixels, amounts(settings.blur)) * gain + shift
    hurt = _rounded_in_blocks(hurt, amounts(settings.block_step) + 1e-3)
    hurt = hurt + amounts(settings.noise) * torch.randn(pixels.shape, generator=generator)
    clean = torch.rand(count, 1, 1, 1, generator=generator) < settings.clean_share
    return torch.where(clean, pixels, hurt.clamp(-1, 1))


def _blurred(pixels: Tensor, weight: Tensor) -> Tensor:
    """Blur pixels with their neighbours: `weight` [B, 1, 1, 1] on both sides, first across, then down."""
    padded = functional.pad(pixels, (1, 1, 1, 1), mode="replicate")
    across = (1 - 2 * weight) * padded[..., 1:-1] + weight * (padded[..., :-2] + padded[..., 2:])
    return (1 - 2 * weight) * across[..., 1:-1, :] + weight * (across[..., :-2, :] + across[..., 2:, :])


def _rounded_in_blocks(pixels: Tensor, step: Tensor) -> Tensor:
    """Round the cosine coefficients of 8 x 8 blocks, more coarsely at higher frequencies, like JPEG."""
    count, planes, height, width = pixels.shape
    basis = _cosine_basis()
    blocks = pixels.reshape(count, planes, height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK).transpose(3, 4)
    frequency = torch.arange(_BLOCK)
    steps = step[..., None, None] * (1 + frequency[:, None] + frequency) / _BLOCK
    rounded = torch.round(basis @ blocks @ basis.T / steps) * steps
    return (basis.T @ rounded @ basis).transpose(3, 4).reshape(pixels.shape)


def judge_loss(judgement: Judgement, labels: Tensor, place_weight: float) -> Tensor:
    """Sum the cross-entropies of all slots; slots of `MAIN_SLOTS` have weight 1, the others `place_weight`."""
    total = torch.zeros((), device=labels.device)
    for (slot, score), slot_labels in zip(judgement.by_slot.items(), labels.unbind(dim=1), strict=True):
        weight = 1.0 if slot in MAIN_SLOTS else place_weight
        total = total + weight * functional.cross_entropy(score.float(), slot_labels)
    return total


@torch.no_grad()
def reconstructed(pixels: Tensor, tokenizer: VQModel) -> Tensor:
    """Encode pictures [B, 3, H, W] with a tokenizer and decode them again."""
    with autocast(pixels.device):
        return tokenizer.decode_codes(tokenizer.encode(pixels)).to(pixels.dtype)


@torch.no_grad()
def accuracy(
    model: Judge, sheet: TexturedSheet, split: Split, size: int, count: int, tokenizer: VQModel | None = None
) -> dict[str, float]:
    """Return the accuracy on scenes 0 to count - 1 of a split: per slot, and for all of `MAIN_SLOTS` together.

    The combined one is named "things_and_finishes", as in the grammar.
    With a tokenizer, its reconstructions are judged, as for a target that draws exactly the scenes' codes.
    """
    right = []
    for start in range(0, count, 100):
        real = numbered_batch(sheet, SCENE_SEED, start, min(100, count - start), split, size)
        device = next(model.parameters()).device
        pixels = to_pixels(real.pictures, device)
        seen = pixels if tokenizer is None else reconstructed(pixels, tokenizer)
        predictions = model(to_judge_side(seen)).classes().cpu()
        right.append(predictions == torch.from_numpy(real.labels))
    table = torch.cat(right)
    slots = tuple(TEXTURED_SLOTS)
    figures = {slot: float(table[:, column].float().mean()) for column, slot in enumerate(slots)}
    main = table[:, [slots.index(slot) for slot in MAIN_SLOTS]].all(dim=1)
    return figures | {MAIN_ACCURACY: float(main.float().mean())}


class _Recipe:
    def __init__(
        self, model: Judge, sheet: TexturedSheet, settings: JudgeSettings, seed: int, tokenizer: VQModel | None
    ) -> None:
        self.model, self.sheet, self.settings, self.seed = model, sheet, settings, seed
        self.tokenizer = tokenizer
        self.device = next(model.parameters()).device

    def loss(self, step: int) -> Loss:
        """Render batch `step`, damage it, judge it and return the loss."""
        settings = self.settings
        first, half = step * settings.batch, settings.batch // 2
        small = numbered_batch(self.sheet, self.seed, first, half, "every", 64)
        large = numbered_batch(self.sheet, self.seed, first + half, settings.batch - half, "every", 128)
        pixels = torch.cat([self._stored(small.pictures), to_judge_side(self._stored(large.pictures))])
        labels = torch.from_numpy(np.concatenate([small.labels, large.labels])).to(self.device)
        generator = torch.Generator().manual_seed((self.seed << 32) + step)
        seen = damage(pixels, settings, generator).to(self.device).contiguous(memory_format=torch.channels_last)
        with autocast(self.device):
            judgement = self.model(seen)
        value = judge_loss(judgement, labels, settings.place_weight)
        slots = tuple(judgement.by_slot)
        shares = {
            slot: (judgement.by_slot[slot].argmax(1) == labels[:, slots.index(slot)]).float().mean()
            for slot in MAIN_SLOTS
        }
        return Loss(value, shares)

    def _stored(self, pictures: NDArray[np.uint8]) -> Tensor:
        """Pixels of pictures; the first ones are reconstructed by the tokenizer."""
        pixels, count = to_pixels(pictures), round(self.settings.reconstructed_share * len(pictures))
        if self.tokenizer is None or count == 0:
            return pixels
        back = reconstructed(pixels[:count].to(self.device), self.tokenizer).to(pixels.device)
        return torch.cat([back, pixels[count:]])

    def validate(self) -> dict[str, float]:
        """Judge new scenes of both splits at the shipped sizes; seen pairs also after the tokenizer."""
        figures: dict[str, float] = {}
        measured: tuple[Split, ...] = ("seen", "held_out")
        for split, size in itertools.product(measured, SHIPPED_RESOLUTIONS):
            accuracies = accuracy(self.model, self.sheet, split, size, self.settings.validation_scenes)
            figures |= {f"{split}_{size}_{slot}": share for slot, share in accuracies.items()}
        for size in SHIPPED_RESOLUTIONS if self.tokenizer is not None else ():
            count = min(_RECONSTRUCTED, self.settings.validation_scenes)
            accuracies = accuracy(self.model, self.sheet, "seen", size, count, self.tokenizer)
            figures |= {f"reconstructed_{size}_{slot}": share for slot, share in accuracies.items()}
        return figures


def train_judge(
    out: Path,
    sheet: TexturedSheet,
    *,
    config: JudgeConfig | None = None,
    settings: JudgeSettings | None = None,
    loop: LoopSettings = DEFAULT_LOOP,
    tokenizer: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> TrainingResult:
    """Train a judge of scenes that `sheet` renders into `out/checkpoint.pt` (kind "judge"); continues an existing run.

    The result's validation has the accuracy on new scenes of seen and held-out pairs at 64 and 128 px: per slot, and
    for things and finishes together ("seen_64_things_and_finishes", ...).
    `tokenizer`: a checkpoint that reconstructs `JudgeSettings.reconstructed_share` of the pictures; the result then
    also has the accuracy on reconstructions ("reconstructed_64_things_and_finishes", ...).
    """
    torch.manual_seed(seed)
    model = channels_last(Judge(config or JudgeConfig()).to(device))
    settings = settings or JudgeSettings()
    stored_by = None if tokenizer is None else channels_last(load_vq(tokenizer).to(device))
    recipe = _Recipe(model, sheet, settings, seed, stored_by)
    plain = {"kind": "judge", "judge": model.config.to_dict(), "scenes": "textured"}
    how = {"seed": seed, "settings": asdict(settings)}
    inputs = RecipeInputs(how | {"tokenizer": None if stored_by is None else codebook_name(stored_by)})
    return train(model, recipe.loss, out, loop, plain, validate=recipe.validate, inputs=inputs, title="judge")
