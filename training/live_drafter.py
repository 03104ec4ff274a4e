"""Recipe of a drafter for a live target: pictures that the target drew, and EAGLE's losses on their features.

The target draws the pictures by a lossless method, so that they are its own; it then supplies features and logits by
teacher forcing, batch by batch, so no features are stored. Losses and unrolling are those of `training.drafter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.artifacts.lock import held
from underpaint.artifacts.whole_file import replacing
from underpaint.models.checkpoints import load_whole
from underpaint.models.config import build
from underpaint.models.decoder import Decoder, StepOutput
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.live.drafter import LiveDrafterDecoder, check_target, new_drafter, with_ends
from underpaint.runtime.live.generate import AcceleratedModel
from underpaint.runtime.live.model import Ids, LiveModel, LiveModelError, target_fingerprint
from underpaint.training.drafter import DrafterSettings, agreement, drafter_loss, unroll
from underpaint.training.history import Given
from underpaint.training.loop import CHECKPOINT, LoopSettings, Loss, TrainingResult, train

DRAWN: Final = "drawn.npy"
KIND: Final = "live_drafter"
_SAVED_EVERY: Final = 8
"""Pictures between two writes of what is drawn."""


class DrafterCosts(NamedTuple):
    """What training a drafter takes, before it starts.

    Attributes:
        target_bytes: Of the target's weights.
        drafter_parameters: Weights that are learnt.
        drafter_bytes: Of these weights, their gradients, averages and the optimiser's moments, in float32.
        batch_bytes: Of the logits and features of a batch, over all passes: the larger part of what a step holds.
    """

    target_bytes: int
    drafter_parameters: int
    drafter_bytes: int
    batch_bytes: int


@dataclass(frozen=True, slots=True)
class DrawnPictures:
    """Prompts, and the codes [n, cells] that the target drew for them."""

    prompts: tuple[Ids, ...]
    codes: IntArray


def drafter_costs(live: LiveModel, settings: DrafterSettings) -> DrafterCosts:
    """Memory that training a drafter of this target takes."""
    config = live.decoder
    heads = config.heads * config.head_dim
    learnt = 2 * config.dim**2 + 4 * config.dim * heads + 3 * config.dim * config.hidden + 3 * config.dim
    target = sum(weight.numel() * weight.element_size() for weight in live.body.parameters())
    batch = settings.batch * config.cells * (config.vocab_size + 2 * config.dim) * 4 * (settings.passes + 1)
    return DrafterCosts(target, learnt, learnt * 4 * 5, batch)


def draw_pictures(
    fast: AcceleratedModel,
    prompts: Sequence[Ids],
    out: Path,
    *,
    params: SamplingParams | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> DrawnPictures:
    """Draw one picture for each prompt into `out/drawn.npy`; a stopped run goes on where it was.

    Args:
        fast: The target, by a lossless method.
        prompts: Ids of whole prompts.
        out: Folder of the run.
        params: Sampling; None takes what the target's authors publish.
        seed: Of the noise.
        progress: Called with the pictures drawn and wanted.

    Raises:
        ValueError: `out` holds drawings of another shape, or the method is not lossless.
    """
    live, path = fast.live, out / DRAWN
    params = params or live.sampling
    codes = np.full((len(prompts), live.grid.cells), -1, dtype=np.int32)
    with held(out):
        if path.is_file():
            codes = np.load(path)
            if codes.shape != (len(prompts), live.grid.cells):
                raise ValueError(
                    f"{path}: expected drawings {[len(prompts), live.grid.cells]}, got {list(codes.shape)}; give the "
                    "same prompts and grid, or another --out"
                )
        for index in np.flatnonzero(codes[:, 0] < 0).tolist():
            condition = fast.condition(prompts[index])
            codes[index] = fast.draw(condition, params, seed + index).drawing.tokens
            if progress is not None:
                progress(index + 1, len(prompts))
            if (index + 1) % _SAVED_EVERY == 0:
                _save(codes, path)
        _save(codes, path)
    return DrawnPictures(tuple(tuple(each) for each in prompts), codes.astype(np.int64))


def _save(codes: NDArray[np.int32], path: Path) -> None:
    with replacing(path) as file:
        np.save(file, codes)


@torch.no_grad()
def teach(live: LiveModel, prompts: Sequence[Ids], codes: IntArray) -> tuple[Tensor, Tensor]:
    """Logits [B, cells, V] and features [B, cells, D] of the target before each cell, by teacher forcing.

    Args:
        live: The target.
        prompts: B prompts, of any lengths; shorter ones are padded in front, and padding is hidden.
        codes: [B, cells].
    """
    device = next(live.body.parameters()).device
    longest = max(map(len, prompts))
    ids = torch.tensor([(0,) * (longest - len(row)) + tuple(row) for row in prompts], device=device)
    padding = torch.tensor([longest - len(row) for row in prompts], device=device)
    pieces, feeding = [live.embed_ids(ids)], [longest - 1]
    drawn = live.embed_codes(torch.as_tensor(codes, device=device))
    if live.eol_id is None:
        pieces.append(drawn[:, :-1])
        feeding = [longest - 1 + cell for cell in range(live.grid.cells)]
    else:
        width = live.grid.width
        ends = live.embed_ids(torch.full((len(prompts), 1), live.eol_id, device=device))
        for row in range(live.grid.height):
            pieces += [drawn[:, row * width : (row + 1) * width], ends]
        cells = np.arange(live.grid.cells)
        feeding = (longest - 1 + cells + cells // width).tolist()
    embeds = torch.cat(pieces, dim=1)
    count = embeds.shape[1]
    places = torch.arange(count, device=device)
    seen = (places[None, :] <= places[:, None])[None] & (places >= padding[:, None])[:, None]
    seen |= torch.eye(count, dtype=torch.bool, device=device)
    floor = max(float(MASKED_SCORE), float(torch.finfo(embeds.dtype).min))
    mask = torch.zeros(seen.shape, dtype=embeds.dtype, device=device).masked_fill(~seen, floor)
    positions = live.position_ids((places - padding[:, None]).clamp(min=0), longest - padding[:, None])
    hidden = live.body(
        inputs_embeds=embeds, attention_mask=mask[:, None], position_ids=positions, use_cache=False
    ).last_hidden_state[:, feeding]
    return live.head(hidden).float(), hidden.float()


def train_live_drafter(
    live: LiveModel,
    drawn: DrawnPictures,
    out: Path,
    *,
    settings: DrafterSettings | None = None,
    loop: LoopSettings,
    seed: int = 0,
) -> TrainingResult:
    """Train a drafter of a live target into `out/checkpoint.pt`; a run that is there is continued.

    Args:
        live: The target; its weights are not changed.
        drawn: Pictures that it drew; the first `settings.validated` are kept for validation.
        out: Folder of the run.
        settings: Batch, passes and weights of the loss. `condition_dropout` is the share of rows that get the second
            row's prompt, which guidance drafts with too.
        loop: Length and rates.
        seed: Of weights and batches.

    Returns:
        How the run ended; its validation holds "top1_K", how often the drafter's first choice K tokens past the root is
        the target's, on pictures that are kept apart.

    Raises:
        ValueError: Fewer pictures than are kept for validation, or a checkpoint of another run in `out`.
    """
    settings = settings or DrafterSettings()
    kept = settings.validated
    if len(drawn.codes) <= kept:
        raise ValueError(
            f"pictures: expected more than the {kept} kept for validation, got {len(drawn.codes)}; draw more"
        )
    torch.manual_seed(seed)
    drafter = new_drafter(live)

    def outputs_of(
        rows: IntArray, random: np.random.Generator | None, passes: int
    ) -> tuple[list[StepOutput], Tensor, Tensor]:
        prompts = [drawn.prompts[row] for row in rows]
        if random is not None and live.uncond is not None:
            dropped = random.random(len(rows)) < settings.condition_dropout
            prompts = [live.uncond(ids) if drop else ids for ids, drop in zip(prompts, dropped, strict=True)]
        codes = drawn.codes[rows]
        logits, features = teach(live, prompts, codes)
        seen = features
        if random is not None:
            generator = torch.Generator(device=features.device).manual_seed(int(random.integers(2**62)))
            noise = 2 * torch.rand(features.shape, generator=generator, device=features.device) - 1
            seen = features + settings.feature_noise * noise
        tokens = torch.as_tensor(codes, device=features.device)
        return unroll(drafter, seen[:, :-1], tokens[:, :-1], passes), logits, features

    def loss(step: int) -> Loss:
        random = np.random.default_rng([seed, step])
        rows = random.integers(kept, len(drawn.codes), settings.batch)
        outputs, logits, features = outputs_of(rows, random, settings.passes)
        shares = agreement([StepOutput(o.logits.detach(), o.features, [], []) for o in outputs], logits)
        figures = {f"top1_{depth + 1}": share for depth, share in enumerate(shares)}
        return Loss(drafter_loss(outputs, logits, features, settings), figures)

    def validate() -> dict[str, float]:
        parts = np.array_split(np.arange(kept), -(-kept // settings.batch))
        shares = [agreement(*outputs_of(rows, None, settings.validated_passes)[:2]) for rows in parts]
        weights = [len(rows) for rows in parts]
        means = np.average(np.array(shares), axis=0, weights=weights)
        return {f"top1_{depth + 1}": float(share) for depth, share in enumerate(means)}

    described = {"kind": KIND, "decoder": asdict(drafter.config), "target": target_fingerprint(live)}
    how = {"seed": seed, "settings": asdict(settings), "pictures": len(drawn.codes)}
    return train(drafter, loss, out, loop, described, validate=validate, given=Given(how), title="drafter, live target")


def load_live_drafter(live: LiveModel, path: Path) -> EngineDrafter:
    """The drafter in `path` (a checkpoint or the folder of a run), ready for `underpaint.accelerate(drafter=...)`.

    Raises:
        LiveModelError: It was trained for another target, or is no such drafter.
        ValueError: A damaged checkpoint.
    """
    path = path / CHECKPOINT if path.is_dir() else path
    saved = load_whole(path)
    config = saved.get("config", {})
    if config.get("kind") != KIND:
        raise LiveModelError(
            f"{path}: expected a drafter of a live target (kind {KIND}), got {config.get('kind')!r}; train one for it"
        )
    check_target(live, str(config["target"]), str(path))
    drafter: Decoder = Decoder(build(DecoderConfig, config["decoder"]))
    drafter = with_ends(drafter, live)
    drafter.load_state_dict(saved["model"])
    return EngineDrafter(LiveDrafterDecoder(drafter), live.sampling)
