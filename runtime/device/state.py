"""What a batch of images is, on the device: every buffer that a cycle reads or writes, at addresses that never move."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import torch
from torch import Tensor

from underpaint.algos.chance import Role
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.device.forwards import Cache, DeviceDecoder
from underpaint.runtime.device.kernels.layout import Lengths, Progress
from underpaint.runtime.device.kernels.tree_meta import MOST_NODES, TreePlaces
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts

ROLES = (Role.DRAFT, Role.ACCEPT, Role.RESIDUAL, Role.BONUS)
"""Roles that a cycle draws noise for, in the order of `BatchTree.uniforms`."""


class Envelope(NamedTuple):
    """The fixed sizes that every cycle's tree fits into; what an image leaves unused of them is masked.

    nodes: of the tree, the root included. levels: drafter passes. frontier: nodes expanded a level. children: of a
    node. draft_rows: distributions of the drafter that are kept for the rule, at least 1. wide: in float64, as mixtures
    of what the models gave have more digits. passes: of the drafter at most, where that is not its levels.
    """

    nodes: int
    levels: int
    frontier: int
    children: int
    draft_rows: int
    wide: bool = False
    passes: int | None = None

    @property
    def slots(self) -> int:
        """Positions that the drafter holds for one cycle: the tokens it was not fed, then each level's nodes."""
        passes = self.levels if self.passes is None else self.passes
        return max(self.levels + 1, (passes - 1) * self.frontier, 1)


class NoiseKeys(NamedTuple):
    """Where an image's noise is from: `algos.chance.Philox`'s key, [B] int64 each."""

    seeds: Tensor
    images: Tensor


@dataclass(frozen=True, slots=True)
class State:
    """The buffers of a batch of B images. rows of logits and caches: the conditional ones first, then the others.

    pending_features [R, L + 1, F]: the target's, of what the drafter was not fed. finite [B, N + D]: of the target's
    rows and of the drafter's.
    """

    batch: int
    envelope: Envelope
    noise: NoiseKeys
    roles: Tensor
    progress: Progress
    lengths: Lengths
    tree: BatchTree
    depths: Tensor
    positions: Tensor
    verdicts: Verdicts
    support: Tensor
    draft_support: Tensor
    target_cache: Cache
    draft_cache: Cache | None
    pending_features: Tensor

    @classmethod
    def allocate(
        cls,
        batch: int,
        envelope: Envelope,
        cells: int,
        prefix: int,
        target: DecoderConfig,
        drafter: DecoderConfig | None,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
        lines: int = 0,
        places: tuple[int | None, int | None] = (None, None),
    ) -> Self:
        """Buffers for `batch` images of `cells` tokens behind at most `prefix` condition positions.

        rows: of an image, 2 for a guidance pair. lines: end-of-line tokens of an image, for which the target has twice
        the slots. places: of the two decoders, see `DeviceDecoder`.
        Raises ValueError where the envelope is larger than a tree's bits.
        """
        if envelope.nodes > MOST_NODES:
            raise ValueError(
                f"device: a tree holds at most {MOST_NODES} nodes, its root included, got {envelope.nodes}; lower the "
                "policy's total_tokens or widths"
            )

        def whole(*shape: int, fill: int = 0) -> Tensor:
            return torch.full(shape, fill, dtype=torch.int64, device=device)

        nodes, levels, vocab_size = envelope.nodes, envelope.levels, target.vocab_size
        drafted, pending, rows = envelope.draft_rows, levels + 1, rows * batch
        progress = Progress(
            cells=whole(batch),
            cycles=whole(batch),
            roots=whole(batch),
            prefixes=whole(batch),
            pending=whole(batch, pending),
            pending_counts=whole(batch),
            decided=whole(batch, cells),
            history=whole(batch, cells, 3),
        )
        lengths = Lengths(
            target=whole(batch),
            draft_before=whole(batch),
            draft=whole(batch),
            last=whole(batch),
            levels=whole(batch),
            pending_positions=whole(batch, pending),
            level_positions=whole(levels + 1, batch, envelope.frontier),
            level_rows=whole(levels + 1, batch),
        )

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        tree = BatchTree(
            tokens=whole(batch, nodes),
            first=whole(batch, nodes, fill=-1),
            sibling=whole(batch, nodes, fill=-1),
            masks=whole(batch, nodes),
            parents=whole(batch, nodes, fill=-1),
            counts=whole(batch, fill=1),
            probs=zeros(batch, nodes, vocab_size),
            draft_probs=zeros(batch, drafted, vocab_size, dtype=torch.float64 if envelope.wide else torch.float32),
            draft_rows=whole(batch, nodes),
            uniforms=zeros(batch, len(ROLES), nodes, dtype=torch.float64),
        )
        verdicts = Verdicts(
            whole(batch, nodes),
            whole(batch),
            whole(batch),
            whole(batch),
            zeros(batch, nodes + drafted, dtype=torch.int32).fill_(1),
        )
        return cls(
            batch=batch,
            envelope=envelope,
            noise=NoiseKeys(whole(batch), whole(batch)),
            roles=torch.tensor([int(role) for role in ROLES], dtype=torch.int64, device=device),
            progress=progress,
            lengths=lengths,
            tree=tree,
            depths=whole(batch, nodes),
            positions=whole(batch, nodes),
            verdicts=verdicts,
            support=zeros(batch, nodes, dtype=torch.int32),
            draft_support=zeros(batch, drafted, dtype=torch.int32),
            target_cache=Cache(
                target, rows, prefix + cells + lines, nodes * (1 + (lines > 0)), dtype, device, places[0]
            ),
            draft_cache=None
            if drafter is None
            else Cache(drafter, rows, cells + pending, envelope.slots, dtype, device, places[1]),
            pending_features=zeros(rows, pending, target.dim, dtype=dtype),
        )

    @property
    def layout(self) -> TreePlaces:
        """Where the images' trees stand."""
        return TreePlaces(self.progress.cells, self.positions, self.depths)


def begin_images(
    state: State, target: DeviceDecoder, condition: Tensor, seeds: Tensor, images: Tensor, hidden: Tensor | None
) -> Tensor:
    """Forget the images before, and take in the conditions of a batch, as `BatchCycle.begin` is given them.

    Returns:
        [R, 1, F]: the target's features behind the conditions, which tell of the first cell.
    """
    progress, cache, length = state.progress, state.target_cache, condition.shape[1]
    state.noise.seeds.copy_(seeds)
    state.noise.images.copy_(images)
    for part in (progress.cells, progress.cycles, progress.roots, progress.pending_counts, state.verdicts.status):
        part.zero_()
    state.verdicts.finite.fill_(1)
    progress.prefixes.fill_(length)
    for each in (cache, state.draft_cache):
        if each is not None:
            each.clear()
    if hidden is not None:
        cache.unseen.copy_(hidden)
    positions = torch.arange(-length, 0, device=condition.device).repeat(state.batch, 1)
    return target.hidden(condition, positions, cache.prefill())[:, -1:]


def needed_bytes(
    batch: int,
    envelope: Envelope,
    cells: int,
    prefix: int,
    target: DecoderConfig,
    drafter: DecoderConfig | None,
    rows: int,
    dtype: torch.dtype,
) -> int:
    """Bytes of the buffers of a batch, weights left out; the largest logits of a pass are counted twice.

    What a rule leaves of each node's row, in float64, is counted whether the rule keeps it or not.

    See `State.allocate` for the arguments, and for what it raises.
    """
    meta = torch.device("meta")
    state = State.allocate(batch, envelope, cells, prefix, target, drafter, rows, dtype, meta)
    logits = 2 * 4 * rows * batch * envelope.nodes * target.vocab_size
    features = rows * batch * target.dim * dtype.itemsize * (envelope.nodes + 2 * envelope.frontier)
    buffers = _tensors(tuple(getattr(state, field.name) for field in fields(state)))
    left = 8 * batch * envelope.nodes * target.vocab_size
    return logits + features + left + sum(tensor.nbytes for tensor in buffers)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Cache):
        yield from (value.committed, value.slots, value.unseen, value.prompts, value.arrivals)
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
