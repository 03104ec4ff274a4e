"""Parallel Jacobi rows on the device, from one pass to the next, against the NumPy reference."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.runtime.device.test_fronts import PREFIX, Watched
from tests.runtime.device.test_kernels import whole
from tests.runtime.device.trees import UNIFORMS
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, FromUniforms, Role
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.jacobi_front import JacobiFronts, _Drafts, _judge_row
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.device.kernels.fronts import FrontPass
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.row_drafts import ROW_ROLES, RowDrafts, lay_drafts, span_rows
from underpaint.runtime.device.kernels.row_verdicts import judge_drafts, settle_drafts
from underpaint.runtime.device.kernels.walk import Verdicts
from underpaint.strategies import distributions


class Rows(NamedTuple):
    """Rows that are decided up to `columns`, and what they draft; by cell, NO_TOKEN for none.

    cached: whether the last decided cell of each row has its keys. drawn: the distributions of drafts. probs: what the
    target says of each cell. uniforms [R, cells], by `ROW_ROLES`.
    """

    grid: Grid
    fronts: JacobiFronts
    columns: IntArray
    cached: tuple[bool, ...]
    decided: IntArray
    drafts: IntArray
    drawn: dict[int, FloatArray]
    probs: FloatArray
    uniforms: FloatArray

    @property
    def cells(self) -> list[list[int]]:
        spans = self.fronts.spans(self.columns, self.grid.width)
        return [[row * self.grid.width + column for column in span] for row, span in spans.items()]


@st.composite
def rows(draw: st.DrawFn, vocab_size: int) -> Rows:
    """Between two passes of parallel Jacobi rows, as far as they can have come."""
    grid = Grid(draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    lead, window = (draw(st.integers(1, grid.width)) for _ in range(2))
    fronts = JacobiFronts(
        lead, window, draw(st.sampled_from(["uniform", "left"])), draw(st.sampled_from(["top", "all"]))
    )
    columns, above = np.zeros(grid.height, dtype=np.int64), grid.width
    for row in range(grid.height):
        columns[row] = draw(st.integers(0, above)) if row == 0 or above >= lead else 0
        above = int(columns[row])
    one = Rows(
        grid,
        fronts,
        columns,
        tuple(draw(st.booleans()) for _ in range(grid.height)),
        np.array([draw(st.integers(0, vocab_size - 1)) for _ in range(grid.cells)]),
        np.full(grid.cells, NO_TOKEN, dtype=np.int64),
        {},
        np.stack([draw(distributions(vocab_size)) for _ in range(grid.cells)]).astype(np.float32),
        np.array([draw(UNIFORMS) for _ in range(4 * grid.cells)]).reshape(4, grid.cells),
    )
    for cells in one.cells:
        for cell in cells[: draw(st.integers(0, len(cells)))]:
            distribution = one.probs[cell] if draw(st.sampled_from([False, True])) else draw(distributions(vocab_size))
            one.drawn[cell] = distribution.astype(np.float32).astype(np.float64)
            one.drafts[cell] = draw(st.sampled_from(np.flatnonzero(distribution).tolist()))
    return one


@dataclass
class Host:
    """The reference, from a pass to the next."""

    one: Rows

    def __post_init__(self) -> None:
        one, grid = self.one, self.one.grid
        tokens = np.full(grid.cells, NO_TOKEN, dtype=np.int64)
        cached = np.zeros(grid.cells, dtype=np.bool_)
        for row, count in enumerate(one.columns.tolist()):
            start = row * grid.width
            tokens[start : start + count] = one.decided[start : start + count]
            cached[start : start + count] = True
            if count:
                cached[start + count - 1] = one.cached[row]
        vocab_size = one.probs.shape[1]
        self.target = Watched(grid, vocab_size)
        known_rows = {} if one.columns[0] else {0: self.target.begin()}
        self.canvas = Canvas(self.target, tokens, cached, known_rows, [0])
        self.drafts = _Drafts(one.drafts.copy(), dict(one.drawn))
        self.chance = FromUniforms(lambda cycle, at: float(one.uniforms[ROW_ROLES.index(at.role), at.node]))

    def read(self) -> None:
        grid = self.one.grid
        all_cells = np.array([cell for cells in self.one.cells for cell in cells], dtype=np.int64)
        for cells in self.one.cells:
            self.drafts.refill(cells, self.canvas, self.one.fronts.refill, self.chance)
        groups = np.arange(grid.cells) // grid.width
        self.canvas.draft_distributions(all_cells, self.drafts.tokens, groups)

    def judge(self) -> None:
        every, distributions = self.one.cells, dict(enumerate(self.one.probs.astype(np.float64)))
        decided = []
        for cells in every:
            redraws = self.one.fronts.redraw == "all" or cells is every[0]
            decided += _judge_row(cells, distributions, self.drafts, self.canvas, redraws, self.chance)
        self.canvas.keep()
        for cell in {cell for cells in every for cell in cells} - set(decided):
            self.drafts.tokens[cell] = self.chance.draw(distributions[cell], At(Role.DRAFT, cell))
            self.drafts.distributions[cell] = distributions[cell]


class Device:
    """The kernels, on a batch of one such state and one that is done; what is unused is filled with rubbish."""

    def __init__(self, one: Rows) -> None:
        grid, vocab_size = one.grid, one.probs.shape[1]
        self.one, count = one, grid.width + grid.height - 1

        def wide(*shape: int) -> Tensor:
            return torch.full((2, *shape), 9)

        none = torch.zeros(2, dtype=torch.int64)
        filled = torch.ones(2, PREFIX + grid.cells, dtype=torch.int32)
        for row, reached in enumerate(one.columns.tolist()):
            start = PREFIX + row * grid.width
            filled[1, start + reached : start + grid.width] = 0
            if reached:
                filled[1, start + reached - 1] = int(one.cached[row])
        self.out = FrontPass(*(wide(count) for _ in range(6)), none.clone(), filled)
        columns = torch.stack([torch.full((grid.height,), grid.width), torch.from_numpy(one.columns)])
        drafts, kinds, stale = wide(grid.width), wide(grid.width), torch.full((2, grid.width, vocab_size), 0.5)
        drafts.fill_(-1)
        for cell, row in one.drawn.items():
            drafts[1, cell % grid.width], kinds[1, cell % grid.width] = int(one.drafts[cell]), 2
            stale[1, cell % grid.width] = torch.from_numpy(row)
        noise = torch.zeros(2, 4, grid.width, dtype=torch.float64)
        cells, verdicts = wide(grid.width), wide(grid.width)
        self.drafts = RowDrafts(columns, cells, drafts, kinds, verdicts, noise, none.clone(), stale)
        decided = torch.from_numpy(one.decided).repeat(2, 1)
        self.progress = Progress(none, none + 4, none, none + PREFIX, none, none, decided, none)
        status, finite = whole(1, 0), torch.ones(2, count + grid.width, dtype=torch.int32)
        self.verdicts = Verdicts(none, none.clone(), none, status, finite)
        self.probs = torch.full((2, count, vocab_size), 0.5)

    def read(self) -> None:
        one, drafts = self.one, self.drafts
        span_rows(self.verdicts.status, self.progress, drafts, one.grid, one.fronts.lead, one.fronts.window, 1)
        for column, cell in enumerate(drafts.cells[1].tolist()):
            if cell >= 0:
                drafts.uniforms[1, :, column] = torch.from_numpy(one.uniforms[:, cell])
                self.probs[1, column] = torch.from_numpy(one.probs[cell])
        lay_drafts(self.progress, drafts, self.out, one.grid, one.fronts.refill == "left")

    def judge(self) -> None:
        judge_drafts(self.probs, self.drafts, self.progress, self.verdicts, self.out, self.one.fronts.redraw == "all")
        settle_drafts(self.probs, self.drafts, self.progress, self.verdicts, self.out)


def reads_alike(host: Host, device: Device) -> bool:
    grid, drafts = host.one.grid, device.drafts
    cells = sorted(cell for row in host.one.cells for cell in row)
    device_cells = [cell for cell in sorted(drafts.cells[1].tolist()) if cell >= 0]
    columns = [cell % grid.width for cell in device_cells]
    if device_cells != cells or drafts.tokens[1, columns].tolist() != host.drafts.tokens[device_cells].tolist():
        return False
    out = FrontPass(*(part[1].numpy() for part in device.out))
    lanes = np.flatnonzero((out.places >= 0) | (out.settled > 0))
    lanes = lanes[out.positions[lanes].argsort()]
    if not host.target.feeds:
        return lanes.size == 0
    feed = host.target.feeds[0]
    seen = (out.masks[lanes, None] >> lanes[None, :]) & 1 == 1
    place = PREFIX + np.arange(grid.cells)
    past = (out.filled[PREFIX:] == 1) & (place < np.minimum(out.bounds[lanes], out.extents)[:, None])
    return (
        out.positions[lanes].tolist() == feed.cells.tolist()
        and out.tokens[lanes].tolist() == feed.tokens.tolist()
        and np.array_equal(seen, feed.visible)
        and np.array_equal(past, feed.cached)
        and (drafts.cells[0] < 0).all().item()
        and (device.out.places[0] < 0).all().item()
        and drafts.cycles.tolist() == [3, 3]
    )


def judged_alike(host: Host, device: Device) -> bool:
    grid, drafts, decided = host.one.grid, device.drafts, host.canvas.decided
    reached = decided.reshape(grid).sum(axis=1)
    device_tokens = device.progress.decided[1].numpy()
    host_tokens = host.canvas.tokens
    cached = device.out.filled[1].numpy()[PREFIX:] == 1
    cached[device.out.places[1][device.out.places[1] >= 0].numpy() - PREFIX] = True
    settled = device.out.settled[1]
    if not (
        drafts.columns[1].tolist() == reached.tolist()
        and device_tokens[decided].tolist() == host_tokens[decided].tolist()
        and np.array_equal(cached, host.canvas.cached)
        and int((settled >= 0).sum()) == reached.sum() - host.one.columns.sum()
        and device.verdicts.status.tolist() == [1, 0]
    ):
        return False
    for column, cell in enumerate(drafts.cells[1].tolist()):
        token = int(drafts.tokens[1, column])
        if cell < 0 or decided[cell]:
            if token >= 0:
                return False
            continue
        row = drafts.probs[1, column].double().numpy()
        if token != host.drafts.tokens[cell] or int(drafts.kinds[1, column]) != 2:
            return False
        if not np.array_equal(row, host.drafts.distributions[cell]):
            return False
    return True


@settings(max_examples=25)
@given(data=st.data())
def test_rows_draft_are_read_and_judged_as_the_reference_does(data: st.DataObject) -> None:
    one = data.draw(rows(data.draw(st.sampled_from([2, 3, 5]))))
    if not one.cells:
        return
    host, device = Host(one), Device(one)
    host.read()
    device.read()
    assert reads_alike(host, device)
    host.judge()
    device.judge()
    assert judged_alike(host, device)
