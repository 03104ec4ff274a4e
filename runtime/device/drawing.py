"""Programs that draw batches of pictures on the device with named methods, and the cost of each picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import torch

from underpaint.algos.accept import RULES
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.device.eager import EagerLoop
from underpaint.runtime.device.folder import DeviceModels, EmbeddedBatch
from underpaint.runtime.device.forms import DeviceForm, form_of
from underpaint.runtime.device.forwards import DeviceDecoder, TargetForward
from underpaint.runtime.device.low_models import LowModels
from underpaint.runtime.device.runner import DecodedImage, DeviceRunner, Watch
from underpaint.runtime.device.slots import Arrival, ContinuousBatch
from underpaint.runtime.drawing import CAPTURED, HOST, KERNELS, Drawing, ImageTask, Loop
from underpaint.runtime.evaluation.comparison import EAGER
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.models import OpenModels


class NotDrawn(NamedTuple):
    """The error with which one picture ended; the other pictures of its batch are not affected."""

    error: str


class BatchProgram(Protocol):
    """A method that is ready to draw batches."""

    def prime(self, tasks: Sequence[ImageTask]) -> None:
        """Compile, capture and allocate, so that no later drawing pays for it."""
        ...

    def draw_all(
        self, tasks: Sequence[ImageTask], watch: Watch | None = None
    ) -> Iterator[tuple[int, Drawing | NotDrawn]]:
        """Draw any number of pictures, each in the next free slot; yield numbers and results as pictures end."""
        ...


class ProgramModels(Protocol):
    """Models on a device, as programs use them: those of a folder (`folder.DeviceModels`) or a live model."""

    @property
    def rows(self) -> int:
        """Rows per image: 2 under guidance, else 1."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the models."""
        ...

    @property
    def target(self) -> TargetForward:
        """The target."""
        ...

    @property
    def drafter(self) -> DeviceDecoder | None:
        """The drafter, or None."""
        ...

    def embed(self, conditions: Sequence[Condition]) -> EmbeddedBatch:
        """Embed conditions, padded at their beginning to the longest one."""
        ...


class DeviceDrawer:
    """Makes the programs of methods, with models that are already loaded."""

    def __init__(self, pipeline: OpenModels, models: ProgramModels, batch: int) -> None:
        self.pipeline, self.models, self.batch = pipeline, models, batch
        self._low: dict[Any, LowModels | None] = {None: None}

    @property
    def prefix(self) -> int:
        """Largest number of condition positions of a picture."""
        return max(1, self.pipeline.high.decoder.config.prefix)

    def low(self, form: DeviceForm) -> LowModels | None:
        """Return the smaller models that draft for a form, read on first use; None if it uses none."""
        if form.low_key not in self._low:
            folder = self.pipeline.folder_models()
            files = None if folder is None else form.low_files(folder)
            read = None if files is None else files.read(self.models.rows, self.models.device)
            self._low[form.low_key] = read
        return self._low[form.low_key]

    def program(self, method: DecodingMethod, sampling: SamplingParams) -> BatchProgram:
        """Return the program of a method. It holds its memory until the program is dropped."""
        return _EagerProgram(self, method, sampling) if method.name == EAGER else self.captured(method, sampling)

    def captured(self, method: DecodingMethod, sampling: SamplingParams) -> CapturedProgram:
        """Return the program of a method that has a device form; see `program`."""
        if self.cuda:
            torch.cuda.empty_cache()  # so that the memory of earlier programs counts as free
        return CapturedProgram(self, method, sampling)

    def primed(self, method: DecodingMethod, sampling: SamplingParams, tasks: Sequence[ImageTask]) -> BatchProgram:
        """Return the program of a method; on a GPU it is compiled and captured on the first batch of `tasks`."""
        program = self.program(method, sampling)
        if self.cuda:
            program.prime(tasks[: self.batch])
        return program

    @property
    def cuda(self) -> bool:
        """Whether there is a GPU to measure."""
        return self.models.device.type == "cuda"


class _Program(ABC):
    """Base of both kinds of programs: embeds conditions, and measures the time and peak memory of pictures."""

    def __init__(self, drawer: DeviceDrawer, method: DecodingMethod, sampling: SamplingParams) -> None:
        self._drawer, self._models, self._name = drawer, drawer.models, method.name
        self._form = form_of(method, sampling, drawer.pipeline.grid)
        if drawer.cuda:
            torch.cuda.reset_peak_memory_stats(drawer.models.device)

    def draw_all(
        self, tasks: Sequence[ImageTask], watch: Watch | None = None
    ) -> Iterator[tuple[int, Drawing | NotDrawn]]:
        """See `BatchProgram`. Pictures that are drawn together share the time evenly."""
        active, waiting = dict[int, list[float]](), iter(range(len(tasks)))
        clocks = self._clocks()
        images = self._decoded(tasks, watch)
        while True:
            if self._refills or not active:
                free = self._drawer.batch - len(active)
                active |= {number: [0.0, 0.0] for number in islice(waiting, free)}
            if (ended := next(images, None)) is None:
                return
            now = self._clocks()
            for shares in active.values():
                for part in range(2):
                    shares[part] += (now[part] - clocks[part]) / len(active)
            clocks, (number, image) = now, ended
            yield number, self.outcome(tasks[number], image, *active.pop(number))
            clocks = self._clocks()  # a caller may have decoded and written the picture

    def _clocks(self) -> tuple[float, float]:
        """Return the seconds of the host's clock and of the device's. Waits for the device."""
        if self._drawer.cuda:
            torch.cuda.synchronize()
        return perf_counter(), self._device_seconds() or 0.0

    @property
    def counts_drafts(self) -> bool:
        """Whether every cycle is one draft tree and its verdict, which an image's history counts."""
        return self._form.counts_drafts

    def outcome(self, one: ImageTask, image: DecodedImage, seconds: float, device_seconds: float) -> Drawing | NotDrawn:
        """Return the drawing of a picture with its cost, or its error.

        Args:
            one: The picture's task.
            image: Result of its batch slot.
            seconds: Wall-clock seconds that the picture took.
            device_seconds: Device seconds that the picture took; 0 if they were not measured.
        """
        if image.tokens is None:
            return NotDrawn(image.error or "it ended with an error")
        drafted = image.history[1:]
        accepted, depths, nodes = (
            tuple(drafted[:, part].tolist()) if self._form.counts_drafts else None for part in range(3)
        )
        return Drawing(
            method=self._name,
            prompt=one.condition.caption(),
            seed=one.seed,
            tokens=tuple(image.tokens.tolist()),
            accepted=accepted,
            depths=depths,
            target_nfe=image.cycles,
            drafter_nfe=self._drafting + (self._levels * (image.cycles - 1) if image.passes is None else image.passes),
            seconds=seconds,
            target_seconds=0.0,
            drafter_seconds=0.0,
            kept_cells=None if image.kept_cells is None else tuple(image.kept_cells.tolist()),
            rejected=image.rejected,
            nodes=nodes,
            batch=self._drawer.batch,
            device_seconds=device_seconds if device_seconds else None,
            peak_bytes=torch.cuda.max_memory_allocated(self._models.device) if self._drawer.cuda else None,
            loop=self.loop,
        )

    _levels, _drafting = 0, 0
    """Drafter passes of each cycle, and passes of the smaller target for each image."""

    @property
    def loop(self) -> Loop:
        """See `Drawing.loop`."""
        return HOST

    def _device_seconds(self) -> float | None:
        return None

    _refills = False
    """Whether a new picture can take a free slot while the rest of the batch continues."""

    @abstractmethod
    def _decoded(self, tasks: Sequence[ImageTask], watch: Watch | None) -> Iterator[tuple[int, DecodedImage]]:
        """Draw any number of pictures; yield their numbers and results in the order in which they end."""

    def _batches(self, tasks: Sequence[ImageTask]) -> Iterator[tuple[int, Sequence[ImageTask]]]:
        for first in range(0, len(tasks), self._drawer.batch):
            yield first, tasks[first : first + self._drawer.batch]


class CapturedProgram(_Program):
    """A method as one program, which is captured in CUDA graphs on a GPU."""

    def __init__(self, drawer: DeviceDrawer, method: DecodingMethod, sampling: SamplingParams) -> None:
        super().__init__(drawer, method, sampling)
        models, pipeline = drawer.models, drawer.pipeline
        drafter = models.drafter if self._form.drafts else None
        self._low = drawer.low(self._form)
        sizes = (pipeline.grid, drawer.prefix, drawer.batch, models.device, models.target.line_token)
        low = None if self._low is None else self._low.draft()
        self._runner = DeviceRunner(models.target, drafter, self._form, *sizes, low)
        self._levels = 0 if drafter is None else self._runner.cycle.envelope.levels
        self._drafting = 0 if self._low is None else self._form.low_passes(self._low.grid)

    @property
    def loop(self) -> Loop:
        return CAPTURED if self._runner.captured else KERNELS

    def prime(self, tasks: Sequence[ImageTask]) -> None:
        """See `BatchProgram`. A program that a policy first chooses later is compiled and captured then."""
        self._begin(tasks)
        self._runner.capture()
        if self._runner.chooses:
            for _ in range(2):  # the first use of a program compiles it, the second one captures it
                list(self._decoded(tasks, None))
        elif self._runner.refills:  # a picture that enters a free slot begins in a batch of one
            self._runner.fill(0, next(self.arrivals(tasks[:1])))

    def open_batch(self, first: ImageTask) -> ContinuousBatch:
        """Open the slots for pictures that come at any time. Each begins by itself, so none depends on another.

        Args:
            first: Any picture that will be drawn; on a GPU the program is compiled and captured with it. Programs that
                a policy chooses are captured at their second use: `prime` would draw two whole pictures.
        """
        if self._drawer.cuda and not self._runner.chooses:
            self.prime([first])
        else:
            self._begin([first])
        return ContinuousBatch(self._runner, begun=True)

    def _begin(self, tasks: Sequence[ImageTask]) -> None:
        conditions = [one.condition for one in tasks]
        batch, images = self._models.embed(conditions), [one.noise_key for one in conditions]
        low = None if self._low is None else self._low.embed(conditions)
        self._runner.begin(batch.rows, [one.seed for one in tasks], images, batch.hidden, low)

    def _device_seconds(self) -> float:
        return self._runner.clock.seconds()

    @property
    def _refills(self) -> bool:  # type: ignore[override]
        return self._runner.refills

    def _decoded(self, tasks: Sequence[ImageTask], watch: Watch | None) -> Iterator[tuple[int, DecodedImage]]:
        return self._runner.decode_all(self.arrivals(tasks), watch=watch)

    def arrivals(self, tasks: Sequence[ImageTask]) -> Iterator[Arrival]:
        """Yield the pictures in the form that slots take. Conditions are embedded on demand, one batch at a time."""
        for _, part in self._batches(tasks):
            conditions = [one.condition for one in part]
            batch = self._models.embed(conditions)
            small = None if self._low is None else self._low.embed(conditions)
            for place, one in enumerate(part):
                rows = slice(place, None, len(part))
                low = None
                if small is not None:
                    low = EmbeddedBatch(small.rows[rows], small.hidden[rows])
                yield Arrival(batch.rows[rows], one.seed, one.condition.noise_key, batch.hidden[rows], low)


class _EagerProgram(_Program):
    def __init__(self, drawer: DeviceDrawer, method: DecodingMethod, sampling: SamplingParams) -> None:
        super().__init__(drawer, method, sampling)
        acceptance, models = method.config.acceptance, drawer.models
        assert isinstance(models, DeviceModels)
        greedy = acceptance is not None and RULES[acceptance[0]].greedy
        self._loop = EagerLoop(
            models.module, models.rows, method.config.target_sampling(sampling), greedy, drawer.pipeline.grid
        )

    def prime(self, tasks: Sequence[ImageTask]) -> None:
        list(self.draw_all(tasks))

    def _decoded(self, tasks: Sequence[ImageTask], watch: Watch | None) -> Iterator[tuple[int, DecodedImage]]:
        for first, part in self._batches(tasks):
            batch = self._models.embed([one.condition for one in part])
            images = [one.condition.noise_key for one in part]
            tokens = self._loop.decode(batch.rows, [one.seed for one in part], images, batch.hidden, watch)
            nothing = torch.zeros(tokens.shape[1], 3, dtype=torch.int64).numpy()
            for place, line in enumerate(tokens):
                yield first + place, DecodedImage(line, tokens.shape[1], None, nothing)
