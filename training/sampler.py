"""Recipe of the latent samplers: they predict a scene's tokens at one resolution from its tokens at another.

One tokenizer encodes a scene at both resolutions, so every scene is a pair. "ce" trains only on tokens. "pixel" and
"gan" continue from it through the frozen decoder, on a few scenes of each batch (MuLo-SD, arXiv 2601.05149).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.models.checkpoints import load_sampler, load_vq, read, story
from underpaint.models.config import build
from underpaint.models.sampler import Direction, SamplerConfig, TokenSampler, codebook_name
from underpaint.models.typed import channels_last
from underpaint.models.vq import VQModel
from underpaint.training.history import RecipeInputs
from underpaint.training.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.training.pictures import Pictures, to_pixels
from underpaint.training.precision import autocast
from underpaint.training.sampler_losses import PatchCritic, SamplerLosses, draw_softly, duel, perceptual_distance

LOSSES: Final[Mapping[str, SamplerLosses]] = {
    "ce": SamplerLosses(),
    "pixel": SamplerLosses(pixels=10.0, perceptual=1.0),
    "gan": SamplerLosses(pixels=10.0, perceptual=1.0, commitment=0.1, adversarial=0.05),
}
"""The stages of the paper's ablation, by name."""
_REFINING: Final = LoopSettings(
    steps=200, learning_rate=5e-4, matrix_rate=5e-3, warmup_steps=20, ema_decay=0.98, validate_every=100
)
LOOPS: Final[Mapping[str, LoopSettings]] = {
    "ce": LoopSettings(steps=700, learning_rate=2e-3, warmup_steps=30, ema_decay=0.98, validate_every=350),
    "pixel": _REFINING,
    "gan": _REFINING,
}


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """Batch sizes: `batch` scenes for the token loss; the first `drawn` of them are also decoded."""

    batch: int = 48
    drawn: int = 4
    scenes: int = 20000
    validation_scenes: int = 500
    validated: int = 32


def settings_for(side: int, cells: int) -> SamplerSettings:
    """Settings for larger pictures, with as many cells and decoded pixels per step as 128 px of 16 by 16 codes."""
    usual = SamplerSettings()
    return replace(usual, batch=max(1, usual.batch * 16**2 // cells), drawn=max(1, usual.drawn * 128**2 // side**2))


class PairedCodes(NamedTuple):
    """Codes int16 of the same scenes at two resolutions: `low` [scenes, low cells], `high` [scenes, high cells]."""

    low: NDArray[np.int16]
    high: NDArray[np.int16]


class PairedScenes(NamedTuple):
    """The training data of the recipes between two square `grids`.

    Attributes:
        data: Codes from `tokenizer` of the training scenes; row i is scene i of the split in `pictures`.
        validation: Codes of seen scenes, likewise.
        tokenizer: The tokenizer's checkpoint.
        pictures: The pictures of the scenes.
        grids: The two grids.
    """

    data: PairedCodes
    validation: PairedCodes
    tokenizer: Path
    pictures: Pictures
    grids: ResolutionMap


def check_pairs(scenes: PairedScenes, ratio: int) -> None:
    """Raise ValueError unless codes fill the grids, the grids are square, and `ratio` is the ratio of the grids."""
    data, grids = scenes.data, scenes.grids
    expected_shapes = [(len(data.low), grid.cells) for grid in (grids.low, grids.high)]
    if [part.shape for part in data] != expected_shapes or ratio != grids.ratio or grids.low.height != grids.low.width:
        raise ValueError(
            f"sampler: expected as many rows of codes on square grids of {grids.low.cells} and {grids.high.cells} "
            f"cells and ratio {grids.ratio}, got {data.low.shape}, {data.high.shape} and {ratio}"
        )


class Pupil(nn.Module):
    """The trained modules of a run: a network, and optionally the critic that it competes with."""

    def __init__(self, network: nn.Module, critic: PatchCritic | None = None) -> None:
        super().__init__()
        self.network = network
        self.critic = critic


def _square(codes: NDArray[np.int16], place: torch.device) -> Tensor:
    side = int(codes.shape[1] ** 0.5)
    return torch.from_numpy(codes.astype(np.int64)).reshape(-1, side, side).to(place)


class _Recipe:
    def __init__(
        self,
        pupil: Pupil,
        vq: VQModel,
        scenes: PairedScenes,
        losses: SamplerLosses,
        settings: SamplerSettings,
        direction: Direction,
        seed: int,
    ) -> None:
        self.pupil, self.pictures = pupil, scenes.pictures
        self.losses, self.settings, self.seed = losses, settings, seed
        self.vq = channels_last(vq.requires_grad_(False))
        self.place = next(pupil.parameters()).device
        up = direction == "up"
        pairs = (scenes.data, scenes.validation)
        self.data, self.validation = ((p.low, p.high) if up else (p.high, p.low) for p in pairs)
        self.side = int(self.data[1].shape[1] ** 0.5) * vq.config.stride

    def loss(self, step: int) -> Loss:
        random = np.random.default_rng([self.seed, step])
        rows = random.integers(len(self.data[0]), size=self.settings.batch)
        inputs, labels = (_square(codes[rows], self.place) for codes in self.data)
        with autocast(self.place):
            logits = self.pupil.network(inputs)
        cross = functional.cross_entropy(logits.flatten(0, 2).float(), labels.flatten())
        figures: dict[str, float | Tensor] = {
            "ce": cross.detach(),
            "accuracy": (logits.detach().argmax(-1) == labels).float().mean(),
        }
        value = self.losses.tokens * cross
        if self.losses.through_pictures:
            value = value + self.picture_loss(logits[: self.settings.drawn], rows[: self.settings.drawn], figures)
        return Loss(value, figures)

    def picture_loss(self, logits: Tensor, rows: NDArray[np.int64], figures: dict[str, float | Tensor]) -> Tensor:
        """Return the loss terms that need decoded pictures of `logits`; `rows` are their scenes."""
        losses = self.losses
        real = to_pixels(self.pictures(rows.tolist(), self.side, "train"), self.place)
        with autocast(self.place):
            decoding = draw_softly(self.vq, logits)
            near = perceptual_distance(self.vq, decoding.pixels, real) if losses.perceptual else real.new_zeros(())
        error = (decoding.pixels.float() - real).square().mean()
        figures |= {"squared": error.detach(), "perceptual": near.detach(), "commitment": decoding.commitment.detach()}
        value = losses.pixels * error + losses.perceptual * near + losses.commitment * decoding.commitment
        if self.pupil.critic is not None:
            fooled, judged = duel(self.pupil.critic, decoding.pixels.float(), real)
            figures |= {"critic": judged.detach()}
            value = value + losses.adversarial * fooled + judged
        return value

    def validate(self) -> dict[str, float]:
        """Token accuracy, cross-entropy and PSNR (dB, against the scenes) on scenes that are not used in training."""
        right = cross = squared = 0.0
        count = min(self.settings.validated, len(self.validation[0]))
        for start in range(0, count, 8):
            rows = range(start, min(count, start + 8))
            inputs, labels = (_square(codes[rows.start : rows.stop], self.place) for codes in self.validation)
            with autocast(self.place):
                logits = self.pupil.network(inputs)
                pixels = self.vq.decode_codes(logits.argmax(-1).flatten(1)).float().clamp(-1, 1)
            real = to_pixels(self.pictures(rows, self.side, "seen"), self.place)
            right += float((logits.argmax(-1) == labels).float().mean()) * len(rows)
            cross += float(functional.cross_entropy(logits.flatten(0, 2).float(), labels.flatten())) * len(rows)
            squared += float((pixels - real).square().mean()) * len(rows)
        return {
            "accuracy": right / count,
            "validation_ce": cross / count,
            "psnr": float(10 * np.log10(4 * count / squared)),
        }


def read_sampler_start(path: Path | None, config: SamplerConfig, tokenizer: Path) -> dict[str, Any] | None:
    """Read the checkpoint that a sampler starts from.

    Args:
        path: The checkpoint; None for none.
        config: Widths of the new sampler.
        tokenizer: Checkpoint of the new sampler's tokenizer.

    Returns:
        The checkpoint, or None.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: It is not a sampler, or it has other widths or codes of another tokenizer.
    """
    if path is None:
        return None
    saved = read(path, "sampler")
    before, now = asdict(build(SamplerConfig, saved["config"]["sampler"])), asdict(config)
    differing = [name for name in now if before[name] != now[name]]
    if differing:
        expected, actual = (", ".join(f"{name} {widths[name]}" for name in differing) for widths in (now, before))
        raise ValueError(
            f"{path}: expected a sampler of {expected} to start from, got one of {actual}; give --init-from the "
            "checkpoint of a run with the same widths, or train one with `underpaint train sampler`"
        )
    trained_for, codes = str(saved["config"].get("codebook")), codebook_name(load_vq(tokenizer))
    if trained_for != codes:
        raise ValueError(
            f"{path}: expected a sampler for the codebook {codes[:12]} of {tokenizer}, got one for {trained_for[:12]}; "
            f"train it again with `underpaint train sampler --direction {config.direction}`, or name its --tokenizer"
        )
    return saved


def train_sampler(
    out: Path,
    scenes: PairedScenes,
    config: SamplerConfig,
    *,
    losses: SamplerLosses = LOSSES["ce"],
    settings: SamplerSettings | None = None,
    loop: LoopSettings = LOOPS["ce"],
    init_from: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> TrainingResult:
    """Train a sampler into `out/checkpoint.pt` (kind "sampler"); continues an existing run.

    Raises ValueError if the codes do not fill the grids, or if the weights of `init_from` do not fit this sampler.
    """
    torch.manual_seed(seed)
    check_pairs(scenes, config.ratio)
    vq = load_vq(scenes.tokenizer).to(device)
    network = TokenSampler(config)
    network.start_from(vq.quantize.codebook)
    start = read_sampler_start(init_from, config, scenes.tokenizer)
    if init_from is not None:
        network.load_state_dict(load_sampler(init_from).state_dict())
    pupil = Pupil(network, PatchCritic() if losses.adversarial else None).to(device)
    settings = settings or SamplerSettings()
    recipe = _Recipe(pupil, vq, scenes, losses, settings, config.direction, seed)
    described: dict[str, Any] = {"kind": "sampler", "sampler": asdict(config), "losses": asdict(losses)}
    described |= {"low": list(scenes.grids.low), "high": list(scenes.grids.high), "codebook": codebook_name(vq)}
    inputs, title = (
        RecipeInputs({"seed": seed, "settings": asdict(settings)}, start and story(start)),
        f"sampler {config.direction}",
    )
    return train(pupil, recipe.loss, out, loop, described, validate=recipe.validate, inputs=inputs, title=title)
