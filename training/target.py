"""Recipe of one target for several grids: the same weights draw 64, 128 and 256 px, selected by a prompt word.

A resolution is one word of the prompt and one grid of rotary positions; nothing else differs. So one file is both the
low and the high target of a multi-scale method. Steps cycle through the grids with equal numbers of cells per batch.

A target of fewer layers learns first: its steps take two fifths of the time, and where training is short it learns more
from the same hours (arXiv 2203.15556: the best size grows as the square root of the operations). `expand_depth` then
adds layers that change nothing until they are trained.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.checkpoints import read, story, target_of
from underpaint.models.decoder import initialise
from underpaint.models.layers import Layer
from underpaint.models.text import CaptionedTarget
from underpaint.training.grids import STRIDE, GridData, at_once, batch_at, on_grid, require_cells
from underpaint.training.history import RecipeInputs, refuse_other
from underpaint.training.loop import LoopSettings, Loss, TrainingResult, train
from underpaint.training.precision import autocast
from underpaint.training.tokens import TokenSet
from underpaint.zoo.textured_prompts import TEXTURED_WORD_SLOTS, TEXTURED_WORDS


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """Batch settings.

    Attributes:
        batch: Scenes per step.
        condition_dropout: Share of rows without a caption.
        validated: Number of scenes for validation.
    """

    batch: int = 16
    condition_dropout: float = 0.1
    validated: int = 256


CONFIG = DecoderConfig(
    dim=480,
    layers=8,
    heads=8,
    hidden=1280,
    vocab_size=4096,
    grid_side=16,
    prefix=TEXTURED_WORD_SLOTS,
    condition="external",
    rope_prefix="identity",
)
"""26 million parameters, 104 MB in float32: more than three times a last-level cache of 32 MiB."""
SHALLOW_LAYERS = 3
"""Number of layers of the target that is trained first."""
THING_WEIGHT = 3.0
"""Initial weight of a thing's cell: things fill a third of the cells, and a caption determines them most."""
CAPTION_DIM = 128
"""Width of caption features."""
SETTINGS = TargetSettings(batch=32)
"""9,000 tokens per step: the optimiser takes a ninth of a step for its products; at half as many tokens, a fifth."""
LOOP = LoopSettings(steps=40000, learning_rate=1e-3, warmup_steps=100, ema_decay=0.998, validate_every=1000)
GROWN_LOOP = replace(LOOP, learning_rate=6e-4, matrix_rate=12e-3, warmup_steps=30)
"""Loop of a target that starts from a shallow one: the full rate would first lose what that has learnt."""


@torch.no_grad()
def expand_depth(shallow: CaptionedTarget, layers: int) -> CaptionedTarget:
    """Add layers to a target without changing its function: learnt layers are spread evenly, new ones add nothing yet.

    A new layer's two output matrices are 0, as in function-preserving growth (arXiv 1511.05641); they get gradients.
    Raises ValueError if `layers` is less than the number of existing layers.
    """
    shallow_layers = shallow.decoder.config.layers
    if layers < shallow_layers:
        raise ValueError(f"target: expected at least the {shallow_layers} layers that it has, got {layers}")
    words = shallow.words.embedding.num_embeddings
    deep = CaptionedTarget(replace(shallow.decoder.config, layers=layers), shallow.caption_dim, words)
    places, first = [layer * layers // shallow_layers for layer in range(shallow_layers)], shallow.decoder.layers[0]
    other_weights = {
        name: value for name, value in shallow.state_dict().items() if not name.startswith("decoder.layers.")
    }
    deep.load_state_dict(other_weights, strict=False)
    for number, layer in enumerate(deep.decoder.layers):
        assert isinstance(layer, Layer)
        if number in places:
            layer.load_state_dict(shallow.decoder.layers[places.index(number)].state_dict())
        else:
            layer.load_state_dict(first.state_dict())  # for values that `initialise` does not set, e.g. query scales
            initialise(layer)
            layer.out.weight.zero_()
            layer.down.weight.zero_()
    return deep


def validation_loss(
    target: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], data: TokenSet, scenes: int, device: torch.device
) -> float:
    """Mean cross-entropy in nats per token, with the condition, over the first `scenes` scenes."""
    total = 0.0
    together = at_once(data, 32)
    for start in range(0, scenes, together):
        stop = min(scenes, start + together)
        codes = torch.from_numpy(data.codes[start:stop].astype(np.int64)).to(device)
        with autocast(device):
            logits, _ = target(codes, torch.from_numpy(data.words[start:stop]).to(device))
        total += float(functional.cross_entropy(logits.flatten(0, 1), codes.flatten())) * (stop - start)
    return total / scenes


def train_target(
    out: Path,
    grids: Mapping[int, GridData],
    *,
    config: DecoderConfig = CONFIG,
    caption_dim: int = CAPTION_DIM,
    words: int = TEXTURED_WORDS,
    settings: TargetSettings = SETTINGS,
    loop: LoopSettings = LOOP,
    thing_weight: float = 1.0,
    init_from: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    compiled: bool = False,
) -> TrainingResult:
    """Train one target on several grids into `out/checkpoint.pt` (kind "target", of the largest); continues a run.

    Args:
        out: Folder of the run.
        grids: Encoded scenes by the grid's side in cells.
        config: Sizes; its grid is the largest of `grids`.
        caption_dim: Width of caption features.
        words: Size of the word vocabulary.
        settings: `batch` is the number of scenes of the largest grid; other grids use as many cells.
        loop: Length and learning rates.
        thing_weight: Loss weight of a thing's cell at the peak rates, if `grids` mark things; other cells weigh 1. It
            falls with the rates to 1. Above 1, things are learnt sooner but drawn too often.
        init_from: Checkpoint of a similar target with no more layers, on any grids, to start from.
        seed: Seed of weights and batches.
        device: "cpu" or "cuda".
        compiled: Whether to use `torch.compile` for steps; it needs a C++ compiler, and minutes at the start.

    Raises ValueError if codes do not fill their grid, `out` has another run, or `init_from` another kind of model.
    """
    require_cells("target", grids)
    sides = sorted(grids)
    if not sides or config.grid_side != sides[-1]:
        raise ValueError(f"target: expected the grid of {config.grid_side} to be the largest of {sides}")
    start = None if init_from is None else read(init_from, "target")
    inputs = RecipeInputs(
        {"seed": seed, "settings": asdict(settings), "thing_weight": thing_weight}, start and story(start)
    )
    refuse_other(out, inputs)
    torch.manual_seed(seed)
    model = CaptionedTarget(config, caption_dim, words)
    if start is not None:
        begun = on_grid(expand_depth(target_of(start, str(init_from)), config.layers), config.grid_side)
        _require_widths(str(init_from), begun, model)
        model.load_state_dict(begun.state_dict())
    model = model.to(device)
    views = {side: model if side == sides[-1] else on_grid(model, side) for side in sides}
    place = torch.device(device)
    cross_entropies = {side: _cross_entropies(view, compiled) for side, view in views.items()}
    weight = torch.tensor(float(thing_weight))

    def loss(step: int) -> Loss:
        side = sides[step % len(sides)]
        random = np.random.default_rng([seed, step])
        size = settings.batch * sides[-1] ** 2 // side**2
        data, _, things = grids[side]
        rows = random.integers(len(data.codes), size=size)
        codes, word_ids = (part.to(place) for part in batch_at(data, rows, settings.condition_dropout, random))
        with autocast(place):
            each = cross_entropies[side](codes, word_ids)
        if things is None:
            value = each.mean()
        else:
            weights = torch.where(torch.from_numpy(things[rows]).flatten(), weight, 1.0).to(place)
            value = (each * weights).sum() / weights.sum()
        return Loss(value, {f"ce_{side * STRIDE}": each.detach().mean()})

    def follow(share: float) -> None:
        weight.fill_(1 + (thing_weight - 1) * share)

    def validate() -> dict[str, float]:
        return {
            f"validation_ce_{side * STRIDE}": validation_loss(
                views[side], grid_data.validation, min(settings.validated, len(grid_data.validation.codes)), place
            )
            for side, grid_data in grids.items()
        }

    described: dict[str, Any] = {"kind": "target", "resolution": sides[-1] * STRIDE, "words": words}
    described |= {"grids": sides, "scenes": "textured", "caption_dim": caption_dim, "decoder": asdict(config)}
    title = "target, all grids"
    return train(model, loss, out, loop, described, validate=validate, at_share=follow, inputs=inputs, title=title)


def _cross_entropies(view: CaptionedTarget, compiled: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function: cross-entropies float32 [batch * cells] of codes [batch, cells] and words [batch, prefix]."""

    def of(codes: Tensor, words: Tensor) -> Tensor:
        logits, _ = view(codes, words)
        return functional.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="none")

    return torch.compile(of, dynamic=False) if compiled else of


def _require_widths(path: str, start: CaptionedTarget, model: CaptionedTarget) -> None:
    """Raise ValueError if a target to start from differs from `model` in more than its layers."""

    def widths(one: CaptionedTarget) -> tuple[object, ...]:
        return one.decoder.config, one.caption_dim, one.words.embedding.num_embeddings

    if widths(start) != widths(model):
        raise ValueError(f"{path}: expected a target of {widths(model)} but for its layers, got {widths(start)}")
