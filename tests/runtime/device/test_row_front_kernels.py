"""Each kernel of row fronts that differ from image to image, alone, against its NumPy reference."""

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
from tests.strategies import distributions
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, FromUniforms, Role
from underpaint.algos.draft.spec import Grid
from underpaint.algos.spatial.adaptive_window import AdaptiveWindow, Held
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.jacobi_front import JacobiFronts, _Drafts, _judge_row
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.device.kernels.adaptive_fronts import OpeningRows, settle_adaptive
from underpaint.runtime.device.kernels.fronts import FrontPass
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.row_drafts import ROW_ROLES, RowDrafts, lay_drafts, span_rows
from underpaint.runtime.device.kernels.row_verdicts import judge_drafts, settle_drafts
from underpaint.runtime.device.kernels.walk import Verdicts

WIDTH = 3


@dataclass
class Opening:
    """In the place of a `RowFront`: what an adaptive window asks of it."""

    missing: int
    opens: bool
    region: IntArray

    def missing_before(self, cell: int) -> int:
        return self.missing

    def opens_row(self, cell: int) -> bool:
        return self.opens


class Waiting(NamedTuple):
    """A cell of the second row under `row` [V]. held: what stands there, with its own row; None for nothing."""

    row: FloatArray
    column: int
    missing: int
    held: Held | None
    uniforms: tuple[float, float, float]


@st.composite
def waiting(draw: st.DrawFn, vocab_size: int) -> Waiting:
    row, before = (draw(distributions(vocab_size)).astype(np.float32) for _ in range(2))
    column, missing = draw(st.sampled_from([0, 0, 0, 2])), draw(st.integers(0, 2))
    held = None
    if column == 0 and draw(st.booleans()):
        before = row if draw(st.sampled_from([False, False, True])) else before
        token = draw(st.sampled_from(np.flatnonzero(before).tolist()))
        held = Held(token, before.astype(np.float64), draw(st.integers(max(1, missing), 3)))
    return Waiting(row, column, missing, held, tuple(draw(UNIFORMS) for _ in range(3)))


def held_by_reference(one: Waiting) -> tuple[int | None, Held | None]:
    cell = WIDTH + one.column
    at = 2 * (cell * 2 * WIDTH + one.missing)
    known = {At(Role.CELL, cell): 0, At(Role.WINDOW, at): 1, At(Role.WINDOW, at + 1): 2}
    window = AdaptiveWindow(FromUniforms(lambda cycle, at: one.uniforms[known[at]]))
    if one.held is not None:
        window._held[cell] = one.held
    front = Opening(one.missing, one.column == 0, np.zeros(2 * WIDTH))
    token = window(front, cell, one.row.astype(np.float64))
    return token, window._held.get(cell)


def held_by_device(made: list[Waiting]) -> list[tuple[int | None, Held | None]]:
    batch, vocab_size = len(made), made[0].row.size
    column = whole(*(one.column for one in made))
    settled, none = torch.full((batch, 2), -1), torch.zeros(batch, dtype=torch.int64)
    settled[:, 0] = WIDTH + column
    probs, stale = torch.full((batch, 3, vocab_size), 0.5), torch.full((batch, 1, vocab_size), 0.5)
    noise, tested = torch.full((2, batch, 1, 2), 0.5, dtype=torch.float64)
    token, lacked = none + 1, none.clone()
    for image, one in enumerate(made):
        probs[image, 0] = torch.from_numpy(one.row)
        noise[image, 0, 0], tested[image, 0] = one.uniforms[0], torch.tensor(one.uniforms[1:])
        if one.held is not None:
            stale[image, 0] = torch.from_numpy(one.held.distribution)
            token[image], lacked[image] = one.held.token, one.held.missing
    columns = torch.stack([none + WIDTH, column], dim=1)
    missing = whole(*(one.missing for one in made))
    rows = OpeningRows(columns, missing, none, tested, token, lacked, stale)
    decided = torch.full((batch, 2 * WIDTH), -1)
    progress = Progress(none, none, none, none, none, none, decided, none)
    out = FrontPass(settled, settled, settled, settled, settled, settled, none, none)
    verdicts = Verdicts(none, none.clone(), none, none.clone(), torch.ones(batch, 3, dtype=torch.int32))
    settle_adaptive(probs, noise, rows, out, progress, verdicts, WIDTH)
    found = []
    for image, one in enumerate(made):
        made_up = int(decided[image, WIDTH + one.column])
        assert int(columns[image, 1]) == one.column + (made_up >= 0)
        assert (int(settled[image, 0]) >= 0) == (made_up >= 0)
        held = None
        if lacked[image]:
            held = Held(int(token[image]), stale[image, 0].double().numpy(), int(lacked[image]))
        found.append((made_up if made_up >= 0 else None, held))
    assert verdicts.status.tolist() == [0] * batch
    return found


@settings(max_examples=25)
@given(data=st.data())
def test_a_row_s_first_token_is_held_back_and_tested_as_the_reference_does(data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from([2, 3, 5]))
    made = [data.draw(waiting(vocab_size)) for _ in range(3)]
    for one, found in zip(made, held_by_device(made), strict=True):
        token, held = held_by_reference(one)
        assert found[0] == token
        assert (held is None) == (found[1] is None)
        if held is not None and found[1] is not None:
            assert (found[1].token, found[1].missing) == (held.token, held.missing)
            np.testing.assert_array_equal(found[1].distribution, held.distribution)


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
            drawn = one.probs[cell] if draw(st.sampled_from([False, True])) else draw(distributions(vocab_size))
            one.drawn[cell] = drawn.astype(np.float32).astype(np.float64)
            one.drafts[cell] = draw(st.sampled_from(np.flatnonzero(drawn).tolist()))
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
        known = {} if one.columns[0] else {0: self.target.begin()}
        self.canvas = Canvas(self.target, tokens, cached, known, [0])
        self.drafts = _Drafts(one.drafts.copy(), dict(one.drawn))
        self.chance = FromUniforms(lambda cycle, at: float(one.uniforms[ROW_ROLES.index(at.role), at.node]))

    def read(self) -> None:
        grid = self.one.grid
        wanted = np.array([cell for cells in self.one.cells for cell in cells], dtype=np.int64)
        for cells in self.one.cells:
            self.drafts.refill(cells, self.canvas, self.one.fronts.refill, self.chance)
        groups = np.arange(grid.cells) // grid.width
        self.canvas.draft_distributions(wanted, self.drafts.tokens, groups)

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
    found = [cell for cell in sorted(drafts.cells[1].tolist()) if cell >= 0]
    columns = [cell % grid.width for cell in found]
    if found != cells or drafts.tokens[1, columns].tolist() != host.drafts.tokens[found].tolist():
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
    known = device.progress.decided[1].numpy()
    wanted = host.canvas.tokens
    cached = device.out.filled[1].numpy()[PREFIX:] == 1
    cached[device.out.places[1][device.out.places[1] >= 0].numpy() - PREFIX] = True
    settled = device.out.settled[1]
    if not (
        drafts.columns[1].tolist() == reached.tolist()
        and known[decided].tolist() == wanted[decided].tolist()
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
