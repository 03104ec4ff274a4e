"""Decode regions of the grid, front by front, with the target alone: what ZipAR and local repair have in common."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.row_front import Fronts, Ready, RowFront


class Choose(Protocol):
    """Decides a cell by the distribution it has now."""

    def __call__(self, front: RowFront, cell: int, distribution: FloatArray) -> int | None:
        """The token; None to wait for more of the cells before it (never where `front` misses none of them)."""
        ...


def fixed_window(chance: Chance, role: Role = Role.CELL) -> Choose:
    """Draw each cell as soon as it is ready, at (`role`, cell)."""
    return lambda front, cell, distribution: chance.draw(distribution, At(role, cell))


def settle(canvas: Canvas, fronts: Sequence[RowFront], choose: Choose) -> Iterator[tuple[int, ...]]:
    """Decide every cell of `fronts` (disjoint regions), and yield the cells decided in each step, ascending.

    A step reads the distributions of all ready cells of all fronts in one pass. Each is conditioned on the decided
    cells before it: those being decided beside it, and those still open elsewhere, are not there.
    """
    if not fronts:
        return
    going = Fronts(fronts)
    while (ready := going.ready()).cells.size:
        distributions = canvas.distributions(ready.cells)
        settled = []
        for place, (cell, front) in enumerate(zip(ready.cells.tolist(), ready.fronts.tolist(), strict=True)):
            token = choose(going.fronts[front], cell, distributions[place])
            if token is not None:
                settled.append(place)
                canvas.put(cell, token)
        done = Ready(ready.cells[settled], ready.fronts[settled])
        going.decide(done)
        yield tuple(done.cells.tolist())
