"""Recipe that bakes guidance into a target: one row then draws what classifier-free guidance draws with two.

Classifier-free guidance runs two rows, with and without the condition, and mixes their logits. A student that starts
as a copy of the target learns the mixed distribution as its own conditional distribution, as in the first stage of
arXiv 2210.03142 (there for diffusion models). Its unconditional rows keep their distribution, so that a pair can still
add more guidance. Codes and head are not trained: they are all that a drafter shares with its target, so one file of a
drafter works with both targets.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from underpaint.models.checkpoints import read, story, target_of
from underpaint.models.sample import mix_pair
from underpaint.models.text import CaptionedTarget
from underpaint.training.drawn import fingerprint
from underpaint.training.grids import STRIDE, GridData, at_once, batch_at, on_grid, require_cells, require_grids
from underpaint.training.history import RecipeInputs, refuse_other
from underpaint.training.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.training.precision import autocast
from underpaint.training.target import TargetSettings
from underpaint.training.tokens import TokenSet
from underpaint.zoo.textured_prompts import PAD_WORD

LOOP: Final = LoopSettings(
    steps=300, learning_rate=3e-4, matrix_rate=6e-3, warmup_steps=10, ema_decay=0.98, validate_every=100
)


@torch.no_grad()
def guided_distribution(teacher: CaptionedTarget, codes: Tensor, words: Tensor, guidance: float) -> Tensor:
    """Return the guided log-distribution [B, cells, V]: log softmax(uncond + guidance * (cond - uncond)).

    codes int64 [B, cells], words int64 [B, prefix]. A row of pads has no condition, so it keeps its distribution.
    """
    both = torch.cat([words, torch.full_like(words, PAD_WORD)])
    with autocast(codes.device):
        logits, _ = teacher(torch.cat([codes, codes]), both)
    return functional.log_softmax(mix_pair(logits.float(), guidance), dim=-1)


def divergence(student: CaptionedTarget, codes: Tensor, words: Tensor, teacher_log_probs: Tensor) -> Tensor:
    """KL(teacher || student) in nats per token; `teacher_log_probs` [B, cells, V] is a log-distribution."""
    with autocast(codes.device):
        logits, _ = student(codes, words)
    log_probs = functional.log_softmax(logits.float(), dim=-1)
    total = functional.kl_div(
        log_probs.flatten(0, 1), teacher_log_probs.flatten(0, 1), reduction="batchmean", log_target=True
    )
    return total


def train_guided(
    out: Path,
    grids: Mapping[int, GridData],
    teacher: Path,
    guidance: float,
    *,
    settings: TargetSettings,
    loop: LoopSettings = LOOP,
    seed: int = 0,
    device: str = "cpu",
) -> TrainingResult:
    """Train a guided target of several grids into `out/checkpoint.pt` (kind "target"); continues an existing run.

    Args:
        out: Folder of the run.
        grids: Encoded scenes by the grid's side in cells.
        teacher: Checkpoint of `train_target`.
        guidance: Weight s of the pair u + s (c - u), above 1, that one row learns to draw.
        settings: `batch` is the number of scenes of the largest grid; other grids use as many cells.
        loop: Length and learning rates.
        seed: Seed of the batches.
        device: "cpu" or "cuda".

    Raises ValueError if guidance is 1 or less, codes do not fill their grid, the teacher was not trained on one of
    `grids`, or `out` has another run; FileNotFoundError if there is no teacher.
    """
    if not guidance > 1.0:
        raise ValueError(f"guidance: expected more than 1 (1 is the target as it is), got {guidance}")
    require_cells("guided target", grids)
    checkpoint, sides = read(teacher, "target"), sorted(grids)
    require_grids(teacher, checkpoint, sides)
    pair, student = (on_grid(target_of(checkpoint, teacher), sides[-1]) for _ in range(2))
    how = {"seed": seed, "settings": asdict(settings), "guidance": guidance, "target": fingerprint(pair)}
    inputs = RecipeInputs(how, story(checkpoint))
    refuse_other(out, inputs)
    torch.manual_seed(seed)
    place = torch.device(device)
    pair, student = pair.to(place).eval().requires_grad_(False), student.to(place)
    for part in (student.decoder.codes, student.decoder.head):
        part.requires_grad_(False)
    views = {side: (on_grid(pair, side), on_grid(student, side)) for side in sides}

    def divergence_of(
        side: int, data: TokenSet, rows: NDArray[np.int64], dropout: float, random: np.random.Generator
    ) -> Tensor:
        codes, words = (part.to(place) for part in batch_at(data, rows, dropout, random))
        before, after = views[side]
        return divergence(after, codes, words, guided_distribution(before, codes, words, guidance))

    def loss(step: int) -> Loss:
        side = sides[step % len(sides)]
        random = np.random.default_rng([seed, step])
        size = settings.batch * sides[-1] ** 2 // side**2
        data = grids[side].data
        rows = random.integers(len(data.codes), size=size)
        value = divergence_of(side, data, rows, settings.condition_dropout, random)
        return Loss(value, {f"kl_{side * STRIDE}": value.detach()})

    def validate() -> dict[str, float]:
        return {f"validation_kl_{side * STRIDE}": validated(side, one.validation) for side, one in grids.items()}

    def validated(side: int, data: TokenSet) -> float:
        total, size, together = 0.0, min(settings.validated, len(data.codes)), at_once(data, 32)
        for start in range(0, size, together):
            rows = np.arange(start, min(size, start + together))
            total += float(divergence_of(side, data, rows, 0.0, np.random.default_rng(0))) * len(rows)
        return total / size

    described = {**checkpoint["config"], "guidance": guidance, "grids": sides, "resolution": sides[-1] * STRIDE}
    described["decoder"] = asdict(student.decoder.config)
    title = "guided target, all grids"
    return train(student, loss, out, loop, described, validate=validate, inputs=inputs, title=title)
