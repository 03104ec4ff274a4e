"""Recipe of one drafter for several grids: of a target that serves all of them, and like it one network.

A drafter reads its target's features, which know the grid already; its rotary positions are the grid's. Steps take the
grids in turn, each with as many cells a batch, as the target's did (`models.train.shared_target`). Where it is given
drawings of the target (`models.train.drawn`), a share of each batch is of them.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from underpaint.models.checkpoints import read, target_of
from underpaint.models.train.drafter import Distillation, DrafterSettings, begun_drafter, held_back, mixed_batch
from underpaint.models.train.drawn import fingerprint
from underpaint.models.train.history import Given
from underpaint.models.train.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.models.train.shared_target import GridData, decoder_on_grid, on_grid, require_cells, require_grids
from underpaint.models.train.target import STRIDE, batch_of
from underpaint.models.train.tokens import TokenSet


def train_shared_drafter(
    out: Path,
    grids: Mapping[int, GridData],
    target: Path,
    *,
    settings: DrafterSettings | None = None,
    loop: LoopSettings,
    drawn: Mapping[int, TokenSet] | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> TrainingResult:
    """Train one drafter of a target of several grids into `out/checkpoint.pt` (kind "drafter", of the largest).

    Args:
        out: folder of the run; a run that is there is continued.
        grids: encoded scenes by the grid's side in cells.
        target: checkpoint of `train_shared_target` or `train_shared_guided`.
        settings: `batch` scenes of the largest grid, or as many of another as hold as many cells.
        loop: length and rates.
        drawn: what the target drew on each of `grids`, to mix into the batches; the first `validated` rows are kept
            for validation. None mixes nothing in.
        seed: of weights and batches.
        device: "cpu" or "cuda".

    Raises ValueError where codes do not fill their grid, scenes of a grid are not drawn, or too few, or the target was
    not trained on one of `grids`, FileNotFoundError where there is no target.
    """
    require_cells("drafter", grids)
    saved, sides = read(target, "target"), sorted(grids)
    require_grids(target, saved, sides)
    if drawn and not set(sides) <= set(drawn):
        raise ValueError(f"drafter: expected drawings on the grids {sides}, got those of {sorted(drawn)}")
    torch.manual_seed(seed)
    settings, place = settings or DrafterSettings(), torch.device(device)
    teacher = target_of(saved, target).eval()
    drawn_for = fingerprint(teacher)
    held = {side: held_back(scenes, settings.validated) for side, scenes in (drawn or {}).items()}
    learnt_from = {side: kept for side, (kept, _) in held.items()}
    validated = [("", side, one.validation) for side, one in grids.items()]
    validated += [("drawn_", side, kept) for side, (_, kept) in held.items()]
    teacher = on_grid(teacher.requires_grad_(False).to(place), sides[-1])
    drafter, _ = begun_drafter(teacher.decoder, None)
    drafter.to(place)
    views = {
        side: Distillation(on_grid(teacher, side), decoder_on_grid(drafter, side), settings, place) for side in sides
    }

    def loss(step: int) -> Loss:
        side = sides[step % len(sides)]
        random = np.random.default_rng([seed, step])
        size = settings.batch * sides[-1] ** 2 // side**2
        sized, data = replace(settings, batch=size), grids[side].data
        batch = (
            mixed_batch(data, learnt_from[side], sized, random)
            if learnt_from
            else batch_of(data, size, settings.condition_dropout, random)
        )
        value, figures = views[side].loss(batch, random)
        return Loss(value, {f"{name}_{side * STRIDE}": figure for name, figure in figures.items()})

    def validate() -> dict[str, float]:
        return {
            f"{name}top1_{depth + 1}_{side * STRIDE}": share
            for name, side, scenes in validated
            for depth, share in enumerate(views[side].shares_of(scenes))
        }

    described = {"kind": "drafter", "resolution": sides[-1] * STRIDE, "grids": sides}
    described |= {"decoder": asdict(drafter.config)}
    how = {"seed": seed, "settings": asdict(settings), "target": drawn_for}
    how |= {"drawn_scenes": {str(side): len(kept.codes) for side, kept in learnt_from.items()}}
    given = Given(how)
    return train(drafter, loss, out, loop, described, validate=validate, given=given, title="drafter, all grids")
