"""Losses of a token sampler: tokens, then pictures through the frozen tokenizer, then realism.

`SamplerLosses` switches each term on or off, as in the ablation of MuLo-SD (arXiv 2601.05149).
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from underpaint.models.typed import call
from underpaint.models.vq import VQModel


@dataclass(frozen=True, slots=True)
class SamplerLosses:
    """Weights of the terms; 0 switches one off.

    Attributes:
        tokens: Weight of the cross-entropy.
        pixels: Weight of the squared error of the decoded picture.
        perceptual: Weight of the distance of features, see `perceptual_distance`.
        commitment: Weight of a term that pulls the expected code vector towards the chosen one.
        adversarial: Weight of the loss of a PatchGAN.
    """

    tokens: float = 1.0
    pixels: float = 0.0
    perceptual: float = 0.0
    commitment: float = 0.0
    adversarial: float = 0.0

    def __post_init__(self) -> None:
        weights = (self.tokens, self.pixels, self.perceptual, self.commitment, self.adversarial)
        if min(weights) < 0 or self.tokens == 0:
            raise ValueError(f"losses: expected weights of at least 0, and one above 0 for tokens; got {weights}")

    @property
    def through_pictures(self) -> bool:
        """Whether any term needs the decoder."""
        return max(self.pixels, self.perceptual, self.commitment, self.adversarial) > 0


class SoftDecoding(NamedTuple):
    """Decoded pixels [B, 3, H, W] with a gradient to the logits, and the scalar commitment loss."""

    pixels: Tensor
    commitment: Tensor


def draw_softly(vq: VQModel, logits: Tensor) -> SoftDecoding:
    """Decode the most likely codes of logits [B, h, w, V]; the gradient flows through the expected code vectors."""
    codebook = vq.quantize.codebook
    expected = torch.softmax(logits.float(), dim=-1) @ codebook
    chosen = functional.embedding(logits.argmax(dim=-1), codebook)
    passed = expected + (chosen - expected).detach()
    return SoftDecoding(vq.decode(passed.permute(0, 3, 1, 2)), (expected - chosen).square().sum(dim=-1).mean())


def _features(vq: VQModel, pixels: Tensor) -> list[Tensor]:
    hidden = vq.encoder.conv_in(pixels)
    features = []
    for level in list(vq.encoder.conv_blocks)[:-1]:
        hidden = level(hidden)
        features.append(functional.normalize(hidden.float(), dim=1))
    return features


def perceptual_distance(vq: VQModel, pixels: Tensor, target: Tensor) -> Tensor:
    """Squared distance of unit features after each halving of the tokenizer's own encoder, averaged over levels.

    It has the form of LPIPS (arXiv 1801.03924) without its trained weights. The judge's features are not used, because
    the judge later measures the resulting pictures.
    """
    with torch.no_grad():
        goal = _features(vq, target)
    terms = [(one - other).square().sum(dim=1).mean() for one, other in zip(_features(vq, pixels), goal, strict=True)]
    return torch.stack(terms).mean()


class PatchCritic(nn.Module):
    """Maps pixels [B, 3, H, W] to a score for every patch: a small PatchGAN discriminator (arXiv 1611.07004)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 3, padding=1),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return call(self.layers, pixels)


class Duel(NamedTuple):
    """Two losses: `fooled` has a gradient only to the pixels, `judged` only to the critic, for one backward pass."""

    fooled: Tensor
    judged: Tensor


def duel(critic: PatchCritic, generated: Tensor, real_pixels: Tensor) -> Duel:
    """Hinge losses of the pixels `generated` against `real_pixels`."""
    frozen = {name: value.detach() for name, value in critic.named_parameters()}
    fooled = -functional_call(critic, frozen, (generated,)).mean()
    real, fake = critic(real_pixels), critic(generated.detach())
    return Duel(fooled, functional.relu(1 - real).mean() + functional.relu(1 + fake).mean())
