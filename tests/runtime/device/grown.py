"""Trees grown on the device and on the host from the same distributions, which depend on the whole path to a node."""

from collections.abc import Sequence
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from tests.runtime.device.tables import TableForward, Tables
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Role, from_arrays
from underpaint.algos.protocols import Budget, Grid, Policy
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device import static_growth
from underpaint.runtime.device.growth import DraftPasses, plan_of
from underpaint.runtime.device.kernels import children, likeliest
from underpaint.runtime.device.kernels.layout import prepare
from underpaint.runtime.device.kernels.probs import sampled_probs
from underpaint.runtime.device.kernels.uniforms import UniformBuffers
from underpaint.runtime.device.launch import kernel, tl
from underpaint.runtime.device.state import State

MAX_NODES = 12
GRID = Grid(2, 5)
MOST_LEVELS = GRID.cells - 2


class Grown(NamedTuple):
    """A tree's tokens, parents and, where siblings were drawn, each expanded node's distribution."""

    tokens: list[int]
    parents: list[int]
    drafted: dict[int, list[float]]


def line(level: int, token: int, total: int, above: int, lines: int) -> int:
    """`total` counts `token` too, so the two together must not be a multiple of `lines` (5)."""
    return (31 * level + 11 * token + 3 * total + above) % lines


class HostRows:
    """An `Expander` over rows [K, V], by level, token, the sum of the path's tokens, and the token above."""

    def __init__(self, rows: FloatArray) -> None:
        self._rows, self.vocab_size = rows, rows.shape[1]
        self._nodes: list[tuple[int, int, int, int]] = []

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        rows = []
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            if parent < 0:
                node = (0, token, 0, 0)
            else:
                level, above, total, _ = self._nodes[parent]
                node = (level + 1, token, total + token, above)
            self._nodes.append(node)
            rows.append(self._rows[line(*node, self._rows.shape[0])])
        return np.stack(rows)


class DeviceRows(DraftPasses):
    """The same in place of `DraftPasses`: the path is what a row's mask sees, the token above that of its parent."""

    def __init__(self, rows: FloatArray, state: State) -> None:
        roots = state.progress.roots
        self._rows, self._roots, self._state = torch.from_numpy(rows), roots, state
        self._held = torch.zeros(roots.shape[0], state.envelope.slots, dtype=torch.int64)
        self._above = roots[:, None]

    def root(self) -> Tensor:
        self._above = self._roots[:, None]
        nodes = [line(0, token, 0, 0, len(self._rows)) for token in self._roots.tolist()]
        return self._rows[nodes][None, :, None]

    def level(self, level: int, tokens: Tensor, parents: Tensor, masks: Tensor, first: int) -> Tensor:
        batch, count = tokens.shape
        self._held[:, first : first + count] = tokens
        places = torch.arange(self._held.shape[1])
        level_rows = torch.zeros(batch, count, self._rows.shape[1])
        for image in range(batch):
            image_tokens = self._held[image]
            for row in range(count):
                seen = (masks[image, row, places // 64] >> places % 64) & 1
                above = int(self._above[image, parents[image, row]])
                node = line(level, int(tokens[image, row]), int((seen * image_tokens).sum()), above, len(self._rows))
                level_rows[image, row] = self._rows[node]
        self._above = tokens.clone()
        return level_rows[None]


def logits_of(rows: FloatArray) -> Tensor:
    """[K, V] float32 whose softmax is about `rows`; as small as a number gets where those are 0."""
    given_rows = torch.from_numpy(rows)
    return torch.where(given_rows > 0, given_rows.log(), torch.finfo(torch.float32).min)


def copied(
    given_rows: Tensor,
    out: Tensor,
    support: Tensor,
    finite: Tensor,
    counts: Tensor,
    sampler: SamplingParams,
) -> None:
    """In place of the kernel `probs`: the rows are distributions."""
    for image, count in enumerate(counts.tolist()):
        out[image, :count] = given_rows[0, image, :count]
        support[image, : min(count, out.shape[1])] = (out[image, :count] > 0).sum(dim=1).int()


@kernel
def given_masses(
    given, row_stride, how, V: tl.constexpr, GUIDED, GREEDY, WARM, CUT, NUCLEUS, SAMPLE, BLOCK: tl.constexpr
):
    """In place of `row_masses`, within a kernel: the rows are distributions."""
    place = tl.arange(0, BLOCK)
    return tl.load(given + place, place < V, other=0.0), tl.full((), 1.0, tl.float32), tl.full((), 1, tl.int1)


def by_device(
    policy: Policy, rows: FloatArray, cycles: Sequence[Sequence[int]], roots: Sequence[int], uniforms: FloatArray
) -> list[Grown]:
    """The trees of a batch in the last of `cycles`, each the room for levels of every image.

    What is drawn comes of a kernel that takes logits: there rows are given as those.
    """
    batch, vocab_size = len(roots), rows.shape[1]
    plan = plan_of(policy, GRID, vocab_size, MAX_NODES)
    drafter = TableForward(Tables(0, vocab_size, 1), True)
    sizes = (batch, plan.envelope, GRID.cells, 1, drafter.config, drafter.config, 1)
    state = State.allocate(*sizes, torch.float32, torch.device("cpu"))
    with patch.object(children, "TILE", 4), patch.object(likeliest, "GROUP", 2):
        grown = plan.make(state, drafter, SamplingParams())
    grown.begin()
    state.progress.roots.copy_(torch.tensor(roots))
    uniform_buffers = UniformBuffers(state.tree.uniforms, *state.noise, state.roles)
    with (
        patch.object(grown, "_passes", DeviceRows(rows if plan.drawn == "top_k" else logits_of(rows).numpy(), state)),
        patch.object(children, "TILE", 4),  # so that a row has several tiles
        patch.object(likeliest, "GROUP", 2),  # and several groups
        patch.object(static_growth, "probs", copied),
        patch.object(likeliest, "row_masses", given_masses),
    ):
        for room in cycles:
            state.progress.cells.copy_(GRID.cells - 1 - torch.tensor(room))
            limits = grown.limits
            most = limits.depths, limits.totals
            prepare(state.verdicts.status, state.progress, *most, state.lengths, uniform_buffers, None)
            state.tree.uniforms[:, 0] = torch.from_numpy(uniforms)[:, : plan.envelope.nodes]
            grown.grow(state)
    trees = []
    for image, size in enumerate(state.tree.counts.tolist()):
        rows_of = state.tree.draft_rows[image, :size].tolist() if plan.drawn != "top_k" else []
        drafted = {node: state.tree.draft_probs[image, row].tolist() for node, row in enumerate(rows_of) if row >= 0}
        tokens, parents = (part[image, :size].tolist() for part in (state.tree.tokens, state.tree.parents))
        trees.append(Grown(tokens, parents, drafted))
    return trees


def by_host(policy: Policy, rows: FloatArray, room: int, root: int, uniforms: FloatArray) -> Grown:
    if room == 0:
        return Grown([root], [-1], {})
    if plan_of(policy, GRID, rows.shape[1], MAX_NODES).drawn != "top_k":
        rows = sampled_probs(logits_of(rows)[None], SamplingParams()).numpy()
    tree = policy.grow(HostRows(rows), root, Budget(room, MAX_NODES), from_arrays({Role.DRAFT: uniforms}))
    draft_rows = tree.draft_rows.tolist() if tree.drawn != "top_k" else []
    drafted = {node: tree.draft_probs[row].tolist() for node, row in enumerate(draft_rows) if row >= 0}
    return Grown(tree.tokens.tolist(), tree.parents.tolist(), drafted)
