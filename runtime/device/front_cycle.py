"""Row fronts on the device: several rows are decided at once, each behind the row above (ZipAR).

In a fixed window a step is the same for every image. In an adaptive one each image opens its rows in its own step. The
reference is `algos.spatial.zipar.zipar`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from underpaint.algos.chance import Role
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.cell_cycle import CellCycle
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.kernels.adaptive_fronts import OpeningRows, lay_adaptive, settle_adaptive
from underpaint.runtime.device.kernels.cell_uniforms import cell_uniforms
from underpaint.runtime.device.kernels.commit_cells import commit_cells
from underpaint.runtime.device.kernels.fronts import advance_fronts, lay_fronts, settle
from underpaint.runtime.device.state import Envelope


class FrontMethod(NamedTuple):
    """Row fronts in a window of 1 to the width of the grid, which is raster order.

    role, noise_cycle: the address of the cells' noise. adaptive: the first token of a row is held back, and tested as
    the row above grows.
    """

    window: int
    sampler: SamplingParams
    role: Role = Role.CELL
    noise_cycle: int = 0
    adaptive: bool = False


def front_envelope(window: int, grid: Grid) -> Envelope:
    """The sizes of a pass: a position for each row that can be open, and one for the proxy of the next.

    ValueError for a window beyond the grid.
    """
    if not 1 <= window <= grid.width:
        raise ValueError(f"device: window: expected 1..{grid.width} on this grid, got {window}")
    return Envelope(min(grid.height, -(-grid.width // window)) + 1, 0, 1, 1, 1)


class FrontCycle(CellCycle):
    """Row fronts of a batch; see `CellCycle`. `begin` decides every image's first cell."""

    def __init__(
        self,
        target: DeviceDecoder,
        method: FrontMethod,
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
            held = whole(batch), whole(batch), self.state.tree.draft_probs
            self._opening = OpeningRows(*counts, whole(batch, 2), noise, *held)

    def _start(self, features: Tensor) -> None:
        self._pass.settled[:, 0] = 0
        if self._opening is not None:
            for part in (self._opening.columns, self._opening.missing, self._opening.lacked):
                part.zero_()
        self._decide(features.expand(-1, self.envelope.nodes, -1).contiguous())

    def run(self) -> None:
        state, out = self.state, self._pass
        if self._opening is None:
            lay_fronts(state.verdicts.status, state.progress, out, self.grid, self.method.window)
        else:
            lay_adaptive(state.verdicts.status, state.progress, self._opening, out, self.grid, self.method.window)
        made = self._features()
        commit_cells(state.target_cache.committed, state.target_cache.slots, out.places)
        self._decide(made)

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
