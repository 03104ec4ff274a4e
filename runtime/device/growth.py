"""What a tree policy is on the device: the passes of the drafter that make a cycle's trees, in a fixed envelope.

Adaptive policies are mask contents: an image whose tree is shallower, narrower or smaller than the envelope leaves the
rest unused.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from underpaint.runtime.device.forwards import DeviceDecoder, causal_masks, gather_rows
from underpaint.runtime.device.state import State


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
        made, state = self.feed(), self._state
        self._above = gather_rows(made, state.lengths.last.unsqueeze(1), self._drafter.rows)
        return self._logits(self._above)

    def feed(self) -> Tensor:
        """Feed the same without asking what comes next; the features [R, D + 1, F]."""
        state, lengths, progress = self._state, self._state.lengths, self._state.progress
        attend = self._cache.attend(0, lengths.draft_before, self._causal, self._live)
        made = self._drafter.draft_hidden(
            progress.pending, state.pending_features, None, lengths.pending_positions, attend
        )
        self._cache.commit(
            state.verdicts.path,
            progress.pending_counts,
            lengths.draft_before,
            progress.pending.shape[1],
            walked=False,
        )
        return made

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

    def _logits(self, features: Tensor) -> Tensor:
        logits = self._drafter.logits(features)
        return logits.view(self._drafter.rows, self._state.batch, -1, self._drafter.config.vocab_size)
