"""Decode regions of the grid, front by front, with the target alone: what ZipAR and local repair have in common."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from algos.arrays import FloatArray
from algos.chance import At, Chance, Role
from algos.spatial.canvas import Canvas
from algos.spatial.row_front import RowFront


class Choose(Protocol):
    """Decides a cell by the law it has now."""

    def __call__(self, front: RowFront, cell: int, law: FloatArray) -> int | None:
        """The token; None to wait for more of the cells before it (never where `front` misses none of them)."""
        ...


def fixed_window(chance: Chance, role: Role = Role.CELL) -> Choose:
    """Draw each cell as soon as it is ready, at (`role`, cell)."""
    return lambda front, cell, law: chance.draw(law, At(role, cell))


def settle(canvas: Canvas, fronts: Sequence[RowFront], choose: Choose) -> tuple[tuple[int, ...], ...]:
    """Decide every cell of `fronts` (disjoint regions); the cells decided in each step, ascending.

    A step reads the laws of all ready cells of all fronts in one pass. Each is conditioned on the decided cells
    before it: those being decided beside it, and those still open elsewhere, are not there.
    """
    left = [front for front in fronts if not front.done]
    steps: list[tuple[int, ...]] = []
    while left:
        ready = [(int(cell), place) for place, front in enumerate(left) for cell in front.ready()]
        ready.sort()
        laws = canvas.laws(np.array([cell for cell, _ in ready], dtype=np.int64))
        settled: list[list[int]] = [[] for _ in left]
        for (cell, place), law in zip(ready, laws, strict=True):
            token = choose(left[place], cell, law)
            if token is not None:
                settled[place].append(cell)
                canvas.put(cell, token)
        steps.append(tuple(sorted(cell for cells in settled for cell in cells)))
        left = [front.after(cells) for front, cells in zip(left, settled, strict=True)]
        left = [front for front in left if not front.done]
    return tuple(steps)
