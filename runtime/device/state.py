"""The state of a batch on the device: every buffer that a cycle reads or writes, at addresses that never change."""

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
    """The fixed sizes that every cycle's tree fits into; masks hide what an image leaves unused.

    Attributes:
        nodes: Nodes of the tree, root included.
        levels: Levels of the tree below the root, with one drafter pass each unless `passes` is set.
        frontier: Largest number of nodes that a level expands.
        children: Largest number of children of a node.
        draft_rows: Number of drafter distributions that are kept for the rule, at least 1.
        wide: Whether these are float64, for mixtures of model outputs, which have more digits.
        passes: Largest number of drafter passes, if it differs from `levels`.
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
        """Drafter cache slots that one cycle needs: first for the pending tokens, then for each level's nodes."""
        passes = self.levels if self.passes is None else self.passes
        return max(self.levels + 1, (passes - 1) * self.frontier, 1)


class NoiseKeys(NamedTuple):
    """Noise keys of the images, [B] int64 each; see `algos.chance.Philox`."""

    seeds: Tensor
    images: Tensor


@dataclass(frozen=True, slots=True)
class State:
    """The buffers of a batch of B images. Logits and caches hold the conditional rows first, then the other rows.

    `pending_features` [R, L + 1, F] are target features of the tokens that the drafter has not been fed.
    `verdicts.finite` [B, N + D] covers the target's N rows, then the drafter's D rows.
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
        draft_dtype: torch.dtype | None = None,
    ) -> Self:
        """Allocate buffers for `batch` images of `cells` tokens after at most `prefix` condition positions.

        Args:
            batch: Number of images.
            envelope: Fixed sizes that every cycle's tree fits into.
            cells: Tokens per image.
            prefix: Largest number of condition positions.
            target: Sizes of the target.
            drafter: Sizes of the drafter; None for no drafter cache.
            rows: Rows per image, 2 for a guidance pair.
            dtype: Data type of the target, see `DeviceDecoder`.
            device: Device of the buffers.
            lines: End-of-line tokens per image, which double the target's slots.
            places: Places of target and drafter, see `DeviceDecoder`.
            draft_dtype: Data type of the drafter, see `DeviceDecoder`; None for the target's.

        Raises:
            ValueError: The envelope has more nodes than a tree's mask has bits.
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
            else Cache(drafter, rows, cells + pending, envelope.slots, draft_dtype or dtype, device, places[1]),
            pending_features=zeros(rows, pending, target.dim, dtype=dtype),
        )

    @property
    def layout(self) -> TreePlaces:
        """Where each image's tree lies: decided cells, and the positions and depths of its nodes."""
        return TreePlaces(self.progress.cells, self.positions, self.depths)


def begin_images(
    state: State, target: DeviceDecoder, condition: Tensor, seeds: Tensor, images: Tensor, hidden: Tensor | None
) -> Tensor:
    """Forget the images before, and prefill the conditions of a batch; for the arguments see `BatchCycle.begin`.

    Returns:
        [R, 1, F]: the target's features at the last condition position, which predict the first cell.
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
    draft_dtype: torch.dtype | None = None,
) -> int:
    """Return the bytes of a batch's buffers without weights; the largest logits of a pass count twice.

    The scores of the condition's pass (in the model's type, and twice in float32) count where they are larger. The
    float64 residual of each node's row counts too, whether or not the rule keeps it. See `State.allocate` for the
    arguments, and for the error that it raises.
    """
    meta = torch.device("meta")
    sizes = (batch, envelope, cells, prefix, target, drafter, rows, dtype, meta)
    state = State.allocate(*sizes, draft_dtype=draft_dtype)
    logits = 2 * 4 * rows * batch * envelope.nodes * target.vocab_size
    features = rows * batch * target.dim * dtype.itemsize * (envelope.nodes + 2 * envelope.frontier)
    buffers = _tensors(tuple(getattr(state, field.name) for field in fields(state)))
    residuals = 8 * batch * envelope.nodes * target.vocab_size
    prefill = rows * batch * target.heads * prefix**2 * (dtype.itemsize + 8)
    return max(logits + features, prefill) + residuals + sum(tensor.nbytes for tensor in buffers)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Cache):
        yield from (value.committed, value.slots, value.unseen, value.prompts, value.arrivals)
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
