"""ADT-Tree's adaptation on the device: the next tree's depth and width, as `algos.draft.adt`."""

from typing import NamedTuple

from torch import Tensor

from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl


class AdaptState(NamedTuple):
    """What an image remembers of its trees.

    depths, widths [B, cells + 1] int64 and accepted [B, cells + 1] float64: of the tree that decided a cell, the last
    place that of the last tree; a depth of 0: no tree did; an acceptance below 0: nothing was verified.
    """

    depths: Tensor
    widths: Tensor
    accepted: Tensor


class AdaptSettings(NamedTuple):
    """`algos.draft.adt.AdtTree`'s settings. start, least, most: (depth, width) each."""

    beta: float
    ratio: bool
    vertical: bool
    row_start: int
    """0 carries the last tree's state on, 1 takes the upper cell's, 2 the start state."""
    of_last: bool
    steps: tuple[int, int]
    start: tuple[int, int]
    least: tuple[int, int]
    most: tuple[int, int]
    total: int
    proportional: bool


@kernel
def adapt_kernel(
    held_depths,
    held_widths,
    held_accepted,
    node_depths,
    counts,
    taken,
    cells,
    depths,
    widths,
    totals,
    beta,
    row,
    N,
    most_cells,
    most_nodes,
    RATIO: tl.constexpr,
    VERTICAL: tl.constexpr,
    ROW_START: tl.constexpr,
    OF_LAST: tl.constexpr,
    STEP_DEPTH: tl.constexpr,
    STEP_WIDTH: tl.constexpr,
    START_DEPTH: tl.constexpr,
    START_WIDTH: tl.constexpr,
    LEAST_DEPTH: tl.constexpr,
    LEAST_WIDTH: tl.constexpr,
    MOST_DEPTH: tl.constexpr,
    MOST_WIDTH: tl.constexpr,
    TOTAL: tl.constexpr,
    PROPORTIONAL: tl.constexpr,
    NODES: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """One program an image, after its progress has advanced."""
    image = tl.program_id(0)
    accepted = tl.load(taken + image) - 1
    if accepted < 0:
        return
    base = image * (most_cells + 1)
    cell = tl.load(cells + image)
    lane = tl.arange(0, NODES)
    size = tl.load(counts + image)
    deepest = tl.max(tl.load(node_depths + image * N + lane, lane < size, other=0), axis=0)
    last_depth = tl.load(held_depths + base + most_cells)
    last_width = tl.load(held_widths + base + most_cells)
    last_share = tl.load(held_accepted + base + most_cells)
    if size > 1:
        last_depth = tl.load(depths + image)
        last_width = tl.load(widths + image)
        last_share = accepted.to(tl.float64)
        if RATIO:
            last_share = last_share / deepest.to(tl.float64)
    turn = tl.arange(0, LANES)
    decided = cell - accepted - 1 + turn
    inside = (turn <= accepted) & (decided < most_cells)
    tl.store(held_depths + base + decided, last_depth + turn * 0, inside)
    tl.store(held_widths + base + decided, last_width + turn * 0, inside)
    tl.store(held_accepted + base + decided, last_share + turn * 0.0, inside)
    tl.debug_barrier()
    tl.store(held_depths + base + most_cells, last_depth)
    tl.store(held_widths + base + most_cells, last_width)
    tl.store(held_accepted + base + most_cells, last_share)
    above = tl.maximum(cell - row, 0)
    known = (cell >= row) & (above < most_cells)
    up_depth = tl.load(held_depths + base + above, known, other=0)
    up_width = tl.load(held_widths + base + above, known, other=0)
    up_share = tl.load(held_accepted + base + above, known, other=-1.0)
    depth, width, share = last_depth, last_width, last_share
    if VERTICAL:
        depth = tl.where(up_depth > 0, up_depth, last_depth)
        width = tl.where(up_depth > 0, up_width, last_width)
        share = tl.where(up_depth > 0, up_share, last_share)
    elif ROW_START > 0:
        begins = cell % row == 0
        from_above = begins & (up_depth > 0) & (ROW_START == 1)
        depth = tl.where(from_above, up_depth, tl.where(begins, START_DEPTH, last_depth))
        width = tl.where(from_above, up_width, tl.where(begins, START_WIDTH, last_width))
        share = tl.where(from_above, up_share, tl.where(begins, -1.0, last_share))
    if OF_LAST:
        share = last_share
    good = share >= beta
    deeper = tl.where(good, depth + STEP_DEPTH, depth - STEP_DEPTH)
    wider = tl.where(good, width - STEP_WIDTH, width + STEP_WIDTH)
    deeper = tl.minimum(tl.maximum(deeper, LEAST_DEPTH), MOST_DEPTH)
    wider = tl.minimum(tl.maximum(wider, LEAST_WIDTH), MOST_WIDTH)
    depth = tl.where(share < 0.0, depth, deeper)
    width = tl.where(share < 0.0, width, wider)
    tl.store(depths + image, depth)
    tl.store(widths + image, width)
    if PROPORTIONAL:
        parts: tl.constexpr = START_DEPTH * START_WIDTH
        total = (TOTAL * depth * width + parts - 1) // parts
        tl.store(totals + image, tl.minimum(total, most_nodes))


def adapt(
    state: AdaptState,
    settings: AdaptSettings,
    node_depths: Tensor,
    counts: Tensor,
    taken: Tensor,
    cells: Tensor,
    depths: Tensor,
    widths: Tensor,
    totals: Tensor,
    row: int,
) -> None:
    """Learn from a verdict and set depths, widths and totals [B] int64 of the next tree.

    node_depths [B, N], counts [B] int64: of the verified tree; taken [B]: see `walk`; cells [B]: after the commit.
    row: cells of a row of the picture.
    """
    batch, nodes = node_depths.shape
    launch(
        adapt_kernel,
        (batch,),
        8 * batch * (nodes + 40),
        *state,
        node_depths,
        counts,
        taken,
        cells,
        depths,
        widths,
        totals,
        settings.beta,
        row,
        nodes,
        state.depths.shape[1] - 1,
        nodes - 1,
        RATIO=settings.ratio,
        VERTICAL=settings.vertical,
        ROW_START=settings.row_start,
        OF_LAST=settings.of_last,
        STEP_DEPTH=settings.steps[0],
        STEP_WIDTH=settings.steps[1],
        START_DEPTH=settings.start[0],
        START_WIDTH=settings.start[1],
        LEAST_DEPTH=settings.least[0],
        LEAST_WIDTH=settings.least[1],
        MOST_DEPTH=settings.most[0],
        MOST_WIDTH=settings.most[1],
        TOTAL=settings.total,
        PROPORTIONAL=settings.proportional,
        NODES=next_power_of_2(max(2, nodes)),
        LANES=next_power_of_2(max(2, nodes)),
        warps=1,
    )
