"""Decodes regions of the grid front by front with the target alone, for ZipAR and for local repair."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.row_front import Fronts, Ready, RowFront


class Choose(Protocol):
    """A function that decides a cell by its current distribution."""

    def __call__(self, front: RowFront, cell: int, distribution: FloatArray) -> int | None:
        """Return the token; None to wait for more of the cells before it (not allowed if `front` misses none)."""
        ...


def fixed_window(chance: Chance, role: Role = Role.CELL) -> Choose:
    """Return a `Choose` that draws each cell as soon as it is ready, at (`role`, cell)."""
    return lambda front, cell, distribution: chance.draw(distribution, At(role, cell))


def settle(canvas: Canvas, fronts: Sequence[RowFront], choose: Choose) -> Iterator[tuple[int, ...]]:
    """Decide all cells of `fronts` (disjoint regions), and yield the cells decided in each step, ascending.

    A step reads the distributions of all ready cells of all fronts in one pass. Each is conditioned only on the decided
    cells before it, not on cells decided in the same step or still undecided elsewhere.
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
