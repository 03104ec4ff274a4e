"""Recipe of the super-resolution network: it enlarges pictures decoded at one resolution to a higher one.

It trains on decoded pictures, so it also corrects what the tokenizer does to small ones. Its pictures are only used to
be encoded again, so it also trains on the codes that the frozen encoder reads in them.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from underpaint.models.checkpoints import load_vq
from underpaint.models.sampler import SuperResolution, SuperResolutionConfig, codebook_name
from underpaint.models.typed import channels_last
from underpaint.models.vq import VQModel
from underpaint.training.data.textured_scenes import Split
from underpaint.training.history import RecipeInputs
from underpaint.training.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.training.pictures import to_pixels
from underpaint.training.precision import autocast
from underpaint.training.sampler import PairedCodes, PairedScenes, Pupil, check_pairs

LOOP: Final = LoopSettings(
    steps=250, learning_rate=2e-3, matrix_rate=0.01, warmup_steps=20, ema_decay=0.98, validate_every=125
)


@dataclass(frozen=True, slots=True)
class SuperResolutionSettings:
    """Batch sizes and weights of the training.

    Attributes:
        batch: Scenes per step.
        validated: Number of scenes for validation.
        token_weight: Weight of the codes' cross-entropy; 0 leaves only pixels.
        sharpness: Factor that turns the codes' scores, which are cosines where codes are unit vectors, into logits.
    """

    batch: int = 8
    validated: int = 32
    token_weight: float = 0.1
    sharpness: float = 20.0

    def __post_init__(self) -> None:
        if min(self.batch, self.validated) < 1 or self.token_weight < 0 or self.sharpness <= 0:
            raise ValueError(f"super-resolution: expected counts of at least 1 and no negative weight, got {self}")


def settings_for(side: int) -> SuperResolutionSettings:
    """Settings for pictures of `side` px, with as many pixels per step as at 128 px."""
    usual = SuperResolutionSettings()
    return replace(usual, batch=max(1, usual.batch * 128**2 // side**2))


class _Enlarged(NamedTuple):
    """Predicted and real pixels; the score of every code at every high cell [B, cells, V]; the true codes."""

    pixels: Tensor
    real: Tensor
    scores: Tensor
    codes: Tensor


def code_scores(vq: VQModel, latents: Tensor) -> Tensor:
    """Return the score [B, cells, V] of every code for latents [B, C, h, w]; the nearest code has the highest."""
    products = vq.quantize.placed(latents.float().flatten(2).transpose(1, 2)) @ vq.quantize.codebook.T
    return products if vq.quantize.handicap is None else products - vq.quantize.handicap


def train_super_resolution(
    out: Path,
    scenes: PairedScenes,
    *,
    config: SuperResolutionConfig | None = None,
    settings: SuperResolutionSettings | None = None,
    loop: LoopSettings = LOOP,
    seed: int = 0,
    device: str = "cpu",
) -> TrainingResult:
    """Train the network into `out/checkpoint.pt` (kind "superres"); continues an existing run.

    Raises ValueError if the codes do not fill the grids.
    """
    torch.manual_seed(seed)
    data, validation, tokenizer, pictures, grids = scenes
    config, settings = config or SuperResolutionConfig(grids.ratio), settings or SuperResolutionSettings()
    check_pairs(scenes, config.ratio)
    vq = channels_last(load_vq(tokenizer).requires_grad_(False).to(device))
    pupil = channels_last(Pupil(SuperResolution(config)).to(device))
    place, side = torch.device(device), grids.high.height * vq.config.stride

    def enlarged(codes: PairedCodes, rows: NDArray[np.int64], split: Split) -> _Enlarged:
        low, high = (torch.from_numpy(part[rows].astype(np.int64)).to(place) for part in codes)
        with autocast(place):
            with torch.no_grad():
                small = vq.decode_codes(low).clamp(-1, 1)
            pixels = pupil.network(small.float())
            latents = vq.latents(pixels)
        scores = code_scores(vq, latents)
        return _Enlarged(pixels.float(), to_pixels(pictures(rows.tolist(), side, split), place), scores, high)

    def loss(step: int) -> Loss:
        random = np.random.default_rng([seed, step])
        seen = enlarged(data, random.integers(len(data.low), size=settings.batch), "train")
        error = seen.pixels - seen.real
        squared = error.square().mean()
        logits = settings.sharpness * seen.scores
        cross = functional.cross_entropy(logits.flatten(0, 1), seen.codes.flatten())
        figures = {"psnr": 10 * torch.log10(4 / squared.detach()), "ce": cross.detach()}
        return Loss(error.abs().mean() + 2 * squared + settings.token_weight * cross, figures)

    def validate() -> dict[str, float]:
        squared, right, count = 0.0, 0.0, min(settings.validated, len(validation.low))
        for start in range(0, count, 8):
            rows = np.arange(start, min(count, start + 8))
            seen = enlarged(validation, rows, "seen")
            squared += float((seen.pixels.clamp(-1, 1) - seen.real).square().mean()) * len(rows)
            right += float((seen.scores.argmax(-1) == seen.codes).float().mean()) * len(rows)
        return {"psnr": float(10 * np.log10(4 * count / squared)), "accuracy": right / count}

    described: dict[str, Any] = {"kind": "superres", "superres": asdict(config), "codebook": codebook_name(vq)}
    described |= {"low": list(grids.low), "high": list(grids.high)}
    inputs = RecipeInputs({"seed": seed, "settings": asdict(settings)})
    return train(pupil, loss, out, loop, described, validate=validate, inputs=inputs, title="super-resolution")
