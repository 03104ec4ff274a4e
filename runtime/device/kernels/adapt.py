"""ADT-Tree's adaptation on the device: the depth and width of the next tree, as in `algos.draft.adt`."""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.launch import kernel, tl


class AdaptState(NamedTuple):
    """The sizes and acceptances of each image's earlier trees.

    depths, widths [B, cells + 1] int64 and accepted [B, cells + 1] float64: of the tree that decided each cell, and, as
    the last entry, of the last tree. Depth 0: no tree decided the cell. Acceptance below 0: no tree was verified.
    """

    depths: Tensor
    widths: Tensor
    accepted: Tensor


class AdaptSettings(NamedTuple):
    """The settings of `algos.draft.adt.AdtTree` as numbers; a choice of two is 1 or 0.

    Attributes:
        beta: The acceptance from which the next tree is deeper and narrower, [1] float64.
        row: Cells per row.
        ratio: Whether acceptance is divided by the depth of the verified tree.
        vertical: Whether to adapt the upper cell's state instead of the last tree's.
        of_last: Whether the acceptance is always that of the last tree.
        step_depth: Change of the depth, in levels.
        step_width: Change of the width.
        start_depth: The depth of the start state, in levels.
        start_width: The width of the start state.
        least_depth: The least depth, in levels.
        least_width: The least width.
        most_depth: The greatest depth, in levels.
        most_width: The greatest width.
        total: Drafted nodes of a tree; if `proportional`, of a tree with the start depth and width.
        proportional: Whether the number of drafted nodes is proportional to depth * width.
    """

    beta: Tensor
    row: int
    ratio: int
    vertical: int
    row_start: int
    """0: start a row from the last tree's state; 1: from the upper cell's; 2: from the start state."""
    of_last: int
    step_depth: int
    step_width: int
    start_depth: int
    start_width: int
    least_depth: int
    least_width: int
    most_depth: int
    most_width: int
    total: int
    proportional: int


class Adapting(NamedTuple):
    """The memory and the settings of an adaptation, and the [B] int64 limits of the next tree that it sets."""

    state: AdaptState
    how: AdaptSettings
    depths: Tensor
    widths: Tensor
    totals: Tensor


@kernel
def adapt(adapting, accepted, cell, size, deepest, image, most_cells, most_nodes, LANES: tl.constexpr):
    """Learn from an image's verdict, and set the limits of its next tree; called by `commit.advance_kernel`.

    accepted: number of accepted draft tokens, below LANES. cell: first undecided cell. size, deepest: nodes (with the
    root) and levels of the verified tree. most_nodes: most drafted nodes of a tree.
    """
    state, how = adapting.state, adapting.how
    base = image * (most_cells + 1)
    last = base + most_cells
    grown = size > 1  # a tree without draft tokens does not change the state
    taken = accepted.to(tl.float64)
    taken = tl.where(how.ratio == 1, taken / tl.maximum(deepest, 1).to(tl.float64), taken)
    last_depth = tl.where(grown, tl.load(adapting.depths + image), tl.load(state.depths + last))
    last_width = tl.where(grown, tl.load(adapting.widths + image), tl.load(state.widths + last))
    last_share = tl.where(grown, taken, tl.load(state.accepted + last))
    turn = tl.arange(0, LANES)
    decided = cell - accepted - 1 + turn
    inside = (turn <= accepted) & (decided < most_cells)
    tl.store(state.depths + base + decided, last_depth + turn * 0, inside)
    tl.store(state.widths + base + decided, last_width + turn * 0, inside)
    tl.store(state.accepted + base + decided, last_share + turn * 0.0, inside)
    tl.debug_barrier()
    tl.store(state.depths + last, last_depth)
    tl.store(state.widths + last, last_width)
    tl.store(state.accepted + last, last_share)
    above = tl.maximum(cell - how.row, 0)
    known = (cell >= how.row) & (above < most_cells)
    up_depth = tl.load(state.depths + base + above, known, other=0)
    up_width = tl.load(state.widths + base + above, known, other=0)
    up_share = tl.load(state.accepted + base + above, known, other=-1.0)
    begins = (how.vertical == 0) & (how.row_start > 0) & (cell % how.row == 0)
    upper = (up_depth > 0) & ((how.vertical == 1) | (begins & (how.row_start == 1)))
    depth = tl.where(upper, up_depth, tl.where(begins, how.start_depth, last_depth))
    width = tl.where(upper, up_width, tl.where(begins, how.start_width, last_width))
    share = tl.where(upper, up_share, tl.where(begins, -1.0, last_share))
    share = tl.where(how.of_last == 1, last_share, share)
    sign = tl.where(share < 0.0, 0, tl.where(share >= tl.load(how.beta), 1, -1))
    deeper = tl.minimum(tl.maximum(depth + sign * how.step_depth, how.least_depth), how.most_depth)
    wider = tl.minimum(tl.maximum(width - sign * how.step_width, how.least_width), how.most_width)
    depth, width = tl.where(sign == 0, depth, deeper), tl.where(sign == 0, width, wider)
    tl.store(adapting.depths + image, depth)
    tl.store(adapting.widths + image, width)
    parts = how.start_depth * how.start_width
    total = (how.total * (depth * width).to(tl.int32) + parts - 1) // parts
    follows = (tl.full((), 0, tl.int32) + how.proportional) == 1
    tl.store(adapting.totals + image, tl.minimum(total, most_nodes).to(tl.int64), follows)
