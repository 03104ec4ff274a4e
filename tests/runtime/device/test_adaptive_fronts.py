"""A row's first token, held back and tested on the device as the NumPy reference does."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.test_kernels import whole
from tests.runtime.device.trees import UNIFORMS
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, FromUniforms, Role
from underpaint.algos.spatial.adaptive_window import AdaptiveWindow, PendingToken
from underpaint.runtime.device.kernels.adaptive_fronts import OpeningRows, settle_adaptive
from underpaint.runtime.device.kernels.fronts import FrontPass
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.walk import Verdicts
from underpaint.strategies import distributions

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
    held: PendingToken | None
    uniforms: tuple[float, float, float]


@st.composite
def waiting(draw: st.DrawFn, vocab_size: int) -> Waiting:
    row, before = (draw(distributions(vocab_size)).astype(np.float32) for _ in range(2))
    column, missing = draw(st.sampled_from([0, 0, 0, 2])), draw(st.integers(0, 2))
    held_token = None
    if column == 0 and draw(st.booleans()):
        before = row if draw(st.sampled_from([False, False, True])) else before
        token = draw(st.sampled_from(np.flatnonzero(before).tolist()))
        held_token = PendingToken(token, before.astype(np.float64), draw(st.integers(max(1, missing), 3)))
    return Waiting(row, column, missing, held_token, tuple(draw(UNIFORMS) for _ in range(3)))


def held_by_reference(one: Waiting) -> tuple[int | None, PendingToken | None]:
    cell = WIDTH + one.column
    at = 2 * (cell * 2 * WIDTH + one.missing)
    uniform_index = {At(Role.CELL, cell): 0, At(Role.WINDOW, at): 1, At(Role.WINDOW, at + 1): 2}
    window = AdaptiveWindow(FromUniforms(lambda cycle, at: one.uniforms[uniform_index[at]]))
    if one.held is not None:
        window._pending[cell] = one.held
    front = Opening(one.missing, one.column == 0, np.zeros(2 * WIDTH))
    token = window(front, cell, one.row.astype(np.float64))
    return token, window._pending.get(cell)


def held_by_device(cases: list[Waiting]) -> list[tuple[int | None, PendingToken | None]]:
    batch, vocab_size = len(cases), cases[0].row.size
    column = whole(*(one.column for one in cases))
    settled, none = torch.full((batch, 2), -1), torch.zeros(batch, dtype=torch.int64)
    settled[:, 0] = WIDTH + column
    probs, stale = torch.full((batch, 3, vocab_size), 0.5), torch.full((batch, 1, vocab_size), 0.5)
    noise, tested = torch.full((2, batch, 1, 2), 0.5, dtype=torch.float64)
    token, lacked = none + 1, none.clone()
    for image, one in enumerate(cases):
        probs[image, 0] = torch.from_numpy(one.row)
        noise[image, 0, 0], tested[image, 0] = one.uniforms[0], torch.tensor(one.uniforms[1:])
        if one.held is not None:
            stale[image, 0] = torch.from_numpy(one.held.distribution)
            token[image], lacked[image] = one.held.token, one.held.missing
    columns = torch.stack([none + WIDTH, column], dim=1)
    missing = whole(*(one.missing for one in cases))
    rows = OpeningRows(columns, missing, none, tested, token, lacked, stale)
    decided = torch.full((batch, 2 * WIDTH), -1)
    progress = Progress(none, none, none, none, none, none, decided, none)
    out = FrontPass(settled, settled, settled, settled, settled, settled, none, none)
    verdicts = Verdicts(none, none.clone(), none, none.clone(), torch.ones(batch, 3, dtype=torch.int32))
    settle_adaptive(probs, noise, rows, out, progress, verdicts, WIDTH)
    outcomes = []
    for image, one in enumerate(cases):
        made_up = int(decided[image, WIDTH + one.column])
        assert int(columns[image, 1]) == one.column + (made_up >= 0)
        assert (int(settled[image, 0]) >= 0) == (made_up >= 0)
        held_token = None
        if lacked[image]:
            held_token = PendingToken(int(token[image]), stale[image, 0].double().numpy(), int(lacked[image]))
        outcomes.append((made_up if made_up >= 0 else None, held_token))
    assert verdicts.status.tolist() == [0] * batch
    return outcomes


@settings(max_examples=25)
@given(data=st.data())
def test_a_row_s_first_token_is_held_back_and_tested_as_the_reference_does(data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from([2, 3, 5]))
    cases = [data.draw(waiting(vocab_size)) for _ in range(3)]
    for one, actual in zip(cases, held_by_device(cases), strict=True):
        token, expected_held = held_by_reference(one)
        assert actual[0] == token
        assert (expected_held is None) == (actual[1] is None)
        if expected_held is not None and actual[1] is not None:
            assert (actual[1].token, actual[1].missing) == (expected_held.token, expected_held.missing)
            np.testing.assert_array_equal(actual[1].distribution, expected_held.distribution)
