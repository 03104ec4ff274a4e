"""Recipes that make parameters from those stored in a checkpoint."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from underpaint.models.published.files import Checkpoint, CheckpointError, Recipe


def stored(source: Checkpoint, name: str) -> Recipe:
    """Return a recipe for a parameter as it is stored."""
    return lambda: source.tensors[name]


def joined(*recipes: Recipe) -> Recipe:
    """Return a recipe that concatenates parameters along the first axis."""
    return lambda: torch.cat([make() for make in recipes])


def reordered(recipe: Recipe, change: Callable[[Tensor], Tensor]) -> Recipe:
    """Return a recipe that applies `change` to a parameter."""
    return lambda: change(recipe())


def zeros(*shape: int) -> Recipe:
    """Return a recipe of zeros, for a parameter that the published model does not have."""
    return lambda: torch.zeros(shape)


def matrix(source: Checkpoint, name: str, kind: str) -> tuple[int, int]:
    """Return the rows and columns of a parameter; raise CheckpointError if it is not a matrix."""
    shape = source.tensors.shapes[name]
    if len(shape) != 2:
        raise CheckpointError(f"expected a {kind} checkpoint: {name} {shape} is no matrix; check the file and the kind")
    return shape[0], shape[1]


def square_side(cells: int, what: str) -> int:
    """Return the side of a square grid of `cells`; raise CheckpointError if `cells` is not a square number."""
    side = math.isqrt(max(cells, 0))
    if side * side != cells:
        raise CheckpointError(f"{what}: expected cells of a square grid, got {cells}; give the grid's side")
    return side


def count_layers(names: Iterable[str], stem: str) -> int:
    """Return the number of layers in parameter names that begin with `stem`0., `stem`1., ..."""
    numbers = (name[len(stem) :].split(".")[0] for name in names if name.startswith(stem))
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


def half_split(rows: Tensor, heads: int) -> Tensor:
    """Reorder a projection's output rows from neighbouring rotary pairs to pairs half a head apart."""
    wide = rows.shape[0] // heads
    return rows.reshape(heads, wide // 2, 2, -1).transpose(1, 2).reshape(rows.shape)
