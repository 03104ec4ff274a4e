"""Recipe that bakes guidance into a target: its conditional distribution becomes what the guidance pair would give.

Classifier-free guidance runs two rows, with and without the condition, and mixes their logits. A student that starts
as the target learns the mixed distribution as its own conditional distribution, after the first stage of arXiv
2210.03142 (there for diffusion models): from then on one row draws what two rows drew. Rows without a condition are
kept as they were, so a pair can still be run for more guidance on top.
"""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from underpaint.models.checkpoints import config_caption_dim, decoder_config, read, story, target_of
from underpaint.models.sample import mix_pair
from underpaint.models.text import CaptionedTarget
from underpaint.models.train.history import Given
from underpaint.models.train.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.models.train.precision import autocast
from underpaint.models.train.target import SETTINGS, TargetSettings, batch_of
from underpaint.models.train.tokens import TokenSet
from underpaint.zoo.prompts import PAD_WORD

LOOPS = {
    64: LoopSettings(
        steps=60, learning_rate=3e-4, matrix_rate=6e-3, warmup_steps=10, ema_decay=0.98, validate_every=100
    ),
    128: LoopSettings(
        steps=390, learning_rate=3e-4, matrix_rate=6e-3, warmup_steps=10, ema_decay=0.98, validate_every=100
    ),
    256: LoopSettings(  # never run in full
        steps=390, learning_rate=3e-4, matrix_rate=6e-3, warmup_steps=10, ema_decay=0.98, validate_every=100
    ),
}


@torch.no_grad()
def guided_distribution(teacher: CaptionedTarget, codes: Tensor, words: Tensor, guidance: float) -> Tensor:
    """The log-distribution [B, cells, V] under guidance: log softmax(uncond + guidance * (cond - uncond)).

    codes int64 [B, cells], words int64 [B, 8]. A row of pads has no condition, and keeps its distribution.
    """
    both = torch.cat([words, torch.full_like(words, PAD_WORD)])
    with autocast(codes.device):
        logits, _ = teacher(torch.cat([codes, codes]), both)
    return functional.log_softmax(mix_pair(logits.float(), guidance), dim=-1)


def divergence(student: CaptionedTarget, codes: Tensor, words: Tensor, wanted: Tensor) -> Tensor:
    """KL(wanted || student) in nats a token, `wanted` [B, cells, V] a log-distribution."""
    with autocast(codes.device):
        logits, _ = student(codes, words)
    found = functional.log_softmax(logits.float(), dim=-1)
    total = functional.kl_div(found.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)
    return total


def train_guided(
    out: Path,
    data: TokenSet,
    validation: TokenSet,
    teacher_path: Path,
    resolution: int,
    guidance: float,
    *,
    settings: TargetSettings | None = None,
    loop: LoopSettings | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> TrainingResult:
    """Train a guided target into `out/checkpoint.pt` (kind "target"), continuing what is there.

    Raises ValueError on a guidance that mixes nothing (1 or less), or codes that do not fit the teacher's grid.
    """
    if not guidance > 1.0:
        raise ValueError(f"guidance: expected more than 1 (1 is the target as it is), got {guidance}")
    torch.manual_seed(seed)
    held = read(teacher_path, "target")
    config = decoder_config(held["config"])
    if data.codes.shape[1] != config.cells:
        raise ValueError(f"the target has {config.cells} cells, the token set {data.codes.shape[1]}")
    settings = settings or SETTINGS[resolution]
    teacher, student = target_of(held).to(device), target_of(held).to(device)
    teacher.eval().requires_grad_(False)
    place = torch.device(device)

    def loss(step: int) -> Loss:
        random = np.random.default_rng([seed, step])
        codes, words = (part.to(place) for part in batch_of(data, settings.batch, settings.condition_dropout, random))
        return Loss(divergence(student, codes, words, guided_distribution(teacher, codes, words, guidance)), {})

    def validate() -> dict[str, float]:
        total, size = 0.0, min(settings.validated, len(validation.codes))
        for start in range(0, size, settings.batch):
            rows = slice(start, min(size, start + settings.batch))
            codes = torch.from_numpy(validation.codes[rows].astype(np.int64)).to(place)
            words = torch.from_numpy(validation.words[rows]).to(place)
            wanted = guided_distribution(teacher, codes, words, guidance)
            total += float(divergence(student, codes, words, wanted)) * len(codes)
        return {"validation_kl": total / size}

    described = {"kind": "target", "resolution": resolution, "words": held["config"]["words"]}
    described |= {"caption_dim": config_caption_dim(held["config"]), "decoder": asdict(config), "guidance": guidance}
    given = Given({"seed": seed, "settings": asdict(settings), "guidance": guidance}, story(held))
    own, title = loop or LOOPS[resolution], f"guided target {resolution}"
    return train(student, loss, out, own, described, validate=validate, given=given, title=title)
