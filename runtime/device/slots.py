"""Continuous batching: images enter and leave a running batch, and a slot that is free is filled at once.

A batch that waits for its slowest image leaves slots idle. Here a new image begins in a batch of one, and what that
batch holds is copied into the free slot: lengths, caches, noise, and what a policy learned. Captured graphs
stay as they are, for no buffer moves.
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
    """An image that is to be drawn.

    Attributes:
        condition: [rows, P, F], the conditional row first.
        seed: Of its noise, from 0 to `algos.chance.MOST_SEED`.
        image: The other part of its noise's key.
        hidden: [rows] int64, leading positions that a row does not see; None for none.
        low: The condition of the target that drafts, where one does.
    """

    condition: Tensor
    seed: int
    image: int
    hidden: Tensor | None = None
    low: EmbeddedBatch | None = None


class ContinuousBatch:
    """The images in a runner's slots: each enters when a slot is free, and leaves when it ends or is removed.

    The tokens of an image do not depend on what shares its batch, nor on when it came. Where a runner does not fill
    single slots again (see `DeviceRunner.refills`), images wait until the batch before them has ended.
    """

    def __init__(self, runner: DeviceRunner, *, begun: bool = False) -> None:
        """Take the slots of a runner.

        Args:
            runner: What draws. It is used by nothing else until the last image has left.
            begun: Whether the runner has begun images before. What it holds of them is dropped, and every image enters
                a slot by itself; else the first ones begin together.
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
        """How many images can be added."""
        return self._runner.batch - len(self)

    @property
    def cells(self) -> dict[int, int]:
        """By the images' numbers, how many of their cells are decided; images that wait are not among them."""
        return self._cells

    def add(self, number: int, arrival: Arrival) -> None:
        """Let an image enter with the next step.

        Args:
            number: Names the image until it leaves; no other one here may have it.
            arrival: The image.
        """
        assert self.room, "ask `room` first"
        self._waiting[number] = arrival

    def remove(self, number: int) -> None:
        """Drop an image: its slot is free at once, and makes no more passes."""
        self._cells.pop(number, None)
        if self._waiting.pop(number, None) is None:
            slot = self._slots.index(number)
            self._slots[slot] = None
            self._runner.end(slot)

    def step(self, poll: int = 8) -> list[tuple[int, DecodedImage]]:
        """Let images enter, and make cycles of all that are there.

        Args:
            poll: Cycles before the host looks at what is done, on a GPU.

        Returns:
            The images that ended, with their numbers; they have left.
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
        """Read how far an image in a slot is; waits for the device."""
        return self._runner.progress(self._slots.index(number))

    def _enter(self) -> bool:
        """Let images that wait enter free slots; whether a whole batch was begun, of which one may have ended."""
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
    """How far an image is.

    Attributes:
        tokens: [cells] int64; those of cells that are not decided mean nothing.
        decided: [cells] bool.
        cycles: How many it took so far.
        history: [cycles, 3] int64; see `kernels.layout.Progress`.
        refused: Cells [n] whose drafts were refused; None where no picture is drafted.
    """

    tokens: IntArray
    decided: BoolArray
    cycles: int
    history: IntArray
    refused: IntArray | None = None


def _together(arrivals: Sequence[Arrival]) -> tuple[EmbeddedBatch, EmbeddedBatch | None]:
    """Conditions as a batch begins with them."""
    batch = padded_rows([one.condition for one in arrivals], [one.hidden for one in arrivals])
    low = [one.low for one in arrivals if one.low is not None]
    return batch, padded_rows([one.rows for one in low], [one.hidden for one in low]) if low else None


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
