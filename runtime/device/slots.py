"""Images that enter and leave a running batch: a slot that is free is filled at once.

A batch that waits for its slowest image leaves slots idle. Here a new image begins in a batch of one, and what that
batch holds is copied into the free slot: lengths, caches, noise, and what a policy learned. Captured graphs
stay as they are, for no buffer moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from underpaint.runtime.device.forms import BatchCycle


class Arrival(NamedTuple):
    """An image that is to be drawn.

    Attributes:
        condition: [rows, P, F], the conditional row first; P is that of all images of a run.
        seed: Of its noise, from 0 to `algos.chance.MOST_SEED`.
        image: The other part of its noise's key.
        hidden: [rows] int64, leading positions that a row does not see; None for none.
    """

    condition: Tensor
    seed: int
    image: int
    hidden: Tensor | None = None


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """Copies the buffers of a batch of one image into one slot of a larger batch of the same program.

    Attributes:
        pairs: (buffer of one image, buffer of the batch, the axis along which the second holds all images). Along it
            stand one or more parts after another, each of all images: the conditional rows of all, then the others.
        batch: Images of the larger batch.
    """

    pairs: tuple[tuple[Tensor, Tensor, int], ...]
    batch: int

    @classmethod
    def between(cls, one: BatchCycle, many: BatchCycle, batch: int) -> SlotCopy:
        """Find every buffer that differs in size between the program of one image and that of `batch` (2 or more).

        Raises:
            ValueError: A buffer does not grow with the batch along an axis.
        """
        pairs = list[tuple[Tensor, Tensor, int]]()
        for small, large in _buffers(one, many, set()):
            if small.shape == large.shape:
                continue
            axes = [axis for axis, count in enumerate(small.shape) if large.shape[axis] == batch * count]
            if not axes:
                raise ValueError(
                    f"device: expected a buffer of {batch} images along one axis, got {tuple(large.shape)} where one "
                    f"image has {tuple(small.shape)}"
                )
            for axis, counts in enumerate(zip(small.shape, large.shape, strict=True)):
                if axis != axes[0]:  # caches are rounded up by more positions where their rows are few
                    small, large = (part.narrow(axis, 0, min(counts)) for part in (small, large))
            pairs.append((small, large, axes[0]))
        return cls(tuple(pairs), batch)

    def into(self, slot: int) -> None:
        """Copy into slot 0 to batch - 1; nothing is read back."""
        for small, large, axis in self.pairs:
            for part in range(small.shape[axis]):
                large.select(axis, part * self.batch + slot).copy_(small.select(axis, part))


def _buffers(one: Any, many: Any, seen: set[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """The buffers of two programs of one form, pair by pair; what both share is left out."""
    if one is many or id(many) in seen:
        return
    seen.add(id(many))
    if isinstance(many, Tensor):
        yield one, many
    elif isinstance(many, list | tuple):
        for first, second in zip(one, many, strict=True):
            yield from _buffers(first, second, seen)
    elif isinstance(many, dict):
        for name, second in many.items():
            yield from _buffers(one[name], second, seen)
    elif type(many).__module__.startswith("underpaint.") and not isinstance(many, torch.nn.Module):
        for name in _attributes(many):
            yield from _buffers(getattr(one, name), getattr(many, name), seen)


def _attributes(value: Any) -> list[str]:
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*(name for name in names if hasattr(value, name)), *getattr(value, "__dict__", {})]
