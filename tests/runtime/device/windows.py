"""Jacobi windows for the device's kernels: what a pass left of one, and what both runtimes make of it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from tests.runtime.device.trees import UNIFORMS
from underpaint.algos.accept.walk import normalised
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import from_arrays
from underpaint.algos.coupling import SampledNoise
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.jacobi import WindowState
from underpaint.algos.spatial.jacobi_window import JacobiWindow, WindowDraft, window_tree
from underpaint.algos.tree import Verdict, root_only
from underpaint.runtime.device.kernels.couple import couple
from underpaint.runtime.device.kernels.layout import Lengths, Progress
from underpaint.runtime.device.kernels.look_up import look_up
from underpaint.runtime.device.kernels.lookup_table import LookupBuffers, keep
from underpaint.runtime.device.kernels.refill import refill
from underpaint.runtime.device.kernels.refill_lookup import refill_lookup
from underpaint.runtime.device.kernels.row_maths import PARTS
from underpaint.runtime.device.kernels.shift import shift
from underpaint.runtime.device.kernels.tree_meta import TreePlaces, tree_meta
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts
from underpaint.runtime.device.kernels.window import WINDOW_ROLES, WindowBuffers
from underpaint.runtime.methods.windows.growth import COUPLINGS, REFILLS
from underpaint.strategies import distributions

GRID = Grid(4, 3)
MOST = 4
"""Drafts of the largest window here."""
CYCLE = 5
"""The number of the cycle that a `Pass` is."""


class Seen(NamedTuple):
    """What a pass `age` cycles ago said of a cell that is not decided yet, behind the token `left`; row [V] float32."""

    age: int
    cell: int
    left: int
    row: FloatArray


class Pass(NamedTuple):
    """A window of W drafts below the last of `decided`, a pass over it, and what was accepted.

    drafts: tokens [W], of distributions [W, V] float32. probs [W + 1, V] float32. accepted: how many. token: the extra.
    uniforms [2, 3, cells]: of this cycle and the next, by `WINDOW_ROLES` and cell. said [decided, V] float32: of each
    decided cell. seen: the oldest first.
    """

    decided: tuple[int, ...]
    drafts: tuple[int, ...]
    drawn_from: FloatArray
    probs: FloatArray
    accepted: int
    token: int
    uniforms: FloatArray
    seed: int
    said: FloatArray
    seen: tuple[Seen, ...]


class After(NamedTuple):
    """The next tree: its tokens behind the root, and the distributions they were drawn from, sum 1.

    said: what is kept of decided cells, and, by cell and left token, of those that are not; empty where nothing is.
    """

    tokens: tuple[int, ...]
    drawn_from: FloatArray
    decided: FloatArray
    seen: dict[tuple[int, int], list[float]]


@st.composite
def passes(draw: st.DrawFn, vocab_size: int) -> Pass:
    """Ties, zeros, one-hot rows, u = 0, and passes that change nothing."""
    first = draw(st.integers(1, GRID.cells - 1))
    length = min(draw(st.integers(0, MOST)), GRID.cells - first - 1)
    codes = st.integers(0, vocab_size - 1)
    rows = np.stack([draw(distributions(vocab_size)) for _ in range(2 * length + 1)]).astype(np.float32)
    drawn_from, probs = rows[:length], rows[length:]
    if length and draw(st.booleans()):
        probs = np.concatenate([drawn_from, probs[-1:]])
    drafts = tuple(draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in drawn_from)
    uniforms = np.array([draw(UNIFORMS) for _ in range(6 * GRID.cells)]).reshape(2, 3, GRID.cells)
    decided = tuple(draw(codes) for _ in range(first))
    accepted = draw(st.integers(0, length))
    decided_rows = np.stack([draw(distributions(vocab_size)) for _ in range(first)]).astype(np.float32)
    seen = tuple(
        Seen(age, cell, draw(codes), draw(distributions(vocab_size)).astype(np.float32))
        for age, cell in seen_at(first)
        if draw(st.booleans())
    )
    return Pass(
        decided, drafts, drawn_from, probs, accepted, draw(codes), uniforms, draw(st.integers(0, 3)), decided_rows, seen
    )


def seen_at(first: int) -> Iterator[tuple[int, int]]:
    """Of passes that decided one cell each, the oldest first: how long ago, and the cells from `first` on they saw."""
    for age in range(MOST - 1, 0, -1):
        for cell in range(first + 1, min(first + MOST - age + 1, GRID.cells - 1)):
            yield age, cell


def by_reference(window: JacobiWindow, one: Pass) -> After:
    vocab_size = one.probs.shape[1]
    noise = SampledNoise(one.seed, 1) if window.coupling == "gumbel" else None
    window_state = WindowState(window, GRID, vocab_size, "iid", noise)
    window_state.begin(one.said[:1], one.decided[0])
    window_state._tokens[:] = one.decided
    for count in range(2, len(one.decided) + 1):
        window_state._table.decide(list(one.decided[:count]), normalised(one.said[count - 1]))
    for seen in one.seen:
        window_state._table.see(seen.cell, seen.left, normalised(seen.row))
    wide = one.drawn_from.astype(np.float64)
    wide /= wide.sum(axis=1, keepdims=True)
    window_state._drafts[:] = [WindowDraft(token, row) for token, row in zip(one.drafts, wide, strict=True)]
    now, later = (from_arrays(dict(zip(WINDOW_ROLES, uniforms, strict=True))) for uniforms in one.uniforms)
    verdict = Verdict(tuple(range(1, one.accepted + 1)), one.token)
    if one.drafts:
        tree = window_tree(one.decided[-1], window_state._drafts, 1, 1, "iid", len(one.decided), now)
        window_state.redraft(tree, verdict, one.probs, now)
    else:
        window_state.pass_over(root_only(one.decided[-1], vocab_size), verdict, one.probs)
    tree = window_state.draft(max(0, GRID.cells - len(window_state._tokens) - 1), later)
    rows = np.empty((0, vocab_size))
    if window.refill == "lookup" or window.beside:
        rows = np.concatenate([one.said, one.probs[: one.accepted + 1]])
    seen_rows = {
        (cell, left): row.tolist()
        for cell, by_left in window_state._table._passes.items()
        for left, row in by_left.items()
        if cell >= len(window_state._tokens)
    }
    return After(tuple(tree.tokens[1:].tolist()), tree.draft_probs[: tree.size - 1], rows, seen_rows)


def by_device(window: JacobiWindow, window_passes: Sequence[Pass]) -> list[After]:
    """All of them in one batch; what is unused is filled with rubbish."""
    batch, vocab_size, most = len(window_passes), window_passes[0].probs.shape[1], window.length

    def whole(*shape: int, fill: int = 1) -> torch.Tensor:
        return torch.full(shape, fill, dtype=torch.int64)

    tokens, new_counts, levels, cells = whole(batch, most + 1), whole(batch), whole(batch), whole(batch)
    roots, decided = whole(batch), whole(batch, GRID.cells)
    probs, draft_probs = torch.full((batch, most + 1, vocab_size), 0.5), torch.full((batch, most, vocab_size), 0.5)
    draft_probs = draft_probs.double() if window.beside else draft_probs
    uniforms = torch.full((2, batch, 3, most + 1), 0.5, dtype=torch.float64)
    noise = torch.zeros(batch, GRID.cells, vocab_size, dtype=torch.float64)
    for place, one in enumerate(window_passes):
        length, after = len(one.drafts), len(one.decided) + one.accepted + 1
        decided_tokens = [*one.decided, *one.drafts[: one.accepted], one.token]
        decided[place, : len(decided_tokens)] = torch.tensor(decided_tokens)
        tokens[place, 1 : length + 1] = torch.tensor(one.drafts, dtype=torch.int64)
        probs[place, : length + 1] = torch.from_numpy(one.probs)
        draft_probs[place, :length] = torch.from_numpy(one.drawn_from)
        new_counts[place], levels[place], cells[place], roots[place] = one.accepted + 1, length, after, one.token
        for turn, first in enumerate((len(one.decided), after)):
            part = torch.from_numpy(one.uniforms[turn][:, first : first + most + 1].copy())
            uniforms[turn, place, :, : part.shape[1]] = part
        rows = [SampledNoise(one.seed, 1).row(cell, vocab_size) for cell in range(GRID.cells)]
        noise[place] = torch.from_numpy(np.stack(rows))
    window_buffers = WindowBuffers(
        whole(batch, most), whole(batch), uniforms[0], noise, torch.arange(most + 1).repeat(batch, 1),
        torch.tensor([window.confidence], dtype=torch.float64), torch.zeros(batch, dtype=torch.int32),
    )  # fmt: skip
    none = whole(1)
    first, sibling, masks, parents, draft_rows, positions, depths = (whole(batch, most + 1) for _ in range(7))
    layout = TreePlaces(cells, positions, depths)
    tree = BatchTree(tokens, first, sibling, masks, parents, whole(batch), probs, draft_probs, draft_rows, none)
    verdicts = Verdicts(none, new_counts, none, none, none)
    kind, table, last_row = COUPLINGS[window.coupling], table_of(window, window_passes), window.last_row
    progress = Progress(cells, whole(batch, fill=CYCLE + 1), roots, none, none, none, decided, none)
    couple(window_buffers, tree, verdicts, levels, cells, kind, GRID.cells, last_row)
    if window.looks_up:
        keep(table, window_buffers.nodes, tree, verdicts, levels, progress)
        lengths = Lengths(none, none, none, none, levels, none, none, none)
        look_up(window_buffers, table, tree, verdicts, lengths, progress, kind, GRID.width)
    shift(window_buffers, tree, verdicts, levels, cells, GRID.cells, last_row, table if window.looks_up else None)
    levels = torch.clamp(GRID.cells - 1 - cells, 0, most)
    lengths = Lengths(none, none, none, none, levels, none, none, none)
    window_buffers = window_buffers._replace(uniforms=uniforms[1])
    if window.refill == "lookup":
        refill_lookup(window_buffers, table, progress, lengths, tree, layout, GRID.width)
    else:
        refill(window_buffers, progress, lengths, tree, layout, REFILLS[window.refill], GRID.width)
    laid = [part.clone() for part in (positions, depths, first, sibling, masks)]
    tree_meta(tree, layout, most, GRID.cells - 1)
    assert torch.equal(laid[4], masks)
    assert torch.equal(laid[0], positions)
    results = []
    for place, size in enumerate(levels.tolist()):
        assert tree.counts[place] == size + 1
        assert tree.tokens[place, 0] == roots[place]
        assert parents[place, 1 : size + 1].tolist() == draft_rows[place, :size].tolist() == list(range(size))
        for one, again in zip(laid, (positions, depths, first, sibling, masks), strict=True):
            assert torch.equal(one[place, : size + 1], again[place, : size + 1])
        rows = draft_probs[place, :size].double()
        drawn_from = (rows / rows.sum(1, keepdim=True)).numpy()
        decided_rows, seen = np.empty((0, vocab_size)), dict[tuple[int, int], list[float]]()
        if table.refills or table.beside:
            decided_rows = table.decided[place, : int(cells[place])].numpy()
        if window.passes:
            for age in range(most - 1, -1, -1):
                slot = place, (CYCLE - age) % most
                pairs = zip(table.seen_cells[slot].tolist(), table.seen_lefts[slot].tolist(), strict=True)
                for entry, (cell, left) in enumerate(pairs):
                    row = table.seen[slot][entry].double()
                    seen |= {(cell, left): (row / row.sum()).tolist()} if cell >= cells[place] else {}
        results.append(After(tuple(tokens[place, 1 : size + 1].tolist()), drawn_from, decided_rows, seen))
    return results


def table_of(window: JacobiWindow, window_passes: Sequence[Pass]) -> LookupBuffers:
    """What was kept of the passes before, in cycles up to `CYCLE`; what is unused is filled with rubbish."""
    batch, vocab_size, most = len(window_passes), window_passes[0].probs.shape[1], window.length
    decided, seen = torch.full((batch, GRID.cells, vocab_size), 0.5), torch.full((batch, most, most, vocab_size), 0.5)
    seen_cells, seen_lefts = torch.full((2, batch, most, most), -1)
    scales = torch.full((batch, GRID.cells), 0.5, dtype=torch.float64)
    parts = torch.full((batch, GRID.cells, PARTS.value), 7, dtype=torch.int64)
    for image, one in enumerate(window_passes):
        decided[image, : len(one.decided)] = torch.from_numpy(one.said)
        scale = 2.0 ** (45 - np.frexp(one.said.max(axis=1).astype(np.float64))[1])
        scales[image, : scale.size] = torch.from_numpy(scale)
        parts[image, : scale.size, :vocab_size] = torch.from_numpy((one.said * scale[:, None]).astype(np.int64))
        for age, cell, left, row in one.seen:
            at = image, (CYCLE - age) % most, cell - len(one.decided) + age - 1
            seen[at], seen_cells[at], seen_lefts[at] = torch.from_numpy(row), cell, left
    return LookupBuffers(
        decided,
        scales,
        parts,
        seen,
        seen_cells,
        seen_lefts,
        torch.ones(batch, most, dtype=torch.int64),
        torch.tensor([window.beside], dtype=torch.float64),
        passes=window.passes,
        beside=window.beside > 0.0,
        last_row=window.last_row,
        refills=window.refill == "lookup",
    )


def agrees(window: JacobiWindow, window_passes: Sequence[Pass]) -> bool:
    """Whether both runtimes make the same windows of the same passes."""
    return all(
        one.tokens == expected.tokens
        and np.allclose(one.drawn_from, expected.drawn_from, atol=1e-7)
        and np.array_equal(one.decided, expected.decided)
        and one.seen.keys() == expected.seen.keys()
        and all(np.allclose(one.seen[key], row, atol=1e-7) for key, row in expected.seen.items())
        for one, expected in zip(
            by_device(window, window_passes), (by_reference(window, one) for one in window_passes), strict=True
        )
    )
