"""What a checkpoint does not say about itself, and what loading one gives."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from models.published.decoder import Conditioner, Decoder, DecoderConfig
from models.published.files import Checkpoint, CheckpointError, Recipe
from models.vq import VQModel


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Overrides; None takes what the published models of that shape use.

    heads: attention heads. grid_side: cells along a side of the picture. prefix: condition positions (captions, TA-Tok
    features, or the longest prompt). first_code: vocabulary id of code 0 (Tar's language model).
    """

    heads: int | None = None
    grid_side: int | None = None
    prefix: int | None = None
    first_code: int | None = None


class Published(NamedTuple):
    """A loaded model. `decoder` is None for a tokenizer, `vq` for all others."""

    kind: str
    decoder: Decoder | None
    conditioner: Conditioner | None
    vq: VQModel | None
    checkpoint: Checkpoint


class Parts(NamedTuple):
    """A config and recipes of renamed parameters, ready to fill a `Decoder`; the same for a `Conditioner`, if any.

    features: width of what the conditioner reads.
    """

    config: DecoderConfig
    tensors: dict[str, Recipe]
    conditioner: dict[str, Recipe] | None = None
    activation: bool = False
    features: int = 0


def stored(source: Checkpoint, name: str) -> Recipe:
    """A parameter as it is stored."""
    return lambda: source.tensors[name]


def joined(*recipes: Recipe) -> Recipe:
    """Parameters below each other."""
    return lambda: torch.cat([make() for make in recipes])


def reordered(recipe: Recipe, change: Callable[[torch.Tensor], torch.Tensor]) -> Recipe:
    """What `change` makes of a parameter."""
    return lambda: change(recipe())


def zeros(*shape: int) -> Recipe:
    """A parameter that the published model lacks and that adds nothing."""
    return lambda: torch.zeros(shape)


def square_side(cells: int, what: str) -> int:
    """The side of a square grid of `cells`; CheckpointError where there is none."""
    side = math.isqrt(max(cells, 0))
    if side * side != cells:
        raise CheckpointError(f"{what}: expected cells of a square grid, got {cells}; give the grid's side")
    return side


def count_layers(names: Iterable[str], stem: str) -> int:
    """How many layers `stem`0., `stem`1., ... parameters have names for."""
    numbers = {int(name[len(stem) :].split(".")[0]) for name in names if name.startswith(stem)}
    return max(numbers, default=-1) + 1


def half_split(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder a projection's output rows from neighbouring rotary pairs to pairs half a head apart."""
    wide = rows.shape[0] // heads
    return rows.reshape(heads, wide // 2, 2, -1).transpose(1, 2).reshape(rows.shape)


def repeat_heads(rows: torch.Tensor, heads: int, groups: int) -> torch.Tensor:
    """Repeat grouped key or value rows, so that every query head has its own: the same numbers, a larger cache."""
    wide = rows.shape[0] // heads
    shape = (heads, 1, wide, *rows.shape[1:])
    return rows.reshape(shape).expand(heads, groups, *shape[2:]).reshape(-1, *rows.shape[1:])
