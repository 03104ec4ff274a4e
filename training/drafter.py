"""Recipe of the drafter: EAGLE's feature prediction with the unrolling of draft time (arXiv 2401.15077, 2408.15766).

The frozen target supplies features and logits by teacher forcing. Pass 1 reads the target's features; pass k reads
the predictions of pass k - 1, under the mask of a draft that left the committed tokens k - 1 positions ago, so
deep drafts are trained on what they will see.

A share of every batch may be sequences that the target drew itself (`training.drawn`): those are what it is
followed on when it decodes, where encoded scenes are what it was trained on.

The target serves several grids, and so does its drafter: it reads features that know the grid already, and its
rotary positions are the grid's. Steps take the grids in turn, each with as many cells a batch, as the target's did.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.models.checkpoints import read, target_of
from underpaint.models.decoder import Decoder, StepOutput, causal_bias
from underpaint.models.text import CaptionedTarget, new_drafter
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
from underpaint.training.history import Given
from underpaint.training.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.training.precision import autocast
from underpaint.training.tokens import TokenSet


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """Batch, unrolling and weights of a drafter's loss.

    `drawn_share` of a batch's rows are the target's own drawings, where a run is given any.
    """

    batch: int = 16
    passes: int = 3
    condition_dropout: float = 0.1
    feature_noise: float = 0.1
    logit_weight: float = 1.0
    feature_weight: float = 0.5
    pass_decay: float = 0.8
    validated: int = 64
    validated_passes: int = 4
    drawn_share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.drawn_share <= 1:
            raise ValueError(f"drawn_share: expected a share from 0 to 1, got {self.drawn_share}")


def unroll_bias(length: int, depth: int) -> Tensor:
    """What pass `depth` (from 1) may see of the passes before it: [length, (depth - 1) * length].

    Of pass 1, read from the target's features: the committed positions, `depth - 1` and more back. Of each later
    pass: the one node on the way from the last committed position to this one.
    """
    ahead = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    blocks = []
    for earlier in range(1, depth):
        back = depth - earlier
        seen = ahead >= back if earlier == 1 else ahead == back
        blocks.append(torch.where(seen, 0.0, float(MASKED_SCORE)))
    return torch.cat(blocks, dim=1) if blocks else torch.zeros(length, 0)


def unroll(drafter: Decoder, features: Tensor, tokens: Tensor, passes: int) -> list[StepOutput]:
    """Run `passes` passes over whole sequences.

    Args:
        drafter: with its target's codes and head.
        features: [B, T, D], the target's feature of the token before each of the T tokens.
        tokens: int64 [B, T], of cells 0 to T - 1.
        passes: depth of the draft that is imitated.

    Returns:
        One output a pass; position j predicts the token of cell j + 1, and is meaningful from j = pass - 1 on.
    """
    length = tokens.shape[1]
    cells = torch.arange(length, device=tokens.device)
    diagonal = torch.where(torch.eye(length, dtype=torch.bool), 0.0, float(MASKED_SCORE))
    keys, values = drafter.empty_cache(tokens.shape[0]), drafter.empty_cache(tokens.shape[0])
    outputs: list[StepOutput] = []
    for depth in range(1, passes + 1):
        among = causal_bias(length) if depth == 1 else diagonal
        bias = torch.cat([unroll_bias(length, depth), among], dim=1).to(tokens.device)
        out = drafter.step(tokens, cells, bias, keys, values, features=features)
        outputs.append(out)
        keys = [torch.cat([held.to(new.dtype), new], dim=2) for held, new in zip(keys, out.keys, strict=True)]
        values = [torch.cat([held.to(new.dtype), new], dim=2) for held, new in zip(values, out.values, strict=True)]
        features = torch.cat([torch.zeros_like(out.features[:, :1]), out.features[:, :-1]], dim=1)
    return outputs


@torch.no_grad()
def _taught(target: CaptionedTarget, codes: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and features [B, cells, ...] of the frozen target in teacher forcing."""
    logits, features = target(codes, word_ids)
    return logits, features.float()


def drafter_loss(outputs: Sequence[StepOutput], logits: Tensor, features: Tensor, settings: DrafterSettings) -> Tensor:
    """Soft cross-entropy to the target's distribution plus SmoothL1 to its features, over the passes.

    `logits` and `features` are the target's, [B, T + 1, ...]; a drafter's position j is compared with j + 1.
    """
    distribution = torch.softmax(logits[:, 1:], dim=-1)
    total = logits.new_zeros(())
    for depth, out in enumerate(outputs):
        found = torch.log_softmax(out.logits[:, depth:], dim=-1)
        cross = -(distribution[:, depth:] * found).sum(dim=-1).mean()
        error = functional.smooth_l1_loss(out.features[:, depth:].float(), features[:, 1 + depth :])
        total = total + settings.pass_decay**depth * (settings.logit_weight * cross + settings.feature_weight * error)
    return total


def agreement(outputs: Sequence[StepOutput], logits: Tensor) -> list[float]:
    """Share of positions, per depth, at which the drafter's first choice is the target's."""
    wanted = logits[:, 1:].argmax(dim=-1)
    return [
        float((out.logits[:, depth:].argmax(dim=-1) == wanted[:, depth:]).float().mean())
        for depth, out in enumerate(outputs)
    ]


@dataclass(frozen=True, slots=True)
class Distillation:
    """What a drafter learns from its frozen target, both on one grid: losses of batches, and how often they agree.

    settings: passes and weights of the loss. place: where both modules lie.
    """

    teacher: CaptionedTarget
    drafter: Decoder
    settings: DrafterSettings
    place: torch.device

    def loss(self, batch: tuple[Tensor, Tensor], random: np.random.Generator) -> Loss:
        """The loss of a batch of `batch_of`, with the agreement of every pass; `random` draws the features' noise."""
        settings, place = self.settings, self.place
        codes, word_ids = (part.to(place) for part in batch)
        generator = torch.Generator(device=place).manual_seed(int(random.integers(2**62)))
        with autocast(place):
            logits, features = _taught(self.teacher, codes, word_ids)
            noise = 2 * torch.rand(features.shape, generator=generator, device=place) - 1
            seen = (features + settings.feature_noise * noise)[:, :-1]
            outputs = unroll(self.drafter, seen, codes[:, :-1], settings.passes)
        value = drafter_loss(outputs, logits, features, settings)
        shares = agreement([StepOutput(o.logits.detach(), o.features, [], []) for o in outputs], logits)
        return Loss(value, {f"top1_{depth + 1}": share for depth, share in enumerate(shares)})

    def shares_of(self, scenes: TokenSet) -> list[float]:
        """`agreement` over the first `validated` scenes, for each of `validated_passes` passes."""
        settings, place = self.settings, self.place
        sums = np.zeros(settings.validated_passes)
        together = at_once(scenes, 16)
        starts = range(0, min(settings.validated, len(scenes.codes)), together)
        for start in starts:
            codes = torch.from_numpy(scenes.codes[start : start + together].astype(np.int64)).to(place)
            word_ids = torch.from_numpy(scenes.words[start : start + together]).to(place)
            with autocast(place):
                logits, features = _taught(self.teacher, codes, word_ids)
                outputs = unroll(self.drafter, features[:, :-1], codes[:, :-1], settings.validated_passes)
            sums += agreement(outputs, logits)
        return [float(share / len(starts)) for share in sums]


def begun_drafter(target: Decoder) -> Decoder:
    """A new drafter of `target`, which starts with its target's last norm."""
    drafter = new_drafter(target)
    if drafter.norm is not None and target.norm is not None:
        drafter.norm.load_state_dict(target.norm.state_dict())
    return drafter


def mixed_batch(
    data: TokenSet, drawn: TokenSet, settings: DrafterSettings, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """A batch as `batch_of` gives one, `drawn_share` of it from `drawn`, on average where that is a broken number."""
    own = int(settings.drawn_share * settings.batch + random.random())
    parts = [
        batch_of(rows, size, settings.condition_dropout, random)
        for rows, size in ((data, settings.batch - own), (drawn, own))
    ]
    return torch.cat([codes for codes, _ in parts]), torch.cat([words for _, words in parts])


def held_back(drawn: TokenSet, validated: int) -> tuple[TokenSet, TokenSet]:
    """The rows to learn from, and the first ones, which are only validated on."""
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
    """Train one drafter of a target of several grids into `out/checkpoint.pt` (kind "drafter", of the largest).

    Args:
        out: folder of the run; a run that is there is continued.
        grids: encoded scenes by the grid's side in cells.
        target: checkpoint of `train_target` or `train_guided`.
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
    drafter = begun_drafter(teacher.decoder).to(place)
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
