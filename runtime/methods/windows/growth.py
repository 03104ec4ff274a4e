"""Jacobi windows on the device, where the target drafts for itself without a drafter. See `algos.spatial.jacobi`."""

from typing import Final

import torch
from torch import Tensor

from underpaint.algos.accept.spec import spec_of
from underpaint.algos.chance import Role
from underpaint.algos.coupling import SampledNoise
from underpaint.algos.protocols import Grid, Rule
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill, drawn_for, tree_nodes
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.growth import Limits, Plan
from underpaint.runtime.device.kernels import couple, refill
from underpaint.runtime.device.kernels.look_up import look_up
from underpaint.runtime.device.kernels.lookup_table import LookupBuffers, keep
from underpaint.runtime.device.kernels.probs import likeliest
from underpaint.runtime.device.kernels.refill_lookup import refill_lookup
from underpaint.runtime.device.kernels.row_maths import PARTS
from underpaint.runtime.device.kernels.shift import shift
from underpaint.runtime.device.kernels.uniforms import cell_uniforms
from underpaint.runtime.device.kernels.walk import BatchTree
from underpaint.runtime.device.kernels.window import WINDOW_ROLES, WindowBuffers
from underpaint.runtime.device.kernels.window_tree import add_candidates, follow
from underpaint.runtime.device.state import Envelope, State

WORD: Final = 1 << 64
COUPLINGS: Final[dict[Coupling, int]] = {
    "independent": couple.INDEPENDENT.value,
    "maximal": couple.MAXIMAL.value,
    "gumbel": couple.GUMBEL.value,
    "confidence": couple.CONFIDENCE.value,
}
REFILLS: Final[dict[Refill, int]] = {
    "uniform": refill.EVENLY.value,
    "random": refill.RANDOM.value,
    "left": refill.LEFT.value,
    "above": refill.ABOVE.value,
}
"""The refills that need no lookup."""


def window_plan(window: JacobiWindow, rule: Rule, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
    """Return the plan of a window that `rule` verifies: its envelope, and how it is drafted.

    Raises ValueError if the window exceeds a pass of `max_nodes`, or if the rule does not fit the window.
    """
    window.check_pass(max_nodes, "device", "the device's hold")
    spec = spec_of(rule)
    drawn: Drawn = "iid" if window.candidates == 1 else "without_replacement"
    if spec is not None:
        drawn = drawn_for(spec, window.coupling, window.candidates)
    levels = max(1, min(window.length, grid.cells - 2))
    nodes = tree_nodes(levels, window.candidates, window.levels)
    envelope = Envelope(nodes, levels, 1, window.candidates, levels, window.beside > 0.0)
    return Plan(
        envelope,
        drawn,
        lambda state, drafter, sampler: WindowGrowth(state, window, grid),
        by_target=True,
        image_bytes=window_bytes(window, levels, grid.cells, vocab_size),
    )


def window_bytes(window: JacobiWindow, drafts: int, cells: int, vocab_size: int) -> int:
    """Return the bytes that the window needs for each image in addition to the envelope."""
    noise = cells * (window.coupling == "gumbel") * vocab_size
    decided, seen = lookup_rows(window, drafts, cells)
    return 8 * noise + 4 * (decided + seen) * vocab_size + 8 * (int(PARTS.value) + 1) * decided


def lookup_rows(window: JacobiWindow, drafts: int, cells: int) -> tuple[int, int]:
    """Return how many distributions the lookup tables of an image hold: for decided cells, and from earlier passes."""
    decided = window.refill == "lookup" or window.beside > 0.0
    return cells * decided, drafts**2 * window.passes


class WindowGrowth:
    """A `Growth` whose tree is the window: a chain of drafts that the last pass kept, followed by new cells.

    The first drafts may have further candidates as siblings.
    """

    lays_out: Final = True

    def __init__(
        self, state: State, window: JacobiWindow, grid: Grid, beside: bool = False, is_greedy: bool = False
    ) -> None:
        """Create the buffers of a window.

        Args:
            state: The state of the batch.
            window: The settings of the window.
            grid: The grid of the image.
            beside: Whether passes over other trees or over part of the window occur, which the window's drafts survive.
            is_greedy: Whether each draft is the likeliest token of its distribution, for greedy rules.
        """
        batch, length, vocab_size = state.batch, state.envelope.levels, state.tree.probs.shape[2]
        device = state.roles.device
        self._state, self._grid = state, grid
        self._coupling, self._refill = COUPLINGS[window.coupling], REFILLS.get(window.refill)
        self._raced, self._last_row = window.coupling == "gumbel", window.last_row
        self._roles = torch.tensor([int(role) for role in WINDOW_ROLES], dtype=torch.int64, device=device)

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def wide(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        noise = wide(batch, grid.cells, vocab_size) if self._raced else wide(1, 1, 1)
        uniforms = wide(batch, len(WINDOW_ROLES), length + 1)
        nodes = torch.arange(length + 1, device=device).repeat(batch, 1)
        confidence = wide(1).fill_(window.confidence)
        arrivals = torch.zeros(batch, dtype=torch.int32, device=device)
        self._window = WindowBuffers(whole(batch, length), whole(batch), uniforms, noise, nodes, confidence, arrivals)
        self._stays = beside
        number = torch.float64 if window.beside > 0.0 else torch.float32
        size = (batch, length, vocab_size)
        self._drawn_from = torch.zeros(size, dtype=number, device=device) if beside else state.tree.draft_probs
        self._one_hot = torch.zeros_like(state.tree.probs) if is_greedy else None
        self._candidates = (
            None if window.candidates == 1 else wide(batch, min(window.levels, length), window.candidates)
        )
        self._proposals = None if self._candidates is None else self._candidates.long()
        self._addresses, self._none, self._role = (
            whole(batch),
            whole(batch),
            self._roles.new_tensor([int(Role.CANDIDATE)]),
        )
        self._table = _table(state, window, grid.cells) if window.looks_up else None
        full = torch.full((batch,), length, dtype=torch.int64, device=device)
        self.limits = Limits(full, torch.ones_like(full), full)

    def begin(self) -> None:
        """Drop all drafts and store the distribution of the first cell; for Gumbel coupling, also fill in the noise,
        which the host makes."""
        self._window.counts.zero_()
        self._window.arrivals.zero_()
        if self._table is not None:
            self._table.seen_cells.fill_(-1)
            tree, state = self._read(self._state), self._state
            keep(self._table, self._window.nodes, tree, state.verdicts, self._none, state.progress)
        if self._raced:
            seeds, images = (part.tolist() for part in self._state.noise)
            for place, (seed, image) in enumerate(zip(seeds, images, strict=True)):
                source = SampledNoise(seed % WORD, image % WORD)
                for cell, row in enumerate(self._window.noise[place]):
                    row.copy_(torch.from_numpy(source.row(cell, row.shape[0])))

    def grow(self, state: State) -> None:
        window, progress, tree = self._window, state.progress, self.own(state.tree)
        cell_uniforms(window.uniforms, *state.noise, progress.cycles, progress.cells, self._roles)
        if self._refill is not None:
            refill.refill(window, progress, state.lengths, tree, state.layout, self._refill, self._grid.width)
        else:
            assert self._table is not None
            refill_lookup(window, self._table, progress, state.lengths, tree, state.layout, self._grid.width)
        if self._candidates is not None and self._proposals is not None:
            batch, levels, candidates = self._candidates.shape
            torch.mul(progress.cells, candidates, out=self._addresses)
            flat = self._candidates.view(batch, 1, levels * candidates)
            cell_uniforms(flat, *state.noise, progress.cycles, self._addresses, self._role)
            buffers = self._candidates, self._proposals, window.arrivals
            add_candidates(tree, state.layout, state.lengths.levels, *buffers, self._grid.cells - 1)

    def observe(self, state: State) -> None:
        window, table, tree, verdicts = self._window, self._table, self._read(state), state.verdicts
        levels, cells, most, last_row = state.lengths.levels, state.progress.cells, self._grid.cells, self._last_row
        if self._candidates is not None:
            follow(window.nodes, tree, verdicts, levels)
        couple.couple(window, tree, verdicts, levels, cells, self._coupling, most, last_row)
        if table is not None:
            keep(table, window.nodes, tree, verdicts, levels, state.progress)
        if table is not None and (table.passes or table.beside):
            look_up(window, table, tree, verdicts, state.lengths, state.progress, self._coupling, self._grid.width)
        shift(window, tree, verdicts, levels, cells, most, last_row, table, self._stays)

    def pass_over(self, state: State) -> None:
        """Account for a pass over another tree: drop the drafts of cells that it decided, and keep the later ones."""
        window, tree, verdicts, none = self._window, self._read(state), state.verdicts, self._none
        if self._table is not None:
            keep(self._table, None, tree, verdicts, none, state.progress)
        cells, most = state.progress.cells, self._grid.cells
        shift(window, tree, verdicts, none, cells, most, self._last_row, moves=self._stays)

    def own(self, tree: BatchTree) -> BatchTree:
        """Return `tree` with the distributions that the window's drafts were drawn from."""
        return tree._replace(draft_probs=self._drawn_from)

    def _read(self, state: State) -> BatchTree:
        """Return the tree that the window learns from; for greedy rules, its distributions are one-hot."""
        tree = self.own(state.tree)
        if self._one_hot is None:
            return tree
        likeliest(tree.probs, self._one_hot, tree.counts)
        return tree._replace(probs=self._one_hot)


def _table(state: State, window: JacobiWindow, cells: int) -> LookupBuffers:
    batch, drafts, vocab_size = state.batch, state.envelope.levels, state.tree.probs.shape[2]
    device = state.roles.device
    decided, seen = lookup_rows(window, drafts, cells)

    def rows(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=device)

    def whole(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    passes = (batch, drafts, drafts) if seen else (1, 1, 1)
    decided_shape = (batch, decided) if decided else (1, 1)
    return LookupBuffers(
        rows(*decided_shape, vocab_size) if decided else rows(1, 1, 1),
        rows(*decided_shape).double(),
        whole(*decided_shape, PARTS.value),
        rows(*passes, vocab_size) if seen else rows(1, 1, 1, 1),
        whole(*passes),
        whole(*passes),
        whole(batch, drafts),
        torch.tensor([window.beside], dtype=torch.float64, device=device),
        passes=window.passes,
        beside=window.beside > 0.0,
        last_row=window.last_row,
        refills=window.refill == "lookup",
    )
