"""Trains a drafter by distillation from a frozen target (see `training.distillation`) on encoded scenes.

A share of every batch can be sequences that the target drew itself (`training.drawn`). The drafter continues such
sequences during decoding, while the target was trained on encoded scenes.

The target supports several grids, and so does its drafter: its input features depend on the grid already, and it uses
the grid's rotary positions. Steps cycle through the grids with the same number of cells per batch, as for the target.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from underpaint.models.checkpoints import read, target_of
from underpaint.models.decoder import Decoder
from underpaint.models.text import CaptionedTarget, new_drafter
from underpaint.training.distillation import Distillation, DrafterSettings, Taught
from underpaint.training.drawn import fingerprint
from underpaint.training.grids import (
    STRIDE,
    GridData,
    at_once,
    batch_of,
    decoder_on_grid,
    on_grid,
    require_cells,
    require_grids,
)
from underpaint.training.history import RecipeInputs
from underpaint.training.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.training.precision import autocast
from underpaint.training.tokens import TokenSet


@torch.no_grad()
def taught_by(target: CaptionedTarget, codes: Tensor, word_ids: Tensor, place: torch.device) -> Taught:
    """Run a captioned target on codes int64 [B, cells] with word ids int64 [B, prefix], for distillation."""
    codes, word_ids = codes.to(place), word_ids.to(place)
    with autocast(place):
        logits, features = target(codes, word_ids)
    features = features.float()
    return Taught(codes[:, :-1], features[:, :-1], logits, features)


def taught_scenes(target: CaptionedTarget, scenes: TokenSet, count: int, place: torch.device) -> Iterator[Taught]:
    """Yield `taught_by` for the first `count` scenes, several at once."""
    together = at_once(scenes, 16)
    for start in range(0, min(count, len(scenes.codes)), together):
        codes = torch.from_numpy(scenes.codes[start : start + together].astype(np.int64))
        yield taught_by(target, codes, torch.from_numpy(scenes.words[start : start + together]), place)


def begun_drafter(target: Decoder) -> Decoder:
    """Create a new drafter of `target` that starts with its target's last norm."""
    drafter = new_drafter(target)
    if drafter.norm is not None and target.norm is not None:
        drafter.norm.load_state_dict(target.norm.state_dict())
    return drafter


def mixed_batch(
    data: TokenSet, drawn: TokenSet, settings: DrafterSettings, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return a batch like that of `batch_of`, with `drawn_share` of its rows (on average) from `drawn`."""
    drawn_size = int(settings.drawn_share * settings.batch + random.random())
    parts = [
        batch_of(rows, size, settings.condition_dropout, random)
        for rows, size in ((data, settings.batch - drawn_size), (drawn, drawn_size))
    ]
    return torch.cat([codes for codes, _ in parts]), torch.cat([words for _, words in parts])


def split_validation(drawn: TokenSet, validated: int) -> tuple[TokenSet, TokenSet]:
    """Split drawings into training rows and the first `validated` rows, which are only for validation."""
    if len(drawn.codes) <= validated:
        raise ValueError(f"{len(drawn.codes)} drawn scenes: expected more than the {validated} kept for validation")
    codes, words = drawn
    return TokenSet(codes[validated:], words[validated:]), TokenSet(codes[:validated], words[:validated])


def train_drafter(
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
    """Train one drafter of a target of several grids into `out/checkpoint.pt` (kind "drafter", of the largest grid).

    Args:
        out: Folder of the run; an existing run is continued.
        grids: Encoded scenes by the grid's side in cells.
        target: Checkpoint of `train_target` or `train_guided`.
        settings: `batch` is the number of scenes of the largest grid; other grids use as many cells.
        loop: Length and learning rates.
        drawn: Drawings of the target on each of `grids`, to mix into the batches; the first `validated` rows are kept
            for validation. None mixes in nothing.
        seed: Seed of weights and batches.
        device: "cpu" or "cuda".

    Raises ValueError if codes do not fill their grid, drawings of a grid are missing or too few, or the target was not
    trained on one of `grids`; FileNotFoundError if there is no target.
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
    splits = {side: split_validation(scenes, settings.validated) for side, scenes in (drawn or {}).items()}
    learnt_from = {side: token_set for side, (token_set, _) in splits.items()}
    validated = [("", side, one.validation) for side, one in grids.items()]
    validated += [("drawn_", side, token_set) for side, (_, token_set) in splits.items()]
    teacher = on_grid(teacher.requires_grad_(False).to(place), sides[-1])
    drafter = begun_drafter(teacher.decoder).to(place)
    views = {side: Distillation(decoder_on_grid(drafter, side), settings, place) for side in sides}
    teachers = {side: on_grid(teacher, side) for side in sides}

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
        value, figures = views[side].loss(taught_by(teachers[side], *batch, place), random)
        return Loss(value, {f"{name}_{side * STRIDE}": figure for name, figure in figures.items()})

    def validate() -> dict[str, float]:
        return {
            f"{name}{figure}_{side * STRIDE}": share
            for name, side, scenes in validated
            for figure, share in views[side]
            .validated(taught_scenes(teachers[side], scenes, settings.validated, place))
            .items()
        }

    described = {"kind": "drafter", "resolution": sides[-1] * STRIDE, "grids": sides}
    described |= {"decoder": asdict(drafter.config)}
    how = {"seed": seed, "settings": asdict(settings), "target": drawn_for}
    how |= {"drawn_scenes": {str(side): len(token_set.codes) for side, token_set in learnt_from.items()}}
    inputs = RecipeInputs(how)
    return train(drafter, loss, out, loop, described, validate=validate, inputs=inputs, title="drafter, all grids")
