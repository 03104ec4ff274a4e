"""Recipes of parameters: how each is made out of what a checkpoint stores."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from underpaint.models.published.files import Checkpoint, CheckpointError, Recipe


def stored(source: Checkpoint, name: str) -> Recipe:
    """A parameter as it is stored."""
    return lambda: source.tensors[name]


def joined(*recipes: Recipe) -> Recipe:
    """Parameters below each other."""
    return lambda: torch.cat([make() for make in recipes])


def reordered(recipe: Recipe, change: Callable[[Tensor], Tensor]) -> Recipe:
    """What `change` makes of a parameter."""
    return lambda: change(recipe())


def zeros(*shape: int) -> Recipe:
    """A parameter that the published model lacks and that adds nothing."""
    return lambda: torch.zeros(shape)


def matrix(source: Checkpoint, name: str, kind: str) -> tuple[int, int]:
    """Rows and columns of a parameter that must have both; CheckpointError otherwise."""
    shape = source.tensors.shapes[name]
    if len(shape) != 2:
        raise CheckpointError(f"expected a {kind} checkpoint: {name} {shape} is no matrix; check the file and the kind")
    return shape[0], shape[1]


def square_side(cells: int, what: str) -> int:
    """The side of a square grid of `cells`; CheckpointError where there is none."""
    side = math.isqrt(max(cells, 0))
    if side * side != cells:
        raise CheckpointError(f"{what}: expected cells of a square grid, got {cells}; give the grid's side")
    return side


def count_layers(names: Iterable[str], stem: str) -> int:
    """How many layers `stem`0., `stem`1., ... parameters have names for."""
    numbers = (name[len(stem) :].split(".")[0] for name in names if name.startswith(stem))
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


def half_split(rows: Tensor, heads: int) -> Tensor:
    """Reorder a projection's output rows from neighbouring rotary pairs to pairs half a head apart."""
    wide = rows.shape[0] // heads
    return rows.reshape(heads, wide // 2, 2, -1).transpose(1, 2).reshape(rows.shape)
