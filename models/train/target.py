"""Recipe of the target: the autoregressive transformer over the tokenizer's codes, conditioned on words."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from underpaint.models.checkpoints import story, target_of
from underpaint.models.decoder_config import DecoderConfig
from underpaint.models.text import CaptionedTarget
from underpaint.models.train.history import Given
from underpaint.models.train.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.models.train.precision import autocast
from underpaint.models.train.start import read_start
from underpaint.models.train.tokens import TokenSet
from underpaint.zoo.prompts import PAD_WORD, WORD_SLOTS, WORDS

STRIDE = 8
LOOPS = {
    64: LoopSettings(steps=610, learning_rate=2e-3, warmup_steps=30, ema_decay=0.98, validate_every=200),
    128: LoopSettings(steps=3740, learning_rate=1e-3, warmup_steps=30, ema_decay=0.98, validate_every=200),
    # Never run in full: twice the tokens of the 128 px run, at its rate. What a step takes is not known.
    256: LoopSettings(steps=3740, learning_rate=1e-3, warmup_steps=30, ema_decay=0.98, validate_every=200),
}


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """Batch and data of a target."""

    batch: int = 16
    condition_dropout: float = 0.1
    scenes: int = 20000
    validation_scenes: int = 500
    validated: int = 256


# At 256 px attention holds 1,031 by 1,031 scores a head, layer and picture: the batch is what memory allows.
SETTINGS = {64: TargetSettings(batch=48), 128: TargetSettings(scenes=40000), 256: TargetSettings(batch=8, scenes=40000)}


CAPTION_DIM = 128
"""Width of caption features of the targets of EmojiScenes."""


def emoji_config(resolution: int) -> DecoderConfig:
    """The target of EmojiScenes: equal capacity at every resolution, only the grid differs."""
    return DecoderConfig(
        dim=256,
        layers=8,
        heads=4,
        hidden=768,
        vocab_size=1024,
        grid_side=resolution // STRIDE,
        prefix=WORD_SLOTS,
        condition="external",
    )


def batch_of(data: TokenSet, size: int, dropout: float, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A random batch: codes int64 [size, cells] and word ids int64 [size, prefix], some rows without condition."""
    return batch_at(data, random.integers(len(data.codes), size=size), dropout, random)


def batch_at(
    data: TokenSet, rows: NDArray[np.int64], dropout: float, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """See `batch_of`; scenes `rows` of `data`, int64 [size]."""
    words = np.where((random.random(len(rows)) < dropout)[:, None], PAD_WORD, data.words[rows])
    return torch.from_numpy(data.codes[rows].astype(np.int64)), torch.from_numpy(words)


def at_once(data: TokenSet, most: int) -> int:
    """Scenes to validate on together: `most` of up to 256 cells, of larger ones as many as hold as many cells."""
    cells: int = data.codes.shape[1]
    return max(1, most * 256 // max(256, cells))


def validation_loss(
    target: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], data: TokenSet, scenes: int, device: torch.device
) -> float:
    """Mean cross-entropy in nats a token, with the condition, over the first `scenes` scenes."""
    total = 0.0
    together = at_once(data, 32)
    for start in range(0, scenes, together):
        stop = min(scenes, start + together)
        codes = torch.from_numpy(data.codes[start:stop].astype(np.int64)).to(device)
        with autocast(device):
            logits, _ = target(codes, torch.from_numpy(data.words[start:stop]).to(device))
        total += float(functional.cross_entropy(logits.flatten(0, 1), codes.flatten())) * (stop - start)
    return total / scenes


def read_target_start(path: Path | None, config: DecoderConfig) -> dict[str, Any] | None:
    """See `models.train.start.read_start`; ValueError also on a target of another vocabulary of words."""
    saved = read_start(path, "target", config)
    if saved is not None and saved["config"].get("words") != WORDS:
        raise ValueError(
            f"{path}: expected a target of {WORDS} words to start from, got one of {saved['config'].get('words')}; "
            "its prompts were others: train one with `underpaint train target`"
        )
    return saved


def train_target(
    out: Path,
    data: TokenSet,
    validation: TokenSet,
    resolution: int,
    *,
    config: DecoderConfig | None = None,
    caption_dim: int = CAPTION_DIM,
    settings: TargetSettings | None = None,
    loop: LoopSettings | None = None,
    init_from: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> TrainingResult:
    """Train a target into `out/checkpoint.pt` (kind "target"), continuing what is there.

    `caption_dim`: width of caption features. `init_from` starts from another target of the same widths; its grid may
    differ, since positions are rotary.
    """
    torch.manual_seed(seed)
    config = config or emoji_config(resolution)
    settings = settings or SETTINGS[resolution]
    if data.codes.shape[1] != config.cells:
        raise ValueError(f"the target has {config.cells} cells, the token set {data.codes.shape[1]}")
    model = CaptionedTarget(config, caption_dim)
    start = read_target_start(init_from, config)
    if start is not None:
        model.load_state_dict(target_of(start).state_dict())
    model.to(device)
    place = torch.device(device)

    def loss(step: int) -> Loss:
        random = np.random.default_rng([seed, step])
        codes, words = (part.to(place) for part in batch_of(data, settings.batch, settings.condition_dropout, random))
        with autocast(place):
            logits, _ = model(codes, words)
        value = functional.cross_entropy(logits.flatten(0, 1), codes.flatten())
        return Loss(value, {"tokens": float(codes.numel() * (step + 1))})

    def validate() -> dict[str, float]:
        return {"validation_ce": validation_loss(model, validation, settings.validated, place)}

    described: dict[str, Any] = {"kind": "target", "resolution": resolution, "words": WORDS}
    described |= {"caption_dim": caption_dim, "decoder": asdict(config)}
    given = Given({"seed": seed, "settings": asdict(settings)}, start and story(start))
    own, title = loop or LOOPS[resolution], f"target {resolution}"
    return train(model, loss, out, own, described, validate=validate, given=given, title=title)
