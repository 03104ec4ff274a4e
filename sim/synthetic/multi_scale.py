"""Table models for the spatial methods: a grid target, the coarse version of a table model, and rows drafted from
it."""

import dataclasses
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role, sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.cell_rule import PooledCells
from underpaint.algos.spatial.mulo import Repair, RowDraft, draft_and_repair
from underpaint.algos.spatial.target import Feed
from underpaint.algos.spatial.zipar import zipar
from underpaint.algos.tree import NO_TOKEN
from underpaint.sim.latency.models import Costs
from underpaint.sim.synthetic.table_model import TableModel, TableModelImage


@dataclass(slots=True)
class TableGridTarget(TableModelImage):
    """A `GridTarget` of tables: a cell's distribution reads the left and upper tokens that it is shown."""

    _tokens: IntArray = field(init=False)
    _last: Feed | None = None

    def __post_init__(self) -> None:
        self._tokens = np.full(self.model.grid.cells, NO_TOKEN, dtype=np.int64)

    def begin(self) -> FloatArray:
        self._tokens[:] = NO_TOKEN
        none = np.array([NO_TOKEN])
        first: FloatArray = self.model.target[self._rows(np.array([0]), none, none)][0]
        return first

    def score(self, feed: Feed) -> FloatArray:
        self._last = feed
        width, last = self.grid.width, self.grid.cells - 1
        upper = np.full(feed.cells.size, NO_TOKEN, dtype=np.int64)
        for row, cell in enumerate(feed.cells.tolist()):
            above = cell + 1 - width
            if above < 0:
                continue
            new = np.flatnonzero((feed.cells == above) & feed.visible[row])
            if new.size:
                upper[row] = feed.tokens[new[0]]
            elif feed.cached[row, above]:
                upper[row] = self._tokens[above]
        distributions: FloatArray = self.model.target[self._rows(np.minimum(feed.cells + 1, last), feed.tokens, upper)]
        return distributions

    def commit(self, rows: IntArray) -> None:
        if self._last is None:
            raise RuntimeError("grid target: commit without a pass")
        self._tokens[self._last.cells[rows]] = self._last.tokens[rows]

    def _rows(self, cells: IntArray, before: IntArray, upper: IntArray) -> IntArray:
        return self.model.rows(np.array(self.image % self.model.images), cells, before, upper)


def coarse(model: TableModel, factor: int = 2) -> TableModel:
    """The model at a lower resolution: a coarse cell has the contexts of the middle one of its factor^2 cells.

    Raises ValueError where the grid does not divide.
    """
    height, width = model.grid
    if factor < 1 or height % factor or width % factor:
        raise ValueError(f"coarse: expected a factor that divides {height} and {width}, got {factor}")
    middle = factor // 2
    starts = model.starts.reshape(model.images, height, width)[:, middle::factor, middle::factor]
    grid = Grid(height // factor, width // factor)
    small = np.ascontiguousarray(starts).reshape(model.images, grid.cells)
    return dataclasses.replace(model, name=f"{model.name}/{factor}", grid=grid, starts=small)


@dataclass(slots=True)
class CoarseRows:
    """A `RowDrafter`: the coarse model's target draws rows, and each code fills its factor^2 cells.

    The coarse image starts from the fine one as decided so far, each coarse cell taking the middle one of its cells.
    """

    model: TableModel
    image: int
    factor: int = 2
    passes: int = 0
    """Coarse target passes so far."""
    _small: TableModel = field(init=False)

    def __post_init__(self) -> None:
        self._small = coarse(self.model, self.factor)

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        """ValueError unless the rows are whole coarse ones."""
        factor, (height, width) = self.factor, self.model.grid
        if rows.start % factor or rows.stop % factor:
            raise ValueError(f"coarse rows: expected rows in steps of {factor}, got {rows}")
        middle = factor // 2
        small = tokens.reshape(height, width)[middle::factor, middle::factor].copy()
        columns = self._small.grid.width
        for row in range(rows.start // factor, rows.stop // factor):
            for column in range(columns):
                cell = row * columns + column
                before = small[row, column - 1] if column else NO_TOKEN
                above = small[row - 1, column] if row else NO_TOKEN
                at = self._small.rows(
                    np.array(self.image % self.model.images), np.array(cell), np.array(before), np.array(above)
                )
                small[row, column] = chance.draw(self._small.target[int(at)], At(Role.DRAFT, cell))
                self.passes += 1
        drawn = small[rows.start // factor : rows.stop // factor]
        return RowDraft(np.repeat(np.repeat(drawn, factor, axis=0), factor, axis=1).reshape(-1))


class Spatial(NamedTuple):
    """A spatial method on some images. passes: target passes an image; coarse_passes: of the low resolution.

    kept: the share of drafted cells that stay; 0 where nothing is drafted. speedup: against plain autoregression.
    """

    passes: float
    coarse_passes: float
    kept: float
    speedup: float


def run_zipar(model: TableModel, costs: Costs, window: int, images: int, seed: int) -> Spatial:
    """ZipAR with a fixed window (arXiv 2412.04062) on images 0.. of a table model."""
    found = []
    for image in range(images):
        done = zipar(TableGridTarget(model, image), window, sampling(seed, image))
        found.append((done.passes, 0, 0.0))
    return _spatial_result(model, costs, found)


def run_mulo(
    model: TableModel, costs: Costs, tau: float, k: int, repair: Repair, rows_per_cycle: int, images: int, seed: int
) -> Spatial:
    """Draft small, verify large, repair locally (arXiv 2601.05149) on images 0.. of a table model.

    The coarse model is as large as the fine one, so its passes cost a plain step each; up-sampling is free.
    """
    near = nearest_codes(model.codebook, k)
    found = []
    for image in range(images):
        drafter = CoarseRows(model, image)
        rule = PooledCells(near, tau)
        target = TableGridTarget(model, image)
        done = draft_and_repair(target, drafter, rule, repair, rows_per_cycle, sampling(seed, image))
        redrawn = sum(int(cycle.region.sum()) for cycle in done.cycles)
        found.append((done.passes, drafter.passes, 1.0 - redrawn / model.grid.cells))
    return _spatial_result(model, costs, found)


def _spatial_result(model: TableModel, costs: Costs, found: list[tuple[tuple[int, ...], int, float]]) -> Spatial:
    one = float(costs.verify_ms(np.array([1]))[0])
    total = 0.0
    for passes, drafted, _ in found:
        sizes = np.maximum(np.array(passes, dtype=np.int64), 1)
        total += float(costs.verify_ms(sizes).sum()) + drafted * one
    return Spatial(
        passes=float(np.mean([len(passes) for passes, _, _ in found])),
        coarse_passes=float(np.mean([drafted for _, drafted, _ in found])),
        kept=float(np.mean([kept for _, _, kept in found])),
        speedup=len(found) * model.grid.cells * one / total,
    )
