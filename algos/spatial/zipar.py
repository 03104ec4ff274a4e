"""ZipAR: decodes the image by row fronts with the target alone (arXiv 2412.04062)."""

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance, Role
from underpaint.algos.spatial.adaptive_window import AdaptiveWindow
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.row_front import RowFront
from underpaint.algos.spatial.settle import Choose, fixed_window, settle
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import run_to_end


class CellStep(NamedTuple):
    """The cells that one step decides, ascending, and their tokens."""

    cells: tuple[int, ...]
    tokens: tuple[int, ...]


class GridDecoded(NamedTuple):
    """One decoded image, or its first rows."""

    tokens: IntArray
    """[cells] int64 in raster order; NO_TOKEN in rows from `stop_row` on."""
    steps: tuple[tuple[int, ...], ...]
    """The cells decided in each step, ascending."""
    passes: tuple[int, ...]
    """Tokens fed by each target pass; the first one, the prefill, counts as 0. The length is the NFE."""


def chooser(chance: Chance, adaptive: bool, role: Role = Role.CELL, greedy: bool = False) -> Choose:
    """Return the fixed or the adaptive window, drawing cells under `role`; `greedy` takes the likeliest token."""
    choose = AdaptiveWindow(chance, role) if adaptive else fixed_window(chance, role)
    return (lambda front, cell, distribution: choose(front, cell, likeliest(distribution))) if greedy else choose


def likeliest(distribution: FloatArray) -> FloatArray:
    """Return the distribution [V] at temperature 0: one-hot at the first of the largest entries."""
    one_hot: FloatArray = np.eye(1, distribution.size, int(distribution.argmax()))[0]
    return one_hot


def zipar_steps(
    target: GridTarget,
    window: int,
    chance: Chance,
    *,
    adaptive: bool = False,
    role: Role = Role.CELL,
    prefix: IntArray | None = None,
    stop_row: int | None = None,
) -> Generator[CellStep, None, GridDecoded]:
    """Decode an image by row fronts, and yield each step; a row opens `window` tokens behind the row above.

    It makes W + (H - 1) * window passes with a fixed window. The released code decodes the first row separately, and
    makes 2 W + (H - 2) * window passes.

    Args:
        target: The target model.
        window: 1..width; the width is raster order, plain autoregression.
        chance: The randomness of the image.
        adaptive: Hold back the first token of a row, and test it again as the window grows.
        role: The purpose in the draws' addresses: Role.DRAFT if `target` drafts for another model, so that the two do
            not share noise.
        prefix: [n] int64, the first cells' tokens, fed in the first pass.
        stop_row: Decode only the rows before it.

    Raises:
        ValueError: A window, a prefix or a row beyond the grid, or an invalid distribution.
    """
    grid = target.grid
    stop = grid.height if stop_row is None else stop_row
    if not 0 <= stop <= grid.height:
        raise ValueError(f"zipar: expected stop_row in 0..{grid.height}, got {stop_row}")
    start = 0 if prefix is None else prefix.size
    region = np.zeros(grid.cells, dtype=np.bool_)
    region[start : stop * grid.width] = True
    front = RowFront.over(region.reshape(grid), window)
    canvas = Canvas.begin(target, prefix)
    steps: list[tuple[int, ...]] = []
    for step in settle(canvas, [front], chooser(chance, adaptive, role)):
        steps.append(step)
        yield CellStep(step, tuple(canvas.tokens[list(step)].tolist()))
    return GridDecoded(canvas.tokens, tuple(steps), tuple(canvas.passes))


zipar = run_to_end(zipar_steps)
"""Decode an image by row fronts; see `zipar_steps`."""


def raster(target: GridTarget, chance: Chance) -> GridDecoded:
    """Decode with plain autoregression over a grid target: one cell per pass."""
    return zipar(target, target.grid.width, chance)
