"""Parallel Jacobi row fronts (PJD, arXiv 2606.05703): all open rows draft from their last distributions in one pass."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np

from underpaint.algos.accept.walk import excess
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.protocols import Grid
from underpaint.algos.registry import Cells, Tune, check_bounds
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.spatial.zipar import CellStep, GridDecoded
from underpaint.algos.step import run_to_end
from underpaint.algos.tree import NO_TOKEN

Refill: TypeAlias = Literal["uniform", "left"]
Redraw: TypeAlias = Literal["top", "all"]


@dataclass(frozen=True, slots=True)
class JacobiFronts:
    """The settings of PJD.

    Attributes:
        lead: Tokens that a row must have before the row below opens (c), 1..width.
        window: The most drafts of a row in a pass (W), 1..width.
        refill: The proposal if no distribution is known yet: a uniform token ("uniform"), or as a point proposal the
            token before it in the row (at a row's start the last decided one, "left"). The paper leaves it open.
        redraw: The rows whose first rejected token is redrawn from the residual at once. "top": The top open row, as
            published. The other rows wait, and propose again from their whole last distribution. That is not exact
            even if rows do not depend on each other: min(p, q) is kept, but the rest is not the residual. "all": Every
            open row.
    """

    lead: Annotated[Cells, Tune((2, 3, 4, 6))]
    window: Annotated[Cells, Tune((1, 2, 3, 4, 6))]
    refill: Annotated[Refill, Tune()] = "uniform"
    redraw: Annotated[Redraw, Tune()] = "top"

    def check(self, grid: Grid) -> None:
        """Raise ValueError unless the settings are valid on `grid`."""
        for name, columns in (("lead", self.lead), ("window", self.window)):
            if not 1 <= columns <= grid.width:
                raise ValueError(
                    f"jacobi fronts: expected {name} in 1..{grid.width} on a grid of {grid.height} x {grid.width}, "
                    f"got {columns}"
                )
        check_bounds("jacobi fronts", self)

    def spans(self, counts: IntArray, width: int) -> dict[int, range]:
        """Return by row the columns to draft, min(W, c_{i-1} - c_i) per row, if the rows have `counts` [H] tokens."""
        spans: dict[int, range] = {}
        above = width
        for row, count in enumerate(counts.tolist()):
            if row and above < self.lead:
                break
            length = min(self.window, above - count)
            if length > 0:
                spans[row] = range(count, count + length)
            above = count
        return spans


@dataclass(slots=True)
class _Drafts:
    """The draft tokens [cells], and the distribution each was drawn from."""

    tokens: IntArray
    distributions: dict[int, FloatArray]

    def refill(self, cells: list[int], canvas: Canvas, refill: Refill, chance: Chance) -> None:
        """Propose tokens for those of `cells` (ascending, in one row) that have none."""
        vocab_size = canvas.target.vocab_size
        for cell in cells:
            if self.tokens[cell] != NO_TOKEN:
                continue
            distribution = np.full(vocab_size, 1.0 / vocab_size)
            left = self._left(cell, canvas)
            if refill == "left" and left != NO_TOKEN:
                distribution = np.eye(1, vocab_size, left)[0]
                self.tokens[cell] = left
            else:
                self.tokens[cell] = chance.draw(distribution, At(Role.REFILL, cell))
            self.distributions[cell] = distribution

    def _left(self, cell: int, canvas: Canvas) -> int:
        before = np.flatnonzero(canvas.decided[:cell])
        if cell % canvas.grid.width and self.tokens[cell - 1] != NO_TOKEN:
            return int(self.tokens[cell - 1])
        return int(canvas.tokens[before[-1]]) if before.size else NO_TOKEN

    def drop(self, cell: int) -> None:
        self.tokens[cell] = NO_TOKEN
        del self.distributions[cell]


def jacobi_front_steps(
    target: GridTarget, settings: JacobiFronts, chance: Chance
) -> Generator[CellStep, None, GridDecoded]:
    """Decode an image by parallel Jacobi row fronts, and yield the cells that each cycle decides.

    A cycle is one pass; cycle k uses the noise of `chance.cycle(k)`.

    A draft x of pass k - 1 is kept while u p^{k-1}(x) < p^k(x), from the left, row by row. Drafts that are not kept
    are drawn again from p^k. A draft sees the committed tokens of all rows, but only the drafts of its own row. For one
    row this is speculative Jacobi decoding (arXiv 2410.01699), and exact.

    Args:
        target: The target model.
        settings: The settings of PJD.
        chance: The randomness of the image.

    Raises:
        ValueError: Settings beyond the grid, or an invalid distribution.
    """
    grid = target.grid
    settings.check(grid)
    canvas = Canvas.begin(target)
    drafts = _Drafts(np.full(grid.cells, NO_TOKEN, dtype=np.int64), {})
    groups = np.arange(grid.cells) // grid.width
    steps: list[tuple[int, ...]] = []
    while not canvas.decided.all():
        here = chance.cycle(len(steps))
        spans = settings.spans(canvas.decided.reshape(grid).sum(axis=1), grid.width)
        rows = {row: [row * grid.width + column for column in span] for row, span in spans.items()}
        for cells in rows.values():
            drafts.refill(cells, canvas, settings.refill, here)
        front_cells = [cell for cells in rows.values() for cell in cells]
        distributions = dict(
            zip(
                front_cells,
                canvas.draft_distributions(np.array(front_cells, dtype=np.int64), drafts.tokens, groups),
                strict=True,
            )
        )
        decided: list[int] = []
        for row, cells in rows.items():
            may_redraw = settings.redraw == "all" or row == min(rows)
            decided.extend(_judge_row(cells, distributions, drafts, canvas, may_redraw, here))
        canvas.keep()
        for cell in set(front_cells) - set(decided):
            drafts.tokens[cell] = here.draw(distributions[cell], At(Role.DRAFT, cell))
            drafts.distributions[cell] = distributions[cell]
        steps.append(tuple(sorted(decided)))
        yield CellStep(steps[-1], tuple(canvas.tokens[list(steps[-1])].tolist()))
    return GridDecoded(canvas.tokens, tuple(steps), tuple(canvas.passes))


jacobi_fronts = run_to_end(jacobi_front_steps)
"""Decode an image by parallel Jacobi row fronts; see `jacobi_front_steps`."""


def _judge_row(
    cells: list[int],
    distributions: dict[int, FloatArray],
    drafts: _Drafts,
    canvas: Canvas,
    may_redraw: bool,
    chance: Chance,
) -> list[int]:
    """Keep the row's drafts up to the first rejection, and redraw that one if allowed; return the decided cells."""
    decided: list[int] = []
    for cell in cells:
        token, distribution, drafted = int(drafts.tokens[cell]), distributions[cell], drafts.distributions[cell]
        accepted = chance.flip(float(distribution[token]), At(Role.ACCEPT, cell), out_of=float(drafted[token]))
        rest = excess(distribution, drafted)
        if not accepted and not may_redraw:
            break
        if not accepted and rest.any():  # without any, only rounding made the flip fail
            token = chance.draw(rest, At(Role.RESIDUAL, cell))
        canvas.put(cell, token)
        drafts.drop(cell)
        decided.append(cell)
        if not accepted:
            break
    return decided
