"""Decoding batches on the device: captured graphs, replayed until every image is done."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.runtime.device.capture import GraphCapture
from underpaint.runtime.device.chosen_growth import Program
from underpaint.runtime.device.devices import DeviceClock, check_memory
from underpaint.runtime.device.folder import EmbeddedBatch
from underpaint.runtime.device.forms import BatchCycle, BatchSizes, DeviceError, DeviceForm
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.kernels.walk import DONE, NO_SUPPORT, NOT_DRAWN, NOT_FINITE
from underpaint.runtime.device.low_models import LowDraft
from underpaint.runtime.device.slots import Arrival, ContinuousBatch, ImageProgress, SlotCopy
from underpaint.runtime.device.state import needed_bytes

ENDINGS: Final = {
    NOT_FINITE: "its logits held NaN or infinity; check the weights and their precision",
    NO_SUPPORT: "a distribution held no token; check the sampler's settings",
    NOT_DRAWN: "a drafted token had no probability under the drafter's distribution",
}


Watch: TypeAlias = Callable[[list[int]], None]
"""Callback at every poll: the number of decided cells of each image."""


class DecodedImage(NamedTuple):
    """The result of decoding one image.

    Attributes:
        tokens: [cells] int64; None if the image ended with an error.
        cycles: Number of cycles that the image took.
        error: Error message, or None.
        history: [cycles, 3] int64; see `kernels.layout.Progress`.
        passes: Drafter passes, if a policy chooses them. None means one per level of the envelope in every cycle.
        kept_cells: See `BatchCycle.draft_outcome`; None if the method drafts no picture.
        rejected: See `BatchCycle.draft_outcome`; None if the method drafts no picture.
    """

    tokens: IntArray | None
    cycles: int
    error: str | None
    history: IntArray
    passes: int | None = None
    kept_cells: IntArray | None = None
    rejected: int | None = None


class DeviceRunner:
    """Decodes up to `batch` images at a time with one method."""

    def __init__(
        self,
        target: DeviceDecoder,
        drafter: DeviceDecoder | None,
        method: DeviceForm,
        grid: Grid,
        prefix: int,
        batch: int,
        device: torch.device,
        line_token: int | None = None,
        low: LowDraft | None = None,
    ) -> None:
        """Allocate the buffers of a batch.

        Args:
            target: The target model, on the device.
            drafter: The drafter; None for a method without one.
            method: Device form of the decoding method.
            grid: Grid of the image's cells.
            prefix: Largest number of condition positions.
            batch: Number of batch slots.
            device: Device of the models.
            line_token: Token that `target` embeds after every line of the picture except the last; None for none.
            low: The models that draft, for a method that drafts with a smaller target.

        Raises:
            ValueError: The method does not support these sizes.
            DeviceError: The device has too little free memory.
        """
        self.batch, self.grid, self._device = batch, grid, device
        layout = method.layout(grid, target.config.vocab_size, line_token, batch)
        drafting = drafter.config if drafter is not None and method.drafts else None
        images = batch + (batch > 1)  # the extra one starts the images that enter a free slot
        models = (target.config, drafting, target.rows, target.dtype, None if drafter is None else drafter.dtype)
        needed = needed_bytes(images, layout.envelope, grid.cells, prefix, *models)
        if low is not None:
            needed += low.draft_bytes(batch, target, grid)
        check_memory(device, needed + images * layout.image_bytes)
        sizes = BatchSizes(grid, prefix, batch, device, line_token)
        self.cycle = method.cycle(target, drafter, sizes, low)
        self._single: tuple[BatchCycle, SlotCopy] | None = None
        """One-image program in which a new image starts, and the copy into its slot; None if slots are not refilled."""
        if batch > 1 and not self.chooses and len(self.cycle.stages) == 1:
            single = method.cycle(target, drafter, sizes._replace(batch=1), low)
            self._single = single, SlotCopy.between(single, self.cycle, batch)
        self.clock = DeviceClock(device)
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._capture_graph = GraphCapture(device) if device.type == "cuda" else None
        self._chosen: dict[Program, torch.cuda.CUDAGraph | None] = {}
        self._steps = 0

    @torch.no_grad()
    def begin(
        self,
        condition: Tensor,
        seeds: Sequence[int],
        images: Sequence[int],
        hidden: Tensor | None = None,
        low: EmbeddedBatch | None = None,
    ) -> None:
        """Start n <= batch images with condition [rows * n, P, F], the conditional rows first.

        `seeds` and `images` are the two halves of the noise keys, from 0 to `algos.chance.MOST_SEED`. `hidden`
        [rows * n] int64 counts the leading positions that a row does not see. `low` is the condition of the smaller
        target, if one drafts. Unused slots are filled with copies of the last image.
        """
        count = len(images)
        if not 1 <= count <= self.batch or len(seeds) != count:
            raise DeviceError(
                f"expected 1 to {self.batch} images, as many as were captured, a seed each, got {count} images and "
                f"{len(seeds)} seeds; make a larger runner, or decode in parts"
            )
        rows = condition.shape[0] // count
        filled = torch.tensor([min(place, count - 1) for place in range(self.batch)], device=condition.device)
        index = torch.cat([filled + row * count for row in range(rows)])
        words = [[_signed(part[place]) for place in filled.tolist()] for part in (seeds, images)]
        keys = torch.tensor(words, dtype=torch.int64, device=self._device)
        self._steps, slot_hidden = 0, None if hidden is None else hidden[index]
        with self.clock:
            if low is not None:
                low = EmbeddedBatch(low.rows[index], low.hidden[index])
            self.cycle.begin(condition[index], keys[0], keys[1], slot_hidden, low)

    @torch.no_grad()
    def capture(self) -> None:
        """Compile every kernel and capture each stage as a CUDA graph. Call it once, after the first `begin`.

        The images that were begun are lost. If a policy chooses the programs, they are captured later, when used.
        """
        if self._capture_graph is not None and not self._graphs and not self.chooses:
            self._graphs = [self._capture_graph(run)[0] for run, _ in self.cycle.stages]

    @property
    def captured(self) -> bool:
        """Whether cycles are replayed as CUDA graphs."""
        return bool(self._graphs) or any(self._chosen.values())

    @torch.no_grad()
    def step(self) -> None:
        """Run one cycle of every image that is not done. Nothing is read back, unless a policy chooses the programs."""
        chooser, stages = self.cycle.chooser, self.cycle.stages
        if chooser is not None:
            chooser.choose()
            self._launch(chooser.program)
            chooser.learn()
            return
        place, before = 0, 0
        while (times := stages[place][1]) is not None and self._steps >= before + times:
            place, before = place + 1, before + times
        self._steps += 1
        if self._graphs:
            self._graphs[place].replay()
        else:
            stages[place][0]()

    @property
    def chooses(self) -> bool:
        """Whether the host chooses what each cycle drafts."""
        return self.cycle.chooser is not None

    def _launch(self, program: Program) -> None:
        """Run the chosen program. On a GPU its first run compiles it, and its second one captures it for replay."""
        if self._capture_graph is None or program not in self._chosen:
            self._chosen[program] = None
            self.cycle.run()
            return
        graph = self._chosen[program]
        if graph is None:
            graph, _ = self._capture_graph(self.cycle.run, warm_ups=0)
            self._chosen[program] = graph
        graph.replay()

    def finish(self, count: int, poll: int = 8, watch: Watch | None = None) -> list[DecodedImage]:
        """Run cycles until the first `count` images are done, polling every `poll` cycles; return these images."""
        ended, cells = self.look()
        while not all(ended):
            if watch is not None:
                watch(cells[:count])
            ended, cells = self.advance(poll)
        return [self.read(place, ended[place]) for place in range(count)]

    @property
    def refills(self) -> bool:
        """Whether a slot can be refilled while other images continue.

        False for a batch of one, for a policy that chooses each program, and for a method with several stages.
        """
        return self._single is not None

    def decode_all(
        self, arrivals: Iterable[Arrival], poll: int = 8, watch: Watch | None = None
    ) -> Iterator[tuple[int, DecodedImage]]:
        """Draw any number of images, each of which enters a slot as soon as one is free; see `ContinuousBatch`.

        Args:
            arrivals: The images, taken as slots become free.
            poll: On a GPU, number of cycles between two polls for finished images.
            watch: Callback: the number of decided cells of each image in a slot.

        Yields:
            The image's number in order of arrival, from 0, and its result, in the order in which images end.
        """
        batch, waiting = ContinuousBatch(self), enumerate(arrivals)
        while True:
            for number, arrival in islice(waiting, batch.room):
                batch.add(number, arrival)
            if not len(batch):
                return
            yield from batch.step(poll)
            if watch is not None and batch.cells:
                watch(list(batch.cells.values()))

    @torch.no_grad()
    def fill(self, slot: int, arrival: Arrival) -> None:
        """Begin an image in a batch of one, and copy it into a slot. Needs `refills`."""
        assert self._single is not None, "asked for by `refills`"
        single, copy = self._single
        keys = torch.tensor([_signed(arrival.seed), _signed(arrival.image)], dtype=torch.int64, device=self._device)
        with self.clock:
            single.begin(arrival.condition, keys[:1], keys[1:], arrival.hidden)
            copy.into(slot)

    def end(self, slot: int) -> None:
        """Stop the image in a slot: it makes no more passes."""
        self.cycle.state.verdicts.status[slot] = DONE

    def advance(self, poll: int) -> tuple[list[int], list[int]]:
        """Run `poll` cycles (one on the CPU, or if a policy chooses each program), then return `look()`."""
        with self.clock:
            for _ in range(poll if self._device.type == "cuda" and not self.chooses else 1):
                self.step()
        return self.look()

    def look(self) -> tuple[list[int], list[int]]:
        """Return each slot's final status (0 while its image continues) and decided cells. Waits for the device."""
        state = self.cycle.state
        ended, cells = torch.stack([state.verdicts.status, state.progress.cells]).tolist()
        return ended, cells

    def read(self, place: int, ended: int) -> DecodedImage:
        """Return the result of the image in a slot, which ended with status `ended`."""
        progress, chooser, outcome = self.cycle.state.progress, self.cycle.chooser, self.cycle.draft_outcome()
        cycles = int(progress.cycles[place])
        tokens = progress.decided[place].cpu().numpy().copy() if ended == DONE else None
        history = progress.history[place, :cycles].cpu().numpy().copy()
        kept_cells, rejected = (None, None) if outcome is None else (outcome[0][place], outcome[1][place])
        error, passes = None if ended == DONE else ENDINGS[ended], None if chooser is None else chooser.passes
        return DecodedImage(tokens, cycles, error, history, passes, kept_cells, rejected)

    def progress(self, place: int) -> ImageProgress:
        """Return how far the image in a slot is. Waits for the device."""
        progress, cycle = self.cycle.state.progress, self.cycle
        cycles = int(progress.cycles[place])
        tokens, history = progress.decided[place].cpu().numpy().copy(), progress.history[place, :cycles].cpu().numpy()
        return ImageProgress(tokens, cycle.decided(place), cycles, history, cycle.refused(place))


def _signed(number: int) -> int:
    """Convert an unsigned 64-bit number to the signed one that a tensor holds."""
    return number - (1 << 64) if number >> 63 else number
