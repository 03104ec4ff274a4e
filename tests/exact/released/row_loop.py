"""ZipAR's released loop for LlamaGen, written anew for tests: which cell each pass decides, and what opens a row."""

from typing import NamedTuple

from underpaint.algos.protocols import Grid


class ReleasedRows(NamedTuple):
    """passes: target passes, the first row's included.

    row_starts: for each row from 2 on, the cell (row, column) whose token is fed in place of the missing left
        neighbour of the row's first cell.
    """

    passes: int
    row_starts: tuple[tuple[int, int], ...]


def released_rows(grid: Grid, window: int) -> ReleasedRows:
    """The passes of one image. The first row is decoded alone, and the second from its last token on.

    A later row opens in the pass after the row above has `window` tokens. Its first cell is fed the last token so far
    of the row above that one. window: 2..width - 1, as the loop does not end, or not in raster order, at the edges.
    """
    if not 1 < window < grid.width:
        raise ValueError(f"released_rows: window must be in 2..{grid.width - 1}, got {window}")
    done, starts, passes, open_rows = [grid.width] + [0] * (grid.height - 1), list[tuple[int, int]](), grid.width, [1]
    while open_rows:
        passes += 1
        for row in tuple(open_rows):
            done[row] += 1
            if done[row] == window and row + 1 < grid.height:
                open_rows.append(row + 1)
                starts.append((row - 1, done[row - 1] - 1))
        open_rows = [row for row in open_rows if done[row] < grid.width]
    return ReleasedRows(passes, tuple(starts))
