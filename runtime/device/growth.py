"""Tree policies on the device: their device forms, and the drafter passes that grow a cycle's trees.

Trees have an envelope of fixed size. Adaptive policies only change masks: an image whose tree is shallower, narrower
or smaller than the envelope leaves the rest unused.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.spec import policy_spec_of
from underpaint.algos.protocols import Grid, Policy
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.forwards import DeviceDecoder, causal_masks
from underpaint.runtime.device.kernels.commit import Handed
from underpaint.runtime.device.kernels.growth import ExpandedRows
from underpaint.runtime.device.kernels.likeliest import FiniteMarks
from underpaint.runtime.device.rules import load_form
from underpaint.runtime.device.state import Envelope, State


class Limits(NamedTuple):
    """Depth, width and number of draft nodes of every image's next tree, [B] int64 each."""

    depths: Tensor
    widths: Tensor
    totals: Tensor


def limits_of(state: State, depth: int, width: int, total: int) -> Limits:
    """Return the same limits for every image."""
    device = state.roles.device
    return Limits(
        *(torch.full((state.batch,), number, dtype=torch.int64, device=device) for number in (depth, width, total))
    )


class Growth(Protocol):
    """A policy's part of a cycle; `limits` apply to the next cycle's trees."""

    limits: Limits

    @property
    def lays_out(self) -> bool:
        """Whether `grow` also fills the tree metadata that `tree_meta` would compute."""
        ...

    def begin(self) -> None:
        """Reset for new images, whose first tokens are decided from row 0 of the tree's distributions."""
        ...

    def grow(self, state: State) -> None:
        """Fill the tree's tokens, parents and counts, and the drafter's distributions if siblings are sampled."""
        ...

    def observe(self, state: State) -> None:
        """Learn from the verdicts, after the images have advanced."""
        ...


class Plan(NamedTuple):
    """What a policy needs on the device.

    Attributes:
        envelope: Fixed sizes that the policy's trees fit into.
        drawn: How the policy draws siblings.
        make: Makes the policy's growth from the batch's buffers, the drafter and the sampler.
        by_target: Whether the target drafts for itself, without a drafter.
        image_bytes: Bytes per image beyond the envelope's buffers.
        most_images: Largest batch; None for any.
        chooses: Whether the growth is a `ChosenGrowth`.
    """

    envelope: Envelope
    drawn: Drawn
    make: Callable[[State, DeviceDecoder, SamplingParams], Growth]
    by_target: bool = False
    image_bytes: int = 0
    most_images: int | None = None
    chooses: bool = False


class Room(NamedTuple):
    """Limits of a policy's trees.

    Attributes:
        grid: Grid of the picture's cells.
        vocab_size: Vocabulary size.
        max_nodes: Nodes of the largest target pass, root included.
        drawn: How the policy draws siblings, from its spec.
    """

    grid: Grid
    vocab_size: int
    max_nodes: int
    drawn: Drawn


def plan_of(policy: Policy, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
    """Return the envelope and the growth of a policy; ValueError if it has no device form."""
    spec = policy_spec_of(policy)
    if spec is None or spec.device is None:
        raise ValueError(
            f"device: policy {type(policy).__name__} has no form on the device; those that have one: "
            f"{', '.join(one.name for one in POLICIES if one.device)}; choose one of them, or decode on the host"
        )
    plan: Plan = load_form(spec.device)(policy, Room(grid, vocab_size, max_nodes, spec.drawn))
    return plan


def finite_marks(state: State) -> FiniteMarks:
    """Return the marks in which a level records the drafter rows that are not finite."""
    marks = state.verdicts.finite.narrow(1, state.envelope.nodes, state.envelope.draft_rows)
    return FiniteMarks(marks, marks.stride(0))


class DraftPasses:
    """The drafter passes of one cycle: one over the pending tokens, then one over each level's nodes."""

    def __init__(self, drafter: DeviceDecoder, state: State, live: int) -> None:
        if state.draft_cache is None:
            raise ValueError("device: this policy needs a drafter, and the batch was allocated without one")
        self._drafter, self._state, self._cache, self._live = drafter, state, state.draft_cache, live
        count = state.envelope.levels + 1
        masks = causal_masks(count, self._cache.words, state.roles.device)
        self._causal = masks.repeat(state.batch, 1, 1)
        self._above: Tensor | None = None

    def root(self) -> Tensor:
        """Feed and commit the pending tokens, the root last; return the root's logits [rows, B, 1, V]."""
        self._above = self.feed()
        return self._logits(self._above)

    def feed(self) -> Tensor:
        """Feed and commit the same tokens without computing logits; return the root's feature [R, 1, F]."""
        state, lengths, progress = self._state, self._state.lengths, self._state.progress
        attend = self._cache.attend(0, lengths.draft_before, self._causal, self._live)
        features = self._drafter.draft_hidden(
            progress.pending, state.pending_features, None, lengths.pending_positions, attend
        )
        rows, count, width = features.shape
        root = features.new_empty(rows, 1, width)
        self._cache.commit(
            state.verdicts.path,
            progress.pending_counts,
            lengths.draft_before,
            progress.pending.shape[1],
            walked=False,
            handed=Handed(features, root, lengths.last, count, width),
        )
        return root

    def level(self, level: int, tokens: Tensor, parents: Tensor, masks: Tensor, first: int) -> Tensor:
        """Feed a level's nodes, tokens [B, F]; parents [B, F] index the level before (in level 1: 0, the root).

        Returns the nodes' logits [rows, B, F, V]. `masks` [B, F, words] are the slots that each node sees; the nodes
        themselves take the slots from `first` on.
        """
        state, count = self._state, tokens.shape[1]
        assert self._above is not None, "a level stands behind the root"
        positions = state.lengths.level_positions.select(0, level).narrow(1, 0, count)
        attend = self._cache.attend(first, state.lengths.draft, masks, self._live)
        self._above = self._drafter.draft_hidden(tokens, self._above, parents, positions, attend)
        return self._logits(self._above)

    def expand(self, level: int, front: ExpandedRows) -> Tensor:
        """Feed the nodes of one level in `front`, where level 0 is the root; see `root` and `level`."""
        if not level:
            return self.root()
        tokens, parents, masks = (part.select(0, level) for part in (front.tokens, front.parents, front.masks))
        return self.level(level, tokens, parents, masks, (level - 1) * self._state.envelope.frontier)

    def _logits(self, features: Tensor) -> Tensor:
        logits = self._drafter.logits(features)
        return logits.view(self._drafter.rows, self._state.batch, -1, self._drafter.config.vocab_size)
