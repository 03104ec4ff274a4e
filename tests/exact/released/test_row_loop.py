"""ZipAR's released loop beside `zipar`: its passes, and the token that stands at a row's start."""

import numpy as np
import pytest

from tests.exact.released.row_loop import released_rows
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.row_front import RowFront, front_steps, schedule

SQUARES = [(width, window) for width in (3, 4, 5, 6, 8, 24, 32) for window in range(2, width)]


@pytest.mark.parametrize(("width", "window"), SQUARES)
def test_zipar_takes_a_row_more_than_ours_less_a_window(width: int, window: int) -> None:
    """ThisisBillhe/ZipAR, `generate`: the first row is decoded alone, so 2 W + (H - 2) s passes, not W + (H - 1) s."""
    grid = Grid(width, width)
    released, ours = released_rows(grid, window).passes, front_steps(grid, window)
    assert released == 2 * width + (width - 2) * window
    assert ours == width + (width - 1) * window == released - (width - window)


@pytest.mark.parametrize(("width", "window"), [(4, 2), (5, 2), (6, 3)])
def test_ours_takes_the_passes_it_states(width: int, window: int) -> None:
    grid = Grid(width, width)
    front = RowFront.over(np.ones(grid, dtype=np.bool_), window)
    assert len(schedule([front])) == front_steps(grid, window)


def test_zipar_as_its_authors_count() -> None:
    """The paper reports 185 passes for LlamaGen at 32 x 32; the formula of the released loop has 64 + 30 s."""
    assert [released_rows(Grid(32, 32), window).passes for window in (4, 5, 8)] == [184, 214, 304]
    assert [front_steps(Grid(32, 32), window) for window in (4, 5, 8)] == [156, 187, 280]


@pytest.mark.parametrize(("width", "window"), SQUARES)
def test_a_row_starts_from_the_row_two_above(width: int, window: int) -> None:
    """`decode_n_tokens_zipar`: `row_token_num[:ongoing_row_list[i]]` ends one row before the row that has just come to
    `window` tokens, and so two rows above the row that it opens."""
    starts = released_rows(Grid(width, width), window).row_starts
    assert [row for row, _ in starts] == list(range(width - 2))
    assert starts[0] == (0, width - 1)
    assert all(column == min(2 * window, width) - 1 for _, column in starts[1:])
