"""Continuous batching: images enter and leave a running batch, and a free slot is refilled at once.

A batch that waits for its slowest image leaves slots idle. Here a new image starts in a batch of one, whose state is
then copied into the free slot: lengths, KV caches, noise keys, and what the policy has learned. No buffer moves, so
captured graphs stay valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.runtime.device.folder import EmbeddedBatch, padded_rows
from underpaint.runtime.device.forms import BatchCycle

if TYPE_CHECKING:
    from underpaint.runtime.device.runner import DecodedImage, DeviceRunner


class Arrival(NamedTuple):
    """A request to draw one image.

    Attributes:
        condition: Embedded condition [rows, P, F], the conditional row first.
        seed: First half of the noise key, from 0 to `algos.chance.MOST_SEED`.
        image: Second half of the noise key.
        hidden: Number of leading positions that each row does not see, [rows] int64; None means 0.
        low: Condition of the smaller target that drafts, if there is one.
    """

    condition: Tensor
    seed: int
    image: int
    hidden: Tensor | None = None
    low: EmbeddedBatch | None = None


class ContinuousBatch:
    """Images in a runner's batch slots: each enters when a slot is free, and leaves when it ends or is removed.

    An image's tokens do not depend on the other images in its batch, or on its arrival time. If the runner cannot
    refill single slots (see `DeviceRunner.refills`), new images wait until the whole batch has ended.
    """

    def __init__(self, runner: DeviceRunner, *, begun: bool = False) -> None:
        """Take over the slots of a runner.

        Args:
            runner: Runs the batch. Nothing else may use it until the last image has left.
            begun: Whether the runner has begun images before. If so, those images are dropped, and every new image
                enters a slot by itself. If not, the first images begin together.
        """
        self._runner = runner
        self._slots: list[int | None] = [None] * runner.batch
        self._waiting: dict[int, Arrival] = {}
        self._cells: dict[int, int] = {}
        self._begun = begun
        if begun:
            for slot in range(runner.batch):
                runner.end(slot)

    def __len__(self) -> int:
        return len(self._waiting) + self._runner.batch - self._slots.count(None)

    @property
    def room(self) -> int:
        """Number of images that can be added now."""
        return self._runner.batch - len(self)

    @property
    def cells(self) -> dict[int, int]:
        """Number of decided cells of each image in a slot, by image number; waiting images are left out."""
        return self._cells

    def add(self, number: int, arrival: Arrival) -> None:
        """Queue an image, which enters a slot in the next step that has one free.

        Args:
            number: Identifies the image until it leaves; must be unique in this batch.
            arrival: The image.
        """
        assert self.room, "ask `room` first"
        self._waiting[number] = arrival

    def remove(self, number: int) -> None:
        """Drop an image. Its slot is free at once, and makes no more passes."""
        self._cells.pop(number, None)
        if self._waiting.pop(number, None) is None:
            slot = self._slots.index(number)
            self._slots[slot] = None
            self._runner.end(slot)

    def step(self, poll: int = 8) -> list[tuple[int, DecodedImage]]:
        """Let waiting images enter free slots, and run cycles of all images in slots.

        Args:
            poll: On a GPU, number of cycles before the host checks which images have ended.

        Returns:
            Numbers and results of the images that ended; they have left the batch.
        """
        runner = self._runner
        ended, cells = runner.look() if self._enter() else runner.advance(poll)
        done: list[tuple[int, DecodedImage]] = []
        self._cells = {}
        for slot, number in enumerate(self._slots):
            if number is None:
                continue
            if ended[slot]:
                done.append((number, runner.read(slot, ended[slot])))
                self._slots[slot] = None
            else:
                self._cells[number] = cells[slot]
        return done

    def progress(self, number: int) -> ImageProgress:
        """Return how far an image in a slot is. Waits for the device."""
        return self._runner.progress(self._slots.index(number))

    def _enter(self) -> bool:
        """Move waiting images into free slots; True if this began a whole batch, of which one may have ended."""
        runner, free = self._runner, [slot for slot, number in enumerate(self._slots) if number is None]
        if not self._waiting or not free:
            return False
        if runner.refills and self._begun:
            for slot, number in zip(free, tuple(self._waiting), strict=False):
                runner.fill(slot, self._waiting.pop(number))
                self._slots[slot] = number
            return False
        if len(free) < runner.batch:
            return False
        images, self._waiting, self._begun = self._waiting, {}, True
        batch, low = _together(tuple(images.values()))
        seeds, keys = [one.seed for one in images.values()], [one.image for one in images.values()]
        runner.begin(batch.rows, seeds, keys, batch.hidden, low)
        for slot in range(len(images), runner.batch):
            runner.end(slot)
        self._slots[: len(images)] = images
        return True


class ImageProgress(NamedTuple):
    """How far one image is.

    Attributes:
        tokens: [cells] int64; values of undecided cells are meaningless.
        decided: [cells] bool, whether each cell is decided.
        cycles: Number of cycles so far.
        history: [cycles, 3] int64; see `kernels.layout.Progress`.
        refused: Cells [n] whose drafts were refused; None if the method drafts no picture.
    """

    tokens: IntArray
    decided: BoolArray
    cycles: int
    history: IntArray
    refused: IntArray | None = None


def _together(arrivals: Sequence[Arrival]) -> tuple[EmbeddedBatch, EmbeddedBatch | None]:
    """Join the conditions of images into one padded batch, and those of the smaller target into another."""
    batch = padded_rows([one.condition for one in arrivals], [one.hidden for one in arrivals])
    low = [one.low for one in arrivals if one.low is not None]
    return batch, padded_rows([one.rows for one in low], [one.hidden for one in low]) if low else None


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """Copies the buffers of a one-image batch into one slot of a larger batch of the same program.

    Attributes:
        pairs: (buffer of one image, buffer of the batch, axis of the images in the second buffer). That axis holds one
            or more parts, each with all images: first the conditional rows of all images, then the other rows.
        batch: Number of images in the larger batch.
    """

    pairs: tuple[tuple[Tensor, Tensor, int], ...]
    batch: int

    @classmethod
    def between(cls, one: BatchCycle, many: BatchCycle, batch: int) -> SlotCopy:
        """Find every buffer that differs in size between the one-image program and that of `batch` images (2 or more).

        Raises:
            ValueError: No axis of a buffer grows with the batch.
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
                if axis != axes[0]:  # KV caches with few rows are rounded up by more positions
                    small, large = (part.narrow(axis, 0, min(counts)) for part in (small, large))
            pairs.append((small, large, axes[0]))
        return cls(tuple(pairs), batch)

    def into(self, slot: int) -> None:
        """Copy the image into slot 0 to batch - 1, without a read-back."""
        for small, large, axis in self.pairs:
            for part in range(small.shape[axis]):
                large.select(axis, part * self.batch + slot).copy_(small.select(axis, part))


def _buffers(one: Any, many: Any, seen: set[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the matching buffers of two programs of the same form; shared buffers are left out."""
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
