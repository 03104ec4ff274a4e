"""The reconstruction loss of a tokenizer: pixels, their differences, coarser scales, and the energy of textures."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class ReconstructionWeights:
    """Weights of the parts of the loss, relative to the mean absolute error of pixels.

    Attributes:
        square: Weight of the mean squared error.
        gradient: Weight of the differences of neighbours.
        coarse: Weight of each of two halvings.
        energy: Weight of each octave of `texture_energy`, 0 for none.
    """

    square: float = 2.0
    gradient: float = 0.3
    coarse: float = 0.5
    energy: float = 0.0


def reconstruction_loss(reconstruction: Tensor, target: Tensor, weights: ReconstructionWeights) -> Tensor:
    """A scalar loss for pictures [B, 3, H, W]: L1, squared error, L1 of differences and of two halvings, energy."""
    error = reconstruction - target
    total = error.abs().mean() + weights.square * error.square().mean()
    edges = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
    total = total + weights.gradient * edges
    for _ in range(2):
        error = functional.avg_pool2d(error, 2)
        total = total + weights.coarse * error.abs().mean()
    if weights.energy > 0:
        pairs = zip(texture_energy(reconstruction), texture_energy(target), strict=True)
        total = total + weights.energy * sum((left - right).abs().mean() for left, right in pairs)
    return total


def texture_energy(pixels: Tensor, octaves: int = 2, reach: int = 4) -> list[Tensor]:
    """Local mean magnitude of each octave of brightness, finest first: [B, 1, H / reach, W / reach] and halves of it.

    A 12-bit code cannot encode the position of every leaf, so pixel errors reward the mean, which is grey. The energy
    of an octave (the detail that a halving removes, after Burt and Adelson, 1983) rewards equally strong texture at
    any position.
    """
    bright = pixels.mean(dim=1, keepdim=True)
    energies = []
    for _ in range(octaves):
        coarse = functional.avg_pool2d(bright, 2)
        detail = bright - functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        energies.append(functional.avg_pool2d(detail.abs(), reach))
        bright = coarse
    return energies
