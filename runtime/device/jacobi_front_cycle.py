"""Parallel Jacobi row fronts on the device (PJD, arXiv 2606.05703): every open row drafts ahead, in one pass.

Rows hold drafts that differ from image to image, and each has a verdict of its own. What a row may draft ends where the
row above is decided, so all rows together draft at most a column each, and a pass has fixed sizes. The reference is
`algos.spatial.jacobi_front.jacobi_fronts`.
"""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi_front import JacobiFronts
from underpaint.runtime.device.cell_cycle import CellCycle
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.front_cycle import FrontCycle, FrontMethod, front_envelope
from underpaint.runtime.device.kernels.cell_uniforms import cell_uniforms
from underpaint.runtime.device.kernels.commit_cells import commit_cells
from underpaint.runtime.device.kernels.fronts import advance_fronts
from underpaint.runtime.device.kernels.row_drafts import ROW_ROLES, RowDrafts, lay_drafts, span_rows
from underpaint.runtime.device.kernels.row_verdicts import judge_drafts, settle_drafts
from underpaint.runtime.device.kernels.tree_meta import MOST_NODES
from underpaint.runtime.device.state import Envelope


class JacobiFrontMethod(NamedTuple):
    """Row fronts that draft ahead by what the target last said of their cells."""

    fronts: JacobiFronts
    sampler: SamplingParams


RowFrontMethod: TypeAlias = FrontMethod | JacobiFrontMethod
"""Methods that decide the rows of a picture side by side, by the target alone."""


def jacobi_front_envelope(fronts: JacobiFronts, grid: Grid) -> Envelope:
    """The sizes of a pass: a position a column, and one for each row but the last, whose newest keys may be missing.

    ValueError for settings beyond the grid, and for a grid whose passes a mask cannot name.
    """
    fronts.check(grid)
    positions = grid.width + grid.height - 1
    if positions > MOST_NODES:
        raise ValueError(
            f"device: drafts of all rows need passes of {positions} positions on a grid of {grid.height} x "
            f"{grid.width}, the device's hold {MOST_NODES}; draw a smaller picture, or on another --backend"
        )
    return Envelope(positions, 0, 1, 1, grid.width)


def row_front_envelope(method: RowFrontMethod, grid: Grid) -> Envelope:
    """The sizes of a method's passes; ValueError where it does not fit the grid."""
    if isinstance(method, FrontMethod):
        return front_envelope(method.window, grid)
    return jacobi_front_envelope(method.fronts, grid)


class JacobiFrontCycle(CellCycle):
    """Drafts of all open rows of a batch; see `CellCycle`."""

    def __init__(
        self,
        target: DeviceDecoder,
        method: JacobiFrontMethod,
        grid: Grid,
        prefix: int,
        batch: int,
        device: torch.device,
    ) -> None:
        super().__init__(target, jacobi_front_envelope(method.fronts, grid), grid, prefix, batch, device)
        self.method, self._alone = method, method.fronts.window == 1 or grid.width == 1
        width, features = grid.width, target.config.dim

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        noise = torch.zeros(batch, len(ROW_ROLES), width, dtype=torch.float64, device=device)
        cells, tokens, kinds, verdicts = (whole(batch, width) for _ in range(4))
        columns, probs = whole(batch, grid.height), self.state.tree.draft_probs
        self._drafts = RowDrafts(columns, cells, tokens, kinds, verdicts, noise, whole(batch), probs)
        self._roles = torch.tensor([int(role) for role in ROW_ROLES], dtype=torch.int64, device=device)
        self._known = torch.zeros(target.rows * batch, 1, features, dtype=target.dtype, device=device)

    def _start(self, features: Tensor) -> None:
        self._drafts.columns.zero_()
        self._drafts.tokens.fill_(-1)
        self._known.copy_(features)
        if self._alone:  # the first cycle drafts the first cell alone, which needs no pass
            self._lay()
            self._decide(features.expand(-1, self.grid.width, -1).contiguous())
        else:
            self.state.progress.cycles.fill_(1)  # the condition's pass counts as one, and draws no noise

    def run(self) -> None:
        self._lay()
        made = self._features()
        begins = (self.state.progress.cells == 0)[:, None, None].repeat(self._target.rows, 1, 1)
        made[:, :1].copy_(torch.where(begins, self._known, made[:, :1]))
        self._decide(made[:, : self.grid.width])

    def _lay(self) -> None:
        state, drafts, fronts = self.state, self._drafts, self.method.fronts
        ahead = 0 if self._alone else 1
        span_rows(state.verdicts.status, state.progress, drafts, self.grid, fronts.lead, fronts.window, ahead)
        cell_uniforms(drafts.uniforms, *state.noise, drafts.cycles, drafts.cells, self._roles)
        lay_drafts(state.progress, drafts, self._pass, self.grid, fronts.refill == "left")

    def _decide(self, features: Tensor) -> None:
        state, out, drafts, probs = self.state, self._pass, self._drafts, self.state.tree.probs
        self._find_probs(features, self.method.sampler)
        judge_drafts(probs, drafts, state.progress, state.verdicts, out, self.method.fronts.redraw == "all")
        settle_drafts(probs, drafts, state.progress, state.verdicts, out)
        commit_cells(state.target_cache.committed, state.target_cache.slots, out.places)
        advance_fronts(out, state.progress, state.verdicts)


def row_front_cycle(
    target: DeviceDecoder, method: RowFrontMethod, grid: Grid, prefix: int, batch: int, device: torch.device
) -> CellCycle:
    """The program of a method."""
    if isinstance(method, FrontMethod):
        return FrontCycle(target, method, grid, prefix, batch, device)
    return JacobiFrontCycle(target, method, grid, prefix, batch, device)
