"""Jacobi windows on the device: the target drafts for itself, so that no drafter runs. See `algos.spatial.jacobi`."""

from typing import Final

import torch
from torch import Tensor

from underpaint.algos.accept import Rule
from underpaint.algos.accept.spec import spec_of
from underpaint.algos.coupling import SampledNoise
from underpaint.algos.draft.spec import Grid
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill, drawn_for
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.growth import Limits
from underpaint.runtime.device.kernels import couple, refill
from underpaint.runtime.device.kernels.cell_uniforms import cell_uniforms
from underpaint.runtime.device.kernels.look_up import look_up
from underpaint.runtime.device.kernels.lookup_table import LookupBuffers, keep
from underpaint.runtime.device.kernels.refill_lookup import refill_lookup
from underpaint.runtime.device.kernels.shift import shift
from underpaint.runtime.device.kernels.window import WINDOW_ROLES, WindowBuffers
from underpaint.runtime.device.plans import Plan
from underpaint.runtime.device.state import Envelope, State

WORD: Final = 1 << 64
COUPLINGS: Final[dict[Coupling, int]] = {
    "independent": couple.INDEPENDENT.value,
    "maximal": couple.MAXIMAL.value,
    "gumbel": couple.GUMBEL.value,
}
REFILLS: Final[dict[Refill, int]] = {
    "uniform": refill.EVENLY.value,
    "left": refill.LEFT.value,
    "above": refill.ABOVE.value,
}
"""Refills that look nothing up."""


def check_window(window: JacobiWindow) -> None:
    """ValueError where settings of a window have no form on the device."""
    if window.candidates > 1:
        raise ValueError(
            f"device: a Jacobi window of {window.candidates} candidates a cell has no form on the device; use "
            "candidates=1"
        )


def has_window_form(window: JacobiWindow) -> bool:
    """Whether windows of these settings can be drafted on the device."""
    try:
        check_window(window)
    except ValueError:
        return False
    return True


def window_plan(window: JacobiWindow, rule: Rule, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
    """The envelope of windows that `rule` judges, and how they are drafted.

    ValueError for a window without a form on the device, one larger than a pass of `max_nodes`, and a rule that does
    not fit it.
    """
    check_window(window)
    if window.nodes > max_nodes:
        raise ValueError(
            f"device: window {window.length} needs passes of {window.nodes} positions, the device's hold {max_nodes}; "
            f"set window={max_nodes - 1} or less"
        )
    spec = spec_of(rule)
    drawn: Drawn = "iid" if spec is None else drawn_for(spec, window.coupling)
    levels = max(1, min(window.length, grid.cells - 2))
    envelope = Envelope(levels + 1, levels, 1, 1, levels, window.lookup.beside > 0.0)
    scratch = 8 * _scratch_rows(window, levels, grid.cells)
    kept = 4 * sum(lookup_rows(window, levels, grid.cells))
    return Plan(
        envelope,
        drawn,
        lambda state, drafter, sampler: WindowGrowth(state, window, grid),
        by_target=True,
        image_bytes=(scratch + kept) * vocab_size,
    )


def lookup_rows(window: JacobiWindow, drafts: int, cells: int) -> tuple[int, int]:
    """How many distributions an image's tables hold: of decided cells, and of what passes said of others."""
    decided = window.refill == "lookup" or window.lookup.beside > 0.0
    return cells * decided, drafts**2 * window.lookup.passes


def _scratch_rows(window: JacobiWindow, drafts: int, cells: int) -> int:
    return {"independent": 0, "maximal": drafts, "gumbel": cells}[window.coupling]


class WindowGrowth:
    """A `Growth`: every tree is the window, a chain of what the last pass left and of new cells behind it."""

    def __init__(self, state: State, window: JacobiWindow, grid: Grid) -> None:
        batch, length, vocab_size = state.batch, state.envelope.levels, state.tree.probs.shape[2]
        device = state.roles.device
        self._state, self._grid = state, grid
        self._coupling, self._refill = COUPLINGS[window.coupling], REFILLS.get(window.refill)
        self._raced, self._last_row = window.coupling == "gumbel", window.lookup.last_row
        self._roles = torch.tensor([int(role) for role in WINDOW_ROLES], dtype=torch.int64, device=device)

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def wide(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        left = wide(batch, length, vocab_size) if window.coupling == "maximal" else wide(1, 1, 1)
        noise = wide(batch, grid.cells, vocab_size) if self._raced else wide(1, 1, 1)
        self._window = WindowBuffers(
            whole(batch, length), whole(batch), wide(batch, len(WINDOW_ROLES), length + 1), left, noise
        )
        self._table = _table(state, window, grid.cells) if window.looks_up else None
        chain = torch.arange(-1, length, device=device)
        state.tree.parents.copy_(chain)
        state.tree.draft_rows.copy_((chain + 1).clamp(max=length - 1))
        full = torch.full((batch,), length, dtype=torch.int64, device=device)
        self.limits = Limits(full, torch.ones_like(full), full)

    def begin(self) -> None:
        """Hold no drafts; keep what was said of the first cell; where drafts race, lay out the noise, which the host
        makes."""
        self._window.counts.zero_()
        if self._table is not None:
            self._table.seen_cells.fill_(-1)
            if self._table.beside or self._table.refills:
                self._table.decided[:, 0].copy_(self._state.tree.probs[:, 0])
        if self._raced:
            seeds, images = (part.tolist() for part in self._state.noise)
            for place, (seed, image) in enumerate(zip(seeds, images, strict=True)):
                source = SampledNoise(seed % WORD, image % WORD)
                for cell, row in enumerate(self._window.noise[place]):
                    row.copy_(torch.from_numpy(source.row(cell, row.shape[0])))

    def grow(self, state: State) -> None:
        window, progress = self._window, state.progress
        cell_uniforms(window.uniforms, *state.noise, progress.cycles, progress.cells, self._roles)
        if self._refill is not None:
            refill.refill(window, progress, state.lengths, state.tree, self._refill, self._grid.width)
        else:
            assert self._table is not None
            refill_lookup(window, self._table, progress, state.lengths, state.tree, self._grid.width)

    def observe(self, state: State) -> None:
        window, table, tree, verdicts = self._window, self._table, state.tree, state.verdicts
        levels, cells, most, last_row = state.lengths.levels, state.progress.cells, self._grid.cells, self._last_row
        couple.couple(window, tree, verdicts, levels, cells, self._coupling, most, last_row)
        if table is not None:
            keep(table, tree, verdicts, levels, state.progress)
        if table is not None and (table.passes or table.beside):
            look_up(window, table, tree, verdicts, state.lengths, state.progress, self._coupling, self._grid.width)
        shift(window, tree, verdicts, levels, cells, most, last_row, table)


def _table(state: State, window: JacobiWindow, cells: int) -> LookupBuffers:
    batch, drafts, vocab_size = state.batch, state.envelope.levels, state.tree.probs.shape[2]
    device, lookup = state.roles.device, window.lookup
    decided, seen = lookup_rows(window, drafts, cells)

    def rows(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=device)

    def whole(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    passes = (batch, drafts, drafts) if seen else (1, 1, 1)
    return LookupBuffers(
        rows(batch, decided, vocab_size) if decided else rows(1, 1, 1),
        rows(*passes, vocab_size) if seen else rows(1, 1, 1, 1),
        whole(*passes),
        whole(*passes),
        whole(batch, drafts),
        torch.tensor([lookup.beside], dtype=torch.float64, device=device),
        passes=lookup.passes,
        beside=lookup.beside > 0.0,
        last_row=lookup.last_row,
        refills=window.refill == "lookup",
    )
