"""Decoding batches on the device: captured graphs, replayed until every image is done."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
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
"""Is told, at every look, how many cells of each image are decided."""


class DecodedImage(NamedTuple):
    """One image. tokens: [cells] int64, None where it ended with an error; cycles: how many it took.

    passes: of the drafter, where a policy chooses; None: as many a cycle as the envelope has levels.
    history [cycles, 3] int64: see `kernels.layout.Progress`. kept_cells, rejected: see `BatchCycle.draft_outcome`; None
    where no picture is drafted.
    """

    tokens: IntArray | None
    cycles: int
    error: str | None
    history: IntArray
    passes: int | None = None
    kept_cells: IntArray | None = None
    rejected: int | None = None


class DeviceRunner:
    """Decodes up to `batch` images at a time by one method."""

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
            target: The target on the device.
            drafter: The drafter; None where there is none.
            method: What to decode by.
            grid: The image as cells.
            prefix: Condition positions at most.
            batch: Images that are drawn together.
            device: Where the models are.
            line_token: What `target` embeds behind every line of the picture but the last; None for nothing.
            low: What drafts, for a method that drafts with a smaller target.

        Raises:
            ValueError: The method has no form for these sizes.
            DeviceError: The device has too little memory free.
        """
        self.batch, self.grid, self._device = batch, grid, device
        layout = method.layout(grid, target.config.vocab_size, line_token, batch)
        drafting = drafter.config if drafter is not None and method.drafts else None
        images = batch + (batch > 1)  # one more, in which an image begins that takes a free slot
        needed = needed_bytes(
            images, layout.envelope, grid.cells, prefix, target.config, drafting, target.rows, target.dtype
        )
        if low is not None:
            needed += low.draft_bytes(batch, target, grid)
        check_memory(device, needed + images * layout.image_bytes)
        sizes = BatchSizes(grid, prefix, batch, device, line_token)
        self.cycle = method.cycle(target, drafter, sizes, low)
        self._single: tuple[BatchCycle, SlotCopy] | None = None
        """Where an image begins that takes a free slot; None where slots are not filled again."""
        if batch > 1 and not self.chooses and len(self.cycle.stages) == 1:
            single = method.cycle(target, drafter, sizes._replace(batch=1), low)
            self._single = single, SlotCopy.between(single, self.cycle, batch)
        self.clock = DeviceClock(device)
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
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
        """Start images; condition [rows * n, P, F] for n <= batch images, the conditional rows first.

        seeds and images name their noise, from 0 to `algos.chance.MOST_SEED`. hidden [rows * n] int64: leading
        positions that a row does not see. low: the same of the target that drafts, where one does. A short batch is
        filled up with copies of its last image.
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
        self.clock.restart()
        self._steps, shown = 0, None if hidden is None else hidden[index]
        with self.clock:
            if low is not None:
                low = EmbeddedBatch(low.rows[index], low.hidden[index])
            self.cycle.begin(condition[index], keys[0], keys[1], shown, low)

    @torch.no_grad()
    def capture(self) -> None:
        """Compile every kernel and capture each stage as a CUDA graph; call it after the first `begin`, once.

        What was begun is lost. The programs of a policy that chooses are captured as they come up.
        """
        if self._device.type != "cuda" or self._graphs or self.chooses:
            return
        graphs = list[torch.cuda.CUDAGraph]()
        for run, _ in self.cycle.stages:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    run()
            torch.cuda.current_stream().wait_stream(side)
            graphs.append(_captured(run, self._pool))
        self._graphs = graphs

    @property
    def captured(self) -> bool:
        """Whether cycles are replayed as CUDA graphs."""
        return bool(self._graphs) or any(self._chosen.values())

    @torch.no_grad()
    def step(self) -> None:
        """One cycle of every image that is not done; nothing is read back but where a policy chooses."""
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
        """Run the program of a choice: the first time as it is, which compiles it; then it is captured."""
        if self._device.type != "cuda" or program not in self._chosen:
            self._chosen[program] = None
            self.cycle.launch()
            return
        graph = self._chosen[program]
        if graph is None:
            graph = self._chosen[program] = _captured(self.cycle.launch, self._pool)
        graph.replay()

    def finish(self, count: int, poll: int = 8, watch: Watch | None = None) -> list[DecodedImage]:
        """Go on until the first `count` images are done, looking every `poll` cycles, and read them back."""
        ended, cells = self.look()
        while not all(ended):
            if watch is not None:
                watch(cells[:count])
            ended, cells = self.advance(poll)
        return [self.read(place, ended[place]) for place in range(count)]

    @property
    def refills(self) -> bool:
        """Whether a slot is filled again while others go on.

        Not where a policy chooses each program, or stages follow each other.
        """
        return self._single is not None

    def decode_all(
        self, arrivals: Iterable[Arrival], poll: int = 8, watch: Watch | None = None
    ) -> Iterator[tuple[int, DecodedImage]]:
        """Draw any number of images, each of which takes a free slot as soon as there is one; see `ContinuousBatch`.

        Args:
            arrivals: The images, taken as slots become free.
            poll: Cycles between two looks at what is done, on a GPU.
            watch: Is told how many cells of each image in a slot are decided.

        Yields:
            The number of the image in the order of its arrival, from 0, and what was drawn, in the order of ending.
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
        """Begin an image in a batch of one, and copy it into a slot; only where `refills`."""
        assert self._single is not None, "asked for by `refills`"
        single, copy = self._single
        keys = torch.tensor([_signed(arrival.seed), _signed(arrival.image)], dtype=torch.int64, device=self._device)
        with self.clock:
            single.begin(arrival.condition, keys[:1], keys[1:], arrival.hidden)
            copy.into(slot)

    def end(self, slot: int) -> None:
        """Give up the image in a slot: it makes no more passes."""
        self.cycle.state.verdicts.status[slot] = DONE

    def advance(self, poll: int) -> tuple[list[int], list[int]]:
        """Make `poll` cycles on a GPU, else one, and look; see `look`."""
        with self.clock:
            for _ in range(poll if self._device.type == "cuda" and not self.chooses else 1):
                self.step()
        return self.look()

    def look(self) -> tuple[list[int], list[int]]:
        """How each slot's image ended, 0 where it goes on, and its decided cells; waits for the device."""
        state = self.cycle.state
        ended, cells = torch.stack([state.verdicts.status, state.progress.cells]).tolist()
        return ended, cells

    def read(self, place: int, ended: int) -> DecodedImage:
        """What became of the image in a slot."""
        progress, chooser, outcome = self.cycle.state.progress, self.cycle.chooser, self.cycle.draft_outcome()
        cycles = int(progress.cycles[place])
        tokens = progress.decided[place].cpu().numpy().copy() if ended == DONE else None
        history = progress.history[place, :cycles].cpu().numpy().copy()
        kept_cells, rejected = (None, None) if outcome is None else (outcome[0][place], outcome[1][place])
        error, passes = None if ended == DONE else ENDINGS[ended], None if chooser is None else chooser.passes
        return DecodedImage(tokens, cycles, error, history, passes, kept_cells, rejected)

    def progress(self, place: int) -> ImageProgress:
        """How far the image in a slot is; waits for the device."""
        progress, cycle = self.cycle.state.progress, self.cycle
        cycles = int(progress.cycles[place])
        tokens, history = progress.decided[place].cpu().numpy().copy(), progress.history[place, :cycles].cpu().numpy()
        return ImageProgress(tokens, cycle.decided(place), cycles, history, cycle.refused(place))


def _captured(run: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """pool: of memory, which graphs share: they meet in the state alone, so nothing in it outlives a replay."""
    graph = torch.cuda.CUDAGraph()
    # An engine may compile kernels in threads of its own, whose allocations must not void the capture.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        run()
    return graph


def _signed(number: int) -> int:
    """An unsigned word of 64 bits as the signed one that a tensor holds."""
    return number - (1 << 64) if number >> 63 else number
