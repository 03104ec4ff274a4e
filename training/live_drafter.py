"""Trains a drafter for a live target: on pictures that the target drew, with EAGLE's losses on their features.

The target draws the pictures by a lossless method, so they follow its own distribution. It then provides features and
logits by teacher forcing, batch by batch, so features are not stored. `training.distillation` has losses and unrolling.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.artifacts.files import replacing
from underpaint.artifacts.lock import folder_lock
from underpaint.artifacts.strict_json import read_object
from underpaint.models.checkpoints import load_whole
from underpaint.models.decoder import Decoder
from underpaint.runtime.live.drafter import CHECKPOINT, check_eagle3, described, new_drafter, new_eagle3, target_layers
from underpaint.runtime.live.generate import AcceleratedModel
from underpaint.runtime.live.model import Ids, LiveModel, is_target, target_fingerprint
from underpaint.training.distillation import Distillation, DrafterSettings, Taught
from underpaint.training.history import RecipeInputs
from underpaint.training.loop import LoopSettings, Loss, TrainingResult, train

DRAWN: Final = "drawn.npy"
ABOUT: Final = "drawn.json"
_SAVED_EVERY: Final = 8
"""Number of pictures between two saves."""


@dataclass(frozen=True, slots=True)
class DrawnPictures:
    """Prompts, and the codes [n, cells] that the target drew for them."""

    prompts: tuple[Ids, ...]
    codes: IntArray


def draw_pictures(
    fast: AcceleratedModel,
    prompts: Sequence[Ids],
    out: Path,
    *,
    params: SamplingParams | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> DrawnPictures:
    """Draw one picture for each prompt into `out/drawn.npy`; a stopped run continues.

    Args:
        fast: The target, with a lossless method.
        prompts: Ids of whole prompts.
        out: Folder of the run.
        params: Sampling settings; None uses the published ones.
        seed: Noise seed.
        progress: Callback with the numbers of drawn and requested pictures.

    Raises:
        ValueError: `out` has drawings of another target, other prompts, or another sampling.
    """
    live, path = fast.live, out / DRAWN
    params = params or live.sampling
    digest = sha256(json.dumps([list(each) for each in prompts]).encode()).hexdigest()
    about: dict[str, Any] = {"target": target_fingerprint(live), "prompts": digest, "grid": list(live.grid)}
    about |= {"sampling": repr(params), "seed": seed}
    codes = np.full((len(prompts), live.grid.cells), -1, dtype=np.int32)
    with folder_lock(out):
        if path.is_file():
            saved = read_object(out / ABOUT)
            if is_target(live, str(saved.get("target"))):
                about["target"] = saved["target"]
            _check_same(saved, about, path)
            codes = np.load(path)
        else:
            with replacing(out / ABOUT) as file:
                file.write(json.dumps(about, indent=1).encode())
        try:
            for done, index in enumerate(np.flatnonzero(codes[:, 0] < 0).tolist()):
                condition = fast.condition(prompts[index])
                codes[index] = fast.draw(condition, params, seed + index).drawing.tokens
                if progress is not None:
                    progress(index + 1, len(prompts))
                if (done + 1) % _SAVED_EVERY == 0:
                    _save(codes, path)
        finally:
            _save(codes, path)
    return DrawnPictures(tuple(tuple(each) for each in prompts), codes.astype(np.int64))


def _check_same(saved_about: dict[str, Any], about: dict[str, Any], path: Path) -> None:
    """Raise ValueError unless the existing drawings are the requested ones."""
    for name, value in about.items():
        if saved_about.get(name) != value:
            raise ValueError(
                f"{path}: expected drawings of {name} {value!r}, got {saved_about.get(name)!r}; give the same prompts, "
                "model and sampling to go on, or another --out"
            )


def _save(codes: NDArray[np.int32], path: Path) -> None:
    with replacing(path) as file:
        np.save(file, codes)


def teach(live: LiveModel, prompts: Sequence[Ids], codes: IntArray, layers: tuple[int, ...] = ()) -> Taught:
    """Run the target on pictures by teacher forcing; returns logits, and the input of a drafter of these `layers`.

    Args:
        live: The target.
        prompts: B prompts of any lengths; shorter ones are padded on the left, and the padding is masked.
        codes: [B, cells].
        layers: See `LiveModel.hidden`.
    """
    device = next(live.body.parameters()).device
    prompts = [(*row, *live.appended) for row in prompts]
    longest = max(map(len, prompts))
    ids = torch.tensor([(0,) * (longest - len(row)) + tuple(row) for row in prompts], device=device)
    padding = torch.tensor([longest - len(row) for row in prompts], device=device)
    code_tensor = torch.as_tensor(codes, device=device)
    tokens = torch.cat([ids[:, 1:] + live.codes, code_tensor[:, :-1]], dim=1)
    pieces, cells = [ids + live.codes], np.arange(live.grid.cells)
    feeding = longest - 1 + cells
    if live.eol_id is None:
        pieces.append(code_tensor[:, :-1])
    else:
        width = live.grid.width
        ends = torch.full((len(prompts), 1), live.eol_id + live.codes, device=device)
        for row in range(live.grid.height):
            pieces += [code_tensor[:, row * width : (row + 1) * width], ends]
        feeding = feeding + cells // width
    embeds = live.embed(torch.cat(pieces, dim=1))
    count = embeds.shape[1]
    places = torch.arange(count, device=device)
    seen = (places[None, :] <= places[:, None])[None] & (places >= padding[:, None])[:, None]
    seen |= torch.eye(count, dtype=torch.bool, device=device)
    floor = max(float(MASKED_SCORE), float(torch.finfo(embeds.dtype).min))
    mask = torch.zeros(seen.shape, dtype=embeds.dtype, device=device).masked_fill(~seen, floor)
    positions = live.position_ids((places - padding[:, None]).clamp(min=0), longest - padding[:, None])
    hidden, states = live.hidden(
        layers, inputs_embeds=embeds, attention_mask=mask[:, None], position_ids=positions, use_cache=False
    )
    before = np.concatenate([np.arange(longest - 1), feeding[:-1]])
    hidden = hidden[:, feeding]
    logits = live.head(hidden).float()
    return Taught(tokens, states[:, before].float(), logits, hidden.float(), longest - 1, padding)


def common_codes(codes: IntArray, count: int, vocabulary: int) -> IntArray:
    """Return the `count` most frequent codes below `vocabulary`, ascending; lower codes win ties."""
    often = np.bincount(np.ravel(codes), minlength=vocabulary)
    return np.sort(np.argsort(-often, kind="stable")[:count])


def check_drafter(
    live: LiveModel, prompts: Sequence[Ids], settings: DrafterSettings, eagle: Literal[1, 3], drafted_codes: int | None
) -> IntArray:
    """Return indices of the training pictures: those whose prompts are not among the first `validated`.

    Raises:
        ValueError: There are none, or a drafter with these options cannot be trained for this target.
    """
    if live.features is not None:
        raise ValueError(
            f"target: expected a model of prompts, whose ids a drafter reads too, got {live.family}, which reads "
            "features; train a drafter for another model"
        )
    apart = set(prompts[: settings.validated])
    learnt = [row for row, prompt in enumerate(prompts) if row >= settings.validated and prompt not in apart]
    if not learnt:
        raise ValueError(
            f"pictures: expected more than the {settings.validated} kept for validation, of other prompts, got "
            f"{len(prompts)} of {len(set(prompts))} prompts; give more prompts, or keep fewer for validation"
        )
    if drafted_codes is not None and (eagle != 3 or not 1 <= drafted_codes <= live.codes):
        raise ValueError(
            f"drafted codes: expected 1 to {live.codes:,}, of an EAGLE-3 drafter, got {drafted_codes:,} with EAGLE-"
            f"{eagle}; leave them out to draft all"
        )
    if eagle == 3:
        check_eagle3(live)
    return np.array(learnt, dtype=np.int64)


def train_live_drafter(
    live: LiveModel,
    drawn: DrawnPictures,
    out: Path,
    *,
    settings: DrafterSettings | None = None,
    loop: LoopSettings,
    seed: int = 0,
    eagle: Literal[1, 3] = 1,
    drafted_codes: int | None = None,
    exported: Decoder | None = None,
) -> TrainingResult:
    """Train a drafter of a live target into `out/checkpoint.pt`; an existing run is continued.

    Args:
        live: The target; its weights do not change.
        drawn: Pictures that it drew. The first `settings.validated` are kept for validation, and other pictures of
            the same prompts are excluded from training.
        out: Folder of the run.
        settings: Batch, passes and loss weights. `condition_dropout` is the share of rows with the unconditional
            prompt, because guidance also drafts with it. `feature_weight` is only for EAGLE-1, because an EAGLE-3
            drafter has its own features.
        loop: Length and learning rates.
        seed: Seed of weights and batches.
        eagle: 1 for EAGLE-1 and EAGLE-2, which draft with the same network; 3 for EAGLE-3.
        drafted_codes: Number of codes that an EAGLE-3 drafter can draft, the most frequent ones; None for all.
        exported: A drafter of this project's own target, to train instead of a new one. It reads no prompts, like
            the drafters of exported folders.

    Returns:
        The result of the run; its validation has the figures of `distillation.by_depth` on the validation pictures.

    Raises:
        ValueError: There are no more pictures or prompts than validation needs, or `out` has another run's checkpoint.
    """
    settings = settings or DrafterSettings()
    validation_count = settings.validated
    learnt = check_drafter(live, drawn.prompts, settings, eagle, drafted_codes)
    torch.manual_seed(seed)
    if eagle == 3:
        settings = replace(settings, feature_weight=0.0)
        chosen = common_codes(drawn.codes[learnt], drafted_codes or live.codes, live.codes)
        drafter: Decoder = new_eagle3(live, chosen)
    else:
        drafter = exported or new_drafter(live)
    layers = target_layers(drafter)

    def taught(prompts: Sequence[Ids], codes: IntArray) -> Taught:
        batch = teach(live, prompts, codes, layers)
        return batch if exported is None else batch.without_prompt()

    view = Distillation(drafter, settings, next(live.body.parameters()).device)

    def loss(step: int) -> Loss:
        random = np.random.default_rng([seed, step])
        rows = learnt[random.integers(0, learnt.size, settings.batch)]
        prompts = [drawn.prompts[row] for row in rows]
        if live.uncond is not None:
            dropped = random.random(len(rows)) < settings.condition_dropout
            prompts = [live.uncond(ids) if drop else ids for ids, drop in zip(prompts, dropped, strict=True)]
        with torch.no_grad():
            batch = taught(prompts, drawn.codes[rows])
        return view.loss(batch, random)

    def validation_batches() -> Iterator[Taught]:
        for rows in np.array_split(np.arange(validation_count), -(-validation_count // settings.batch)):
            yield taught([drawn.prompts[row] for row in rows], drawn.codes[rows])

    how = {"seed": seed, "settings": asdict(settings), "pictures": len(drawn.codes)}
    about, inputs = described(drafter, live), RecipeInputs(how)
    if (path := out / CHECKPOINT).is_file():
        saved_target = str(load_whole(path)["config"].get("target"))
        if is_target(live, saved_target):
            about["target"] = saved_target
    return train(
        drafter,
        loss,
        out,
        loop,
        about,
        validate=lambda: view.validated(validation_batches()),
        inputs=inputs,
        title=f"drafter, EAGLE-{eagle}",
    )
