"""Recipe of the super-resolution network: pictures drawn from codes at 64 px to the same scenes at 128 px.

It learns from what it will see, decoded pictures, so it also mends what the tokenizer does to small ones.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from algos.spatial.resolution import ResolutionMap
from models.checkpoints import load_vq
from models.data.scenes import Split
from models.sampler import SuperResolution, SuperResolutionConfig, codebook_name
from models.train.loop import LoopSettings, Loss, Outcome, train
from models.train.pictures import Pictures, to_pixels
from models.train.sampler import Pupil

LOOP: Final = LoopSettings(
    steps=350, learning_rate=2e-3, matrix_rate=0.01, warmup_steps=20, ema_decay=0.98, validate_every=175
)


@dataclass(frozen=True, slots=True)
class SuperResolutionSettings:
    """Scenes a step, and scenes to validate on."""

    batch: int = 12
    validated: int = 32


def train_super_resolution(
    out: Path,
    data: NDArray[np.int16],
    validation: NDArray[np.int16],
    tokenizer: Path,
    pictures: Pictures,
    grids: ResolutionMap,
    *,
    config: SuperResolutionConfig | None = None,
    settings: SuperResolutionSettings | None = None,
    loop: LoopSettings = LOOP,
    seed: int = 0,
    device: str = "cpu",
) -> Outcome:
    """Train the network into `out/checkpoint.pt` (kind "superres"), continuing what is there.

    data, validation: codes [scenes, low cells] of train and of seen scenes by `tokenizer`.
    Raises ValueError where the codes do not fill the low grid.
    """
    torch.manual_seed(seed)
    config, settings = config or SuperResolutionConfig(grids.ratio), settings or SuperResolutionSettings()
    if data.shape[1] != grids.low.cells or config.ratio != grids.ratio or grids.low.height != grids.low.width:
        raise ValueError(
            f"super-resolution: expected codes of {grids.low.cells} cells on a square grid and ratio {grids.ratio}, "
            f"got {data.shape} and {config.ratio}"
        )
    vq = load_vq(tokenizer).requires_grad_(False).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    pupil = Pupil(SuperResolution(config)).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    place, side = torch.device(device), grids.high.height * vq.config.stride

    def enlarged(codes: NDArray[np.int16], rows: NDArray[np.int64], split: Split) -> tuple[Tensor, Tensor]:
        """Found and wanted pixels."""
        given = torch.from_numpy(codes[rows].astype(np.int64)).to(place)
        with torch.autocast(place.type, torch.bfloat16):
            with torch.no_grad():
                small = vq.decode_codes(given).clamp(-1, 1)
            found = pupil.network(small.float())
        return found.float(), to_pixels(pictures(rows.tolist(), side, split), place)

    def loss(step: int) -> Loss:
        random = np.random.default_rng([seed, step])
        found, wanted = enlarged(data, random.integers(len(data), size=settings.batch), "train")
        error = found - wanted
        squared = error.square().mean()
        return Loss(error.abs().mean() + 2 * squared, {"psnr": 10 * torch.log10(4 / squared.detach())})

    def validate() -> dict[str, float]:
        squared, count = 0.0, min(settings.validated, len(validation))
        for start in range(0, count, 8):
            rows = np.arange(start, min(count, start + 8))
            found, wanted = enlarged(validation, rows, "seen")
            squared += float((found.clamp(-1, 1) - wanted).square().mean()) * len(rows)
        return {"psnr": float(10 * np.log10(4 * count / squared))}

    described: dict[str, Any] = {"kind": "superres", "superres": asdict(config), "codebook": codebook_name(vq)}
    described |= {"low": list(grids.low), "high": list(grids.high)}
    return train(pupil, loss, out, loop, described, validate=validate, title="super-resolution")
