"""MuLo-SD on the device: draft at a low resolution, verify, and redraw rejected islands in parallel (arXiv 2601.05149).

It consists of three programs without branches. The first is a pass of the low target, replayed for every step of its
row fronts. The second enlarges the draft and verifies it in one pass, once. The third is a pass that redraws cells,
replayed until every image is done. The reference is `algos.spatial.mulo.draft_and_repair` with `low_rows.LowRows`.
"""

from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import torch
from torch import Tensor

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.algos.chance import Role
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.cell_rule import PooledCells
from underpaint.algos.spatial.mulo import Repair
from underpaint.algos.spatial.row_front import front_steps
from underpaint.runtime.device.cell_cycle import CellProgram
from underpaint.runtime.device.folder import EmbeddedBatch
from underpaint.runtime.device.forms import BatchCycle, BatchSizes, DeviceForm, Layout, Stage
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.kernels.commit import commit_cells
from underpaint.runtime.device.kernels.fronts import advance_fronts, settle
from underpaint.runtime.device.kernels.islands import IslandBuffers, StartRows, judge, mark
from underpaint.runtime.device.kernels.repair import find_ready, lay_repair
from underpaint.runtime.device.kernels.tree_meta import MOST_NODES
from underpaint.runtime.device.kernels.uniforms import cell_uniforms
from underpaint.runtime.device.low_models import LowDraft, LowFiles, check_lines
from underpaint.runtime.device.state import Envelope
from underpaint.runtime.methods.fronts.device import FrontCycle, FrontForm, front_envelope
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.multi_scale.method import MuloMethod
from underpaint.runtime.pipeline import Pipeline

_DRAFT_CYCLE = 1
"""The cycle whose noise the low target uses, so that it shares none with the repair (`LowRows`)."""


MOST_CODES: Final = 16_384
"""Largest vocabulary; float32 distributions of more codes exceed the shared memory of small GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class RepairForm(DeviceForm):
    """The device form of MuLo-SD, with a draft of the whole image and the pooled rule.

    Attributes:
        near: [V, K] int64, the codes pooled with each code.
        tau: The least pooled probability of a draft that stays.
        repair: How rejected cells are redrawn.
        draft_window: Window of the low target's row fronts.
        sampler: The sampling of the target.
        draft_sampler: The sampling of the low target.
        ratio: Side of the grid over the low grid's side.
        resampler: The network between the two resolutions; see `runtime.resampling.registry.LATENT`.
    """

    near: IntArray
    tau: float
    repair: Repair
    draft_window: int
    sampler: SamplingParams
    draft_sampler: SamplingParams
    ratio: int = 2
    resampler: str = "latent"

    @property
    def engine_gap(self) -> str:
        return "MuLo-SD's smaller target has no engines on the device"

    @property
    def low_key(self) -> tuple[int, str]:
        return self.ratio, self.resampler

    @property
    def drafting(self) -> FrontForm:
        """The row fronts by which the low target drafts."""
        return FrontForm(self.draft_window, self.draft_sampler, Role.DRAFT, _DRAFT_CYCLE)

    def window(self, grid: Grid) -> int:
        """Return the window of row fronts in the repair, 1 to the width of the grid, which is raster order."""
        return self.repair.front_window(grid)

    def layout(self, grid: Grid, vocab_size: int, line_token: int | None, batch: int) -> Layout:
        check_lines(line_token)
        if vocab_size > MOST_CODES:
            raise ValueError(
                f"device: MuLo-SD keeps a distribution in shared memory: expected at most {MOST_CODES:,} codes, got "
                f"{vocab_size:,}; draw without --backend device"
            )
        front_envelope(self.window(grid), grid)
        return Layout(island_envelope(grid))

    def cycle(
        self, target: DeviceDecoder, drafter: DeviceDecoder | None, sizes: BatchSizes, low: LowDraft | None = None
    ) -> BatchCycle:
        if low is None:
            raise ValueError("device: this method drafts with a smaller target, and none was given")
        return IslandCycle(target, low, self, *sizes[:4])

    def low_files(self, pipeline: Pipeline) -> LowFiles:
        return LowFiles.of(pipeline, self.ratio, self.resampler, self.draft_window)

    def low_passes(self, low: Grid) -> int:
        return front_steps(low, self.draft_window)


def mulo_form(method: DecodingMethod, sampling: SamplingParams, grid: Grid) -> RepairForm:
    """Return the device form of MuLo-SD; raise ValueError if its settings do not fit the grid."""
    config, rule = cast(MuloMethod, method).config, cast(PooledCells, cast(MuloMethod, method).rule)
    config.check(grid)
    low = grid.width // max(1, config.ratio)
    return RepairForm(
        near=rule.neighbours,
        tau=rule.tau,
        repair=config,
        draft_window=low if config.draft_window is None else config.draft_window,
        sampler=config.target_sampling(sampling),
        draft_sampler=sampling,
        ratio=config.ratio,
        resampler=config.resampler,
    )


def island_envelope(grid: Grid, positions: int | None = None) -> Envelope:
    """Return the sizes of a pass that redraws cells: two positions per row, or `positions`, as far as a mask allows.

    A step that needs more positions continues in the next pass.
    """
    most = 2 * grid.height if positions is None else positions
    return Envelope(max(1, min(most, MOST_NODES)), 0, 1, 1, 1)


class IslandCycle(CellProgram):
    """The MuLo-SD programs of a batch: run `begin` once, then all `stages` in order."""

    def __init__(
        self,
        target: DeviceDecoder,
        low: LowDraft,
        method: RepairForm,
        grid: Grid,
        prefix: int,
        batch: int,
        device: torch.device,
        positions: int | None = None,
    ) -> None:
        """Create the programs and their buffers.

        Args:
            target: The target.
            low: The low target, which drafts.
            method: The device form.
            grid: The grid of the image.
            prefix: Largest number of condition positions of the target.
            batch: Number of batch slots.
            device: The device of the buffers.
            positions: See `island_envelope`.
        """
        super().__init__(target, island_envelope(grid, positions), grid, prefix, batch, device)
        self.method = method
        self.low = FrontCycle(low.target, method.drafting, low.grid, low.prefix, batch, device)
        self._low = low
        count, cells = self.envelope.nodes, grid.cells

        def whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.islands = IslandBuffers(
            whole(batch, cells),
            *(whole(batch, cells, dtype=torch.int32) for _ in range(4)),
            *(whole(batch) for _ in range(2)),
        )
        features = torch.zeros(2, target.rows * batch, 1, target.config.dim, dtype=target.dtype, device=device)
        logits = torch.zeros(target.rows, batch, 1, target.config.vocab_size, device=device)
        self._start_rows = StartRows(features[0], logits, features[1])
        self._cells = torch.arange(cells, device=device).repeat(batch, 1)
        self._near = torch.as_tensor(method.near, dtype=torch.int32, device=device).contiguous()
        self._tau = torch.tensor([method.tau], dtype=torch.float64, device=device)
        self._uniforms = torch.zeros(batch, 1, count, dtype=torch.float64, device=device)
        self._noise_cycle, self._role = whole(batch), whole(1).fill_(int(Role.CELL))
        self._whole_picture = self.state.target_cache.fill(self.state.progress.prefixes, cells)

    def begin(
        self,
        condition: Tensor,
        seeds: Tensor,
        images: Tensor,
        hidden: Tensor | None = None,
        low: EmbeddedBatch | None = None,
    ) -> None:
        """Prefill both targets with the conditions and draft the first low cell; see `BatchCycle.begin`."""
        if low is None:
            raise ValueError("device: expected a condition of the smaller target too, got none")
        self.low.begin(low.rows, seeds, images, low.hidden)
        features = self._take_in(condition, seeds, images, hidden)
        self._start_rows.features.copy_(features)
        self._start_rows.logits.copy_(self._logits(features))
        fill = self.state.target_cache.fill(self.state.progress.prefixes, self.grid.cells)
        self._whole_picture.places.copy_(fill.places)
        self._whole_picture.sees.copy_(fill.sees)
        self.islands.cursor.zero_()
        self.state.progress.cycles.fill_(1)

    @property
    def stages(self) -> tuple[Stage, ...]:
        drafting = front_steps(self._low.grid, self.method.draft_window) - 1
        return (self.low.run, drafting), (self.verify, 1), (self.run, None)

    def draft_outcome(self) -> tuple[list[IntArray], list[int]]:
        outside, refused = self.islands.labels.cpu().numpy() < 0, (self.islands.rejected == 1).sum(dim=1).tolist()
        if self.method.repair.reject == "raster":  # the first rejection ends the verification
            refused = [min(1, number) for number in refused]
        return [np.flatnonzero(one) for one in outside], refused

    def decided(self, place: int) -> BoolArray:
        islands = self.islands
        if not int(self.state.progress.cells[place]):
            return np.zeros(self.grid.cells, dtype=np.bool_)
        cell, cursor = torch.arange(self.grid.cells, device=islands.cursor.device), islands.cursor[place]
        passed = (cursor == 0) | (cell < cursor)
        open_cells = (islands.waiting[place] == 1) | ((islands.ready[place] == 1) & ~passed)
        return (~open_cells).cpu().numpy()

    def refused(self, place: int) -> IntArray | None:
        if not int(self.state.progress.cells[place]):
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.islands.rejected[place].cpu().numpy() == 1)

    def verify(self) -> None:
        """Enlarge the draft, verify it in one target pass, and mark the cells to redraw."""
        state, islands, grid = self.state, self.islands, self.grid
        low_tokens = self.low.state.progress.decided.view(state.batch, *self._low.grid)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as exact as on the host
            torch.argmax(self._low.enlarge(low_tokens).view(state.batch, grid.cells, -1), dim=-1, out=islands.drafts)
        features = self._target.hidden(self._target.embed(islands.drafts), self._cells, self._whole_picture)
        judge(self._logits(features), self._start_rows.logits, self.method.sampler, self._near, self._tau, islands)
        ended, filled, repair = self.low.state.verdicts.status, self._pass.filled, self.method.repair
        mark(islands, state.progress, state.verdicts.status, ended, filled, features, self._start_rows, grid, repair)

    def run(self) -> None:
        """Run one pass that redraws cells of every unfinished image."""
        state, out, islands = self.state, self._pass, self.islands
        find_ready(state.verdicts.status, islands, self.grid, self.method.window(self.grid))
        lay_repair(state.verdicts.status, state.progress, islands, out)
        features = self._features()
        commit_cells(state.target_cache.committed, state.target_cache.slots, out.places)
        # The tokens before the first rejected cell have not changed since verification; cell 0 follows the condition.
        is_known = (out.settled[:, :1] == islands.first[:, None]).repeat(self._target.rows, 1)
        first = torch.where(is_known.unsqueeze(2), self._start_rows.preceding, features[:, :1])
        features = torch.cat([first, features[:, 1:]], dim=1)
        cell_uniforms(self._uniforms, *state.noise, self._noise_cycle, out.settled, self._role)
        self._find_probs(features, self.method.sampler)
        settle(state.tree.probs, self._uniforms, out, state.progress, state.verdicts, self.method.repair.greedy)
        advance_fronts(out, state.progress, state.verdicts)
