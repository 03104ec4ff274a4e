"""Row fronts on the device: several rows are decoded at once, each behind the row above (ZipAR, PJD).

ZipAR: with a fixed window, all images take the same steps. With an adaptive window, each image opens its rows at its
own steps. The reference is `algos.spatial.zipar.zipar`.

PJD: the drafts of a row differ between images, and each draft has its own verdict. A row drafts only up to the column
that the row above has decided. So all rows together draft each column at most once, and passes have fixed sizes. The
reference is `algos.spatial.jacobi_front.jacobi_fronts`.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from underpaint.algos.chance import Role
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi_front import JacobiFronts
from underpaint.runtime.device.cell_cycle import CellCycle
from underpaint.runtime.device.forms import BatchCycle, BatchSizes, DeviceForm, Layout
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.kernels.adaptive_fronts import OpeningRows, lay_adaptive, settle_adaptive
from underpaint.runtime.device.kernels.commit import commit_cells
from underpaint.runtime.device.kernels.fronts import advance_fronts, lay_fronts, settle
from underpaint.runtime.device.kernels.row_drafts import ROW_ROLES, RowDrafts, lay_drafts, span_rows
from underpaint.runtime.device.kernels.row_verdicts import judge_drafts, settle_drafts
from underpaint.runtime.device.kernels.tree_meta import MOST_NODES
from underpaint.runtime.device.kernels.uniforms import cell_uniforms
from underpaint.runtime.device.low_models import LowDraft, check_lines
from underpaint.runtime.device.state import Envelope
from underpaint.runtime.methods.fronts.method import JacobiFrontsConfig, ZiparConfig
from underpaint.runtime.methods.method import DecodingMethod


@dataclass(frozen=True, slots=True)
class FrontForm(DeviceForm):
    """The device form of ZipAR's row fronts.

    Attributes:
        window: The window, from 1 to the width of the grid, which is raster order.
        sampler: The sampling of the target.
        role: The role in the address of the cells' noise.
        noise_cycle: The cycle in the address of the cells' noise.
        adaptive: Whether the first token of a row is held back and tested while the row above grows.
    """

    window: int
    sampler: SamplingParams
    role: Role = Role.CELL
    noise_cycle: int = 0
    adaptive: bool = False

    def layout(self, grid: Grid, vocab_size: int, line_token: int | None, batch: int) -> Layout:
        check_lines(line_token)
        return Layout(front_envelope(self.window, grid))

    def cycle(
        self, target: DeviceDecoder, drafter: DeviceDecoder | None, sizes: BatchSizes, low: LowDraft | None = None
    ) -> BatchCycle:
        return FrontCycle(target, self, *sizes[:4])


@dataclass(frozen=True, slots=True)
class JacobiFrontForm(DeviceForm):
    """PJD's row fronts, which draft ahead from the target's last distributions for the cells."""

    fronts: JacobiFronts
    sampler: SamplingParams

    def layout(self, grid: Grid, vocab_size: int, line_token: int | None, batch: int) -> Layout:
        check_lines(line_token)
        return Layout(jacobi_front_envelope(self.fronts, grid))

    def cycle(
        self, target: DeviceDecoder, drafter: DeviceDecoder | None, sizes: BatchSizes, low: LowDraft | None = None
    ) -> BatchCycle:
        return JacobiFrontCycle(target, self, *sizes[:4])


def zipar_form(method: DecodingMethod, sampling: SamplingParams, grid: Grid) -> FrontForm:
    """Return the device form of ZipAR."""
    config = cast(ZiparConfig, method.config)
    return FrontForm(config.window or grid.width, config.target_sampling(sampling), adaptive=config.adaptive)


def jacobi_form(method: DecodingMethod, sampling: SamplingParams, grid: Grid) -> JacobiFrontForm:
    """Return the device form of PJD."""
    config = cast(JacobiFrontsConfig, method.config)
    return JacobiFrontForm(config, config.target_sampling(sampling))


def front_envelope(window: int, grid: Grid) -> Envelope:
    """Return the sizes of a pass: one position for each row that can be open, and one for the proxy of the next row.

    Raises ValueError if the window does not fit the grid.
    """
    if not 1 <= window <= grid.width:
        raise ValueError(f"device: window: expected 1..{grid.width} on this grid, got {window}")
    return Envelope(min(grid.height, -(-grid.width // window)) + 1, 0, 1, 1, 1)


def jacobi_front_envelope(fronts: JacobiFronts, grid: Grid) -> Envelope:
    """Return the sizes of a pass: one position per column, and one per row but the last, for keys not yet in the cache.

    Raises ValueError if the settings do not fit the grid, or if the positions of a pass do not fit into a mask.
    """
    fronts.check(grid)
    positions = grid.width + grid.height - 1
    if positions > MOST_NODES:
        raise ValueError(
            f"device: drafts of all rows need passes of {positions} positions on a grid of {grid.height} x "
            f"{grid.width}, the device's hold {MOST_NODES}; draw a smaller picture, or on another --backend"
        )
    return Envelope(positions, 0, 1, 1, grid.width)


class FrontCycle(CellCycle):
    """The row fronts of a batch; see `CellCycle`. `begin` decides the first cell of every image."""

    def __init__(
        self,
        target: DeviceDecoder,
        method: FrontForm,
        grid: Grid,
        prefix: int,
        batch: int,
        device: torch.device,
    ) -> None:
        super().__init__(target, front_envelope(method.window, grid), grid, prefix, batch, device)
        self.method = method

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self._uniforms = torch.zeros(batch, 1, self.envelope.nodes, dtype=torch.float64, device=device)
        self._noise_cycle = whole(batch).fill_(method.noise_cycle)
        self._role, self._test_role = whole(1).fill_(int(method.role)), whole(1).fill_(int(Role.WINDOW))
        self._opening: OpeningRows | None = None
        if method.adaptive:
            noise = torch.zeros(batch, 1, 2, dtype=torch.float64, device=device)
            counts = whole(batch, grid.height), whole(batch)
            rows = whole(batch), whole(batch), self.state.tree.draft_probs
            self._opening = OpeningRows(*counts, whole(batch, 2), noise, *rows)

    def _start(self, features: Tensor) -> None:
        self._pass.settled[:, 0] = 0
        if self._opening is not None:
            for part in (self._opening.columns, self._opening.missing, self._opening.lacked):
                part.zero_()
        self._decide(features.expand(-1, self.envelope.nodes, -1).contiguous())

    def _columns(self, place: int) -> Tensor:
        if self._opening is not None:
            return self._opening.columns[place]
        opened = torch.arange(self.grid.height, device=self._role.device) * self.method.window
        return self.state.progress.cycles[place] - opened

    def run(self) -> None:
        state, out = self.state, self._pass
        if self._opening is None:
            lay_fronts(state.verdicts.status, state.progress, out, self.grid, self.method.window)
        else:
            lay_adaptive(state.verdicts.status, state.progress, self._opening, out, self.grid, self.method.window)
        features = self._features()
        commit_cells(state.target_cache.committed, state.target_cache.slots, out.places)
        self._decide(features)

    def _decide(self, features: Tensor) -> None:
        state, out, tree = self.state, self._pass, self.state.tree
        cell_uniforms(self._uniforms, *state.noise, self._noise_cycle, out.settled, self._role)
        self._find_probs(features, self.method.sampler)
        if self._opening is None:
            settle(tree.probs, self._uniforms, out, state.progress, state.verdicts)
        else:
            rows = self._opening
            cell_uniforms(rows.uniforms, *state.noise, self._noise_cycle, rows.tests, self._test_role)
            settle_adaptive(tree.probs, self._uniforms, rows, out, state.progress, state.verdicts, self.grid.width)
        advance_fronts(out, state.progress, state.verdicts)


class JacobiFrontCycle(CellCycle):
    """The drafts of all open rows of a batch; see `CellCycle`."""

    def __init__(
        self,
        target: DeviceDecoder,
        method: JacobiFrontForm,
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
        self._begin_features = torch.zeros(target.rows * batch, 1, features, dtype=target.dtype, device=device)

    def _start(self, features: Tensor) -> None:
        self._drafts.columns.zero_()
        self._drafts.tokens.fill_(-1)
        self._begin_features.copy_(features)
        if self._alone:  # the first cycle drafts only the first cell, which needs no pass
            self._lay()
            self._decide(features.expand(-1, self.grid.width, -1).contiguous())
        else:
            self.state.progress.cycles.fill_(1)  # prefill counts as one pass and draws no noise

    def _columns(self, place: int) -> Tensor:
        return self._drafts.columns[place]

    def run(self) -> None:
        self._lay()
        features = self._features()
        begins = (self.state.progress.cells == 0)[:, None, None].repeat(self._target.rows, 1, 1)
        features[:, :1].copy_(torch.where(begins, self._begin_features, features[:, :1]))
        self._decide(features[:, : self.grid.width])

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
