"""What a tree policy is on the device: its form, and the passes of the drafter that make a cycle's trees.

Trees have an envelope of fixed size. Adaptive policies are mask contents: an image whose tree is shallower, narrower
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
    """[B] int64 each: the depth, the width and the drafted nodes of every image's next tree."""

    depths: Tensor
    widths: Tensor
    totals: Tensor


def limits_of(state: State, depth: int, width: int, total: int) -> Limits:
    """The same limits for every image."""
    device = state.roles.device
    return Limits(
        *(torch.full((state.batch,), number, dtype=torch.int64, device=device) for number in (depth, width, total))
    )


class Growth(Protocol):
    """A policy's part of a cycle; `limits` is what the next cycle is laid out by."""

    limits: Limits

    @property
    def lays_out(self) -> bool:
        """Whether `grow` fills what `tree_meta` does too."""
        ...

    def begin(self) -> None:
        """Forget the images before; the first cells of these are decided, from row 0 of the tree's distributions."""
        ...

    def grow(self, state: State) -> None:
        """Fill the tree's tokens, parents, counts and, where siblings are drawn, the drafter's distributions."""
        ...

    def observe(self, state: State) -> None:
        """Learn from the verdicts, after the images have advanced."""
        ...


class Plan(NamedTuple):
    """What a policy needs on the device. make: its growth, given the batch's buffers, the drafter and its sampler.

    by_target: the target drafts for itself, and stands for the drafter. image_bytes: held for an image beside what the
    envelope takes. most_images: of a batch. chooses: the growth is a `ChosenGrowth`.
    """

    envelope: Envelope
    drawn: Drawn
    make: Callable[[State, DeviceDecoder, SamplingParams], Growth]
    by_target: bool = False
    image_bytes: int = 0
    most_images: int | None = None
    chooses: bool = False


class Room(NamedTuple):
    """What a policy's trees must fit into: the picture, V, the nodes of the target's largest pass (root included).

    drawn: how the policy's siblings are drawn, by its spec.
    """

    grid: Grid
    vocab_size: int
    max_nodes: int
    drawn: Drawn


def plan_of(policy: Policy, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
    """The envelope and the growth of a policy; ValueError for one without a form on the device."""
    spec = policy_spec_of(policy)
    if spec is None or spec.device is None:
        raise ValueError(
            f"device: policy {type(policy).__name__} has no form on the device; those that have one: "
            f"{', '.join(one.name for one in POLICIES if one.device)}; choose one of them, or decode on the host"
        )
    plan: Plan = load_form(spec.device)(policy, Room(grid, vocab_size, max_nodes, spec.drawn))
    return plan


def finite_marks(state: State) -> FiniteMarks:
    """Where a level says which rows of the drafter are not finite."""
    marks = state.verdicts.finite.narrow(1, state.envelope.nodes, state.envelope.draft_rows)
    return FiniteMarks(marks, marks.stride(0))


class DraftPasses:
    """The drafter's passes of one cycle: over the tokens it was not fed, then over each level's nodes."""

    def __init__(self, drafter: DeviceDecoder, state: State, live: int) -> None:
        if state.draft_cache is None:
            raise ValueError("device: this policy needs a drafter, and the batch was allocated without one")
        self._drafter, self._state, self._cache, self._live = drafter, state, state.draft_cache, live
        count = state.envelope.levels + 1
        masks = causal_masks(count, self._cache.words, state.roles.device)
        self._causal = masks.repeat(state.batch, 1, 1)
        self._above: Tensor | None = None

    def root(self) -> Tensor:
        """Feed the committed tokens and the root, for good; the root's logits [rows, B, 1, V]."""
        self._above = self.feed()
        return self._logits(self._above)

    def feed(self) -> Tensor:
        """Feed the same without asking what comes next; the root's feature [R, 1, F]."""
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
        """Feed a level's nodes, tokens [B, F] under parents [B, F], places in the level before (level 1: the root's 0).

        Returns their logits [rows, B, F, V]. masks [B, F, words]: the slots that each sees; the nodes take those from
        `first` on.
        """
        state, count = self._state, tokens.shape[1]
        assert self._above is not None, "a level stands behind the root"
        positions = state.lengths.level_positions.select(0, level).narrow(1, 0, count)
        attend = self._cache.attend(first, state.lengths.draft, masks, self._live)
        self._above = self._drafter.draft_hidden(tokens, self._above, parents, positions, attend)
        return self._logits(self._above)

    def expand(self, level: int, front: ExpandedRows) -> Tensor:
        """Feed the nodes that `front` holds of a level, level 0 being the root; see `root` and `level`."""
        if not level:
            return self.root()
        tokens, parents, masks = (part.select(0, level) for part in (front.tokens, front.parents, front.masks))
        return self.level(level, tokens, parents, masks, (level - 1) * self._state.envelope.frontier)

    def _logits(self, features: Tensor) -> Tensor:
        logits = self._drafter.logits(features)
        return logits.view(self._drafter.rows, self._state.batch, -1, self._drafter.config.vocab_size)
