"""MuLo-SD (arXiv 2601.05149): drafts rows at low resolution, verifies them in one pass, and repairs them locally."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.protocols import Grid
from underpaint.algos.registry import Cells, CellsOrNone, Tune, check_bounds
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.cell_rule import CellRule
from underpaint.algos.spatial.islands import island_fronts, label_islands
from underpaint.algos.spatial.neighbourhood import after_first, check_radius, expanded, redrawn_anyway
from underpaint.algos.spatial.row_front import RowFront, check_window
from underpaint.algos.spatial.settle import Choose, settle
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.spatial.zipar import chooser, likeliest
from underpaint.algos.step import run_to_end
from underpaint.algos.tree import NO_TOKEN

Reject: TypeAlias = Literal["raster", "local"]
Order: TypeAlias = Literal["serial", "islands"]
Keys: TypeAlias = Literal["stale", "recompute"]


class RowDraft(NamedTuple):
    """Drafted rows.

    Attributes:
        tokens: [n] int64 in raster order.
        distributions: [n, V], the distributions the tokens were drawn from; None for point proposals.
    """

    tokens: IntArray
    distributions: FloatArray | None = None


class RowDrafter(Protocol):
    """Drafts whole rows, for example with a low-resolution model and its up-sampler."""

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        """Draft `rows` given `tokens` [cells] (NO_TOKEN from `rows.start` on). Draws use Role.DRAFT."""
        ...


@dataclass(frozen=True, slots=True)
class Repair:
    """How rejected cells are redrawn.

    Attributes:
        reject: Which cells to redraw. "raster": the first rejected cell and all drafted cells after it. "local": the
            rejected cells and those within `radius` of them, none before the first.
        radius: The distance for "local"; 0: only the rejected cells.
        order: "serial", the whole region together; "islands", its 8-connected parts in parallel.
        window: Window of the row fronts in the region or island; None decodes in raster order.
        adaptive: See `zipar`.
        keys: The cached keys of kept cells after a repair. "stale": as computed by verification, next to the draft.
            "recompute": the next pass, if any, feeds all cells drafted from the first rejected one on again.
        greedy: Redraw the likeliest token, for decoding at temperature 0; the rule still sees the whole distribution.
    """

    reject: Reject = "local"
    radius: Annotated[CellsOrNone, Tune((0, 1))] = 1
    order: Order = "islands"
    window: Cells | None = None
    adaptive: bool = False
    keys: Keys = "stale"
    greedy: bool = False

    def check(self, grid: Grid) -> None:
        """Raise ValueError unless the settings are valid on `grid`."""
        check_radius(self.radius, grid)
        check_window(self.front_window(grid), grid)
        check_bounds("repair", self)
        if self.adaptive and self.window is None:
            raise ValueError("repair: an adaptive window needs a window to start from; set window, or adaptive=False")

    def front_window(self, grid: Grid) -> int:
        """Return the window inside the region or island."""
        return grid.width if self.window is None else self.window

    def region(self, rejected: BoolArray) -> BoolArray:
        """Return R_X [H, W], the cells to redraw, for the `rejected` cells [H, W]."""
        return after_first(rejected) if self.reject == "raster" else expanded(rejected, self.radius)


class RepairCycle(NamedTuple):
    """One verification and its repair. Grids are [H, W]; NO_TOKEN, False or -1 outside `rows`."""

    rows: range
    draft: IntArray
    rejected: BoolArray
    region: BoolArray
    """The cells that were redrawn: R_X."""
    islands: IntArray
    """The parts of `region` that were decoded in parallel; -1 outside."""
    steps: tuple[tuple[int, ...], ...]
    """The cells decided in each step of the repair."""
    tokens: IntArray
    """The image after the cycle, [H, W]."""


class RepairDecoded(NamedTuple):
    """One image decoded by drafted rows and their repair.

    Attributes:
        tokens: [cells] in raster order.
        cycles: Each verification and its repair.
        passes: As in `GridDecoded`, without drafting.
    """

    tokens: IntArray
    cycles: tuple[RepairCycle, ...]
    passes: tuple[int, ...]


def repair_cycles(
    target: GridTarget, drafter: RowDrafter, rule: CellRule, repair: Repair, rows_per_cycle: int, chance: Chance
) -> Generator[RepairCycle, None, RepairDecoded]:
    """Decode an image `rows_per_cycle` rows at a time, and yield each cycle: draft, verify in one pass, repair.

    Noise is addressed by cell: each is drafted, judged and redrawn at most once. If only its own rejection puts a cell
    into R_X, it is redrawn from the rule's residual under its distribution at that time; other cells of R_X are redrawn
    from the distribution itself. With an exact rule this makes raster rejection exact. Local repair is not exact,
    because kept cells were judged next to tokens that have been replaced (enumerated in `tests/spatial`).

    Args:
        target: The target model.
        drafter: Drafts the rows of each cycle.
        rule: The rule that judges the drafted cells.
        repair: How rejected cells are redrawn.
        rows_per_cycle: Rows drafted in a cycle, 1..height.
        chance: The randomness of the image.

    Raises:
        ValueError: Settings beyond the grid, a draft of a wrong shape, or an invalid distribution.
    """
    grid = target.grid
    repair.check(grid)
    if not 1 <= rows_per_cycle <= grid.height:
        raise ValueError(f"rows_per_cycle: expected 1..{grid.height}, got {rows_per_cycle}")
    canvas = Canvas.begin(target)
    choose = chooser(chance, repair.adaptive, greedy=repair.greedy)
    cycles: list[RepairCycle] = []
    for start in range(0, grid.height, rows_per_cycle):
        rows = range(start, min(start + rows_per_cycle, grid.height))
        draft = drafter.propose(canvas.tokens.copy(), rows, chance)
        _check_draft(draft, len(rows) * grid.width, target.vocab_size)
        cycles.append(verify_and_repair(canvas, rows, draft, rule, repair, choose, chance))
        yield cycles[-1]
    return RepairDecoded(canvas.tokens, tuple(cycles), tuple(canvas.passes))


draft_and_repair = run_to_end(repair_cycles)
"""Decode an image by drafted rows and their repair; see `repair_cycles`."""


def verify_and_repair(
    canvas: Canvas, rows: range, draft: RowDraft, rule: CellRule, repair: Repair, choose: Choose, chance: Chance
) -> RepairCycle:
    """Decide `rows`, given that all cells before are decided, from one draft: one pass to verify, then the repair."""
    grid = canvas.grid
    cells = np.arange(rows.start * grid.width, rows.stop * grid.width)
    drafts = np.full(grid.cells, NO_TOKEN, dtype=np.int64)
    drafts[cells] = draft.tokens
    distributions = canvas.draft_distributions(cells, drafts, np.zeros(grid.cells, dtype=np.int64))
    rejected = np.zeros(grid.cells, dtype=np.bool_)
    for cell, stays in zip(
        cells.tolist(), rule.judge(cells, draft.tokens, draft.distributions, distributions, chance), strict=True
    ):
        rejected[cell] = not stays
        if rejected[cell] and repair.reject == "raster":
            break
    inside = np.zeros(grid.cells, dtype=np.bool_)
    inside[cells] = True
    refused = rejected.reshape(grid)
    region = repair.region(refused) & inside.reshape(grid)
    kept_cells = cells[~region.reshape(-1)[cells]]
    canvas.put_all(kept_cells, drafts[kept_cells])
    canvas.keep()
    from_residual = refused & ~redrawn_anyway(refused, repair.radius)
    in_residual = from_residual.reshape(-1).tolist()
    labels = label_islands(region) if repair.order == "islands" else np.where(region, 0, -1)
    steps: tuple[tuple[int, ...], ...] = ()
    if rejected.any():
        first = int(np.argmax(rejected))
        # Nothing before it has changed since it was verified.
        canvas.precomputed[first] = distributions[first - cells[0]]

        def redraw(front: RowFront, cell: int, distribution: FloatArray) -> int | None:
            if in_residual[cell]:
                weights = rule.residual(
                    cell, int(drafts[cell]), _distribution(draft, cell - int(cells[0])), distribution
                )
                return chance.draw(likeliest(weights) if repair.greedy else weights, At(Role.CELL, cell))
            return choose(front, cell, distribution)

        steps = tuple(settle(canvas, island_fronts(labels, repair.front_window(grid)), redraw))
        if repair.keys == "recompute":
            canvas.recompute(np.arange(first, int(cells[-1]) + 1))
    return RepairCycle(rows, drafts.reshape(grid), refused, region, labels, steps, canvas.tokens.reshape(grid).copy())


def _distribution(draft: RowDraft, place: int) -> FloatArray | None:
    return None if draft.distributions is None else draft.distributions[place]


def _check_draft(draft: RowDraft, count: int, vocab_size: int) -> None:
    tokens = draft.tokens
    if tokens.shape != (count,) or (tokens.min() < 0 or tokens.max() >= vocab_size):
        raise ValueError(f"draft.tokens: expected [{count}] tokens in 0..{vocab_size - 1}, got {tokens.tolist()}")
    if draft.distributions is not None and draft.distributions.shape != (count, vocab_size):
        raise ValueError(f"draft.distributions: expected {(count, vocab_size)}, got {draft.distributions.shape}")
