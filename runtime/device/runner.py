"""Decoding batches on the device: captured graphs, replayed until every image is done."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.runtime.device.cell_cycle import CellCycle
from underpaint.runtime.device.chosen_growth import ChosenGrowth, Program
from underpaint.runtime.device.clock import DeviceClock
from underpaint.runtime.device.cycle import DeviceCycle, DeviceMethod, method_plan, most_nodes
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.front_cycle import front_envelope
from underpaint.runtime.device.island_cycle import (
    IslandCycle,
    IslandMethod,
    LowCondition,
    LowDraft,
    draft_bytes,
    island_envelope,
)
from underpaint.runtime.device.jacobi_front_cycle import RowFrontMethod, row_front_cycle, row_front_envelope
from underpaint.runtime.device.kernels.tree_meta import MOST_NODES
from underpaint.runtime.device.kernels.walk import DONE, NO_SUPPORT, NOT_DRAWN, NOT_FINITE
from underpaint.runtime.device.language import INTERPRETED, MODE
from underpaint.runtime.device.plans import Plan
from underpaint.runtime.device.state import Envelope, needed_bytes

LEAST_CAPABILITY: Final = (8, 0)
ENDINGS: Final = {
    NOT_FINITE: "its logits held NaN or infinity; check the weights and their precision",
    NO_SUPPORT: "a distribution held no token; check the sampler's settings",
    NOT_DRAWN: "a drafted token had no probability under the drafter's distribution",
}


Watch: TypeAlias = Callable[[list[int]], None]
"""Is told, at every look, how many cells of each image are decided."""


class DeviceError(ValueError):
    """The device, the batch or the memory is not what decoding needs."""


class DecodedImage(NamedTuple):
    """One image. tokens: [cells] int64, None where it ended with an error; cycles: how many it took.

    passes: of the drafter, where a policy chooses; None: as many a cycle as the envelope has levels.
    history [cycles, 3] int64: see `kernels.layout.Progress`. kept, rejected: see `IslandCycle.kept`; None where no
    picture is drafted.
    """

    tokens: IntArray | None
    cycles: int
    error: str | None
    history: IntArray
    passes: int | None = None
    kept: IntArray | None = None
    rejected: int | None = None


class ReplayStage(NamedTuple):
    """A program and how many times it runs before the next one; None for until every image is done."""

    run: Callable[[], None]
    times: int | None


def envelope_of(
    method: DeviceMethod | RowFrontMethod | IslandMethod,
    grid: Grid,
    vocab_size: int,
    line_token: int | None,
    batch: int,
) -> tuple[Plan | None, Envelope]:
    """How a method's trees grow, if it has any, and the sizes of its passes.

    ValueError where it has no form, or none for batches of so many images.
    """
    if not isinstance(method, DeviceMethod):
        if line_token is not None:
            raise ValueError("device: row fronts have no form where the lines of the picture end in a token")
        if isinstance(method, IslandMethod):
            front_envelope(method.window, grid)
            return None, island_envelope(grid)
        return None, row_front_envelope(method, grid)
    plan = method_plan(method, grid, vocab_size, most_nodes(MOST_NODES, line_token))
    if plan is not None and plan.most_images is not None and batch > plan.most_images:
        raise ValueError(
            f"device: expected batches of at most {plan.most_images} image, as each chooses a program of its own, got "
            f"{batch}; set --batch {plan.most_images}"
        )
    return plan, Envelope(1, 0, 1, 1, 1) if plan is None else plan.envelope


def open_device(name: str) -> torch.device:
    """The device "cuda", "cuda:1" or "cpu" (interpreted: slow, for trying things).

    Raises DeviceError where there is none, or one that kernels are not compiled for.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device '{name}': expected cuda, cuda:1, ... or cpu") from error
    if device.type == "cpu":
        if not INTERPRETED:
            raise DeviceError(
                f"device 'cpu': kernels are compiled in this process; set {MODE}=interpret, and try again"
            )
        return device
    if device.type != "cuda" or not torch.cuda.is_available():
        raise DeviceError(f"device '{name}': there is no CUDA device here; 'cpu' tries it, slowly, by interpreting")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise DeviceError(f"device '{name}': there are {torch.cuda.device_count()} CUDA devices here, counted from 0")
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        major, minor = torch.cuda.get_device_capability(device)
        raise DeviceError(f"device '{name}': expected compute capability 8.0 or newer, got {major}.{minor}")
    if INTERPRETED:
        raise DeviceError(
            f"device '{name}': kernels are interpreted in this process; unset {MODE} and TRITON_INTERPRET"
        )
    return device


class DeviceRunner:
    """Decodes up to `batch` images at a time by one method."""

    def __init__(
        self,
        target: DeviceDecoder,
        drafter: DeviceDecoder | None,
        method: DeviceMethod | RowFrontMethod | IslandMethod,
        grid: Grid,
        prefix: int,
        batch: int,
        device: torch.device,
        line_token: int | None = None,
        low: LowDraft | None = None,
    ) -> None:
        """prefix: condition positions at most; line_token: see `DeviceCycle`; low: what drafts for an IslandMethod."""
        self.batch, self.grid, self._device = batch, grid, device
        plan, envelope = envelope_of(method, grid, target.config.vocab_size, line_token, batch)
        drafts = drafter is not None and plan is not None and not plan.by_target
        configs = (target.config, drafter.config if drafter is not None and drafts else None, target.rows)
        number_bytes = torch.empty(0, dtype=target.dtype).element_size()
        needed = needed_bytes(batch, envelope, grid.cells, prefix, *configs, number_bytes)
        needed += (
            0
            if low is None
            else draft_bytes(
                batch, target.rows, target.config, grid, low.target.config, low.grid, low.prefix, number_bytes
            )
        )
        check_memory(device, needed + (0 if plan is None else batch * plan.image_bytes))
        self.cycle: DeviceCycle | CellCycle | IslandCycle
        self._stages: tuple[ReplayStage, ...]
        if isinstance(method, IslandMethod):
            if low is None:
                raise ValueError("device: this method drafts with a smaller target, and none was given")
            self.cycle = IslandCycle(target, low, method, grid, prefix, batch, device)
            self._stages = tuple(ReplayStage(*one) for one in self.cycle.stages)
        else:
            if isinstance(method, DeviceMethod):
                self.cycle = DeviceCycle(target, drafter, method, grid, prefix, batch, device, line_token=line_token)
            else:
                self.cycle = row_front_cycle(target, method, grid, prefix, batch, device)
            self._stages = (ReplayStage(self.cycle.run, None),)
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
        low: LowCondition | None = None,
    ) -> None:
        """Start images; condition [rows * n, P, F] for n <= batch images, the conditional rows first.

        seeds and images name their noise, from 0 to `algos.chance.MOST_SEED`. hidden [rows * n] int64: leading
        positions that a row does not see. low: the same of the target that drafts, for an IslandMethod. A short batch
        is filled up with copies of its last image.
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
        kept = filled.tolist()
        named = [[_signed(part[place]) for place in kept] for part in (seeds, images)]
        keys = torch.tensor(named, dtype=torch.int64, device=self._device)
        self.clock.restart()
        self._steps, shown = 0, None if hidden is None else hidden[index]
        with self.clock:
            if isinstance(self.cycle, IslandCycle):
                if low is None:
                    raise DeviceError("expected a condition of the smaller target too, got none")
                drafting = LowCondition(low.rows[index], None if low.hidden is None else low.hidden[index])
                self.cycle.begin(condition[index], keys[0], keys[1], drafting, shown)
            else:
                self.cycle.begin(condition[index], keys[0], keys[1], shown)

    @torch.no_grad()
    def capture(self) -> None:
        """Compile every kernel and capture each stage as a CUDA graph; call it after the first `begin`, once.

        What was begun is lost. The programs of a policy that chooses are captured as they come up.
        """
        if self._device.type != "cuda" or self._graphs or self._chooser() is not None:
            return
        made = []
        for stage in self._stages:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    stage.run()
            torch.cuda.current_stream().wait_stream(side)
            made.append(_captured(stage.run, self._pool))
        self._graphs = made

    @torch.no_grad()
    def step(self) -> None:
        """One cycle of every image that is not done; nothing is read back but where a policy chooses."""
        chooser = self._chooser()
        if chooser is not None:
            chooser.choose()
            self._launch(chooser.program)
            chooser.learn()
            return
        place, before = 0, 0
        while (times := self._stages[place].times) is not None and self._steps >= before + times:
            place, before = place + 1, before + times
        self._steps += 1
        if self._graphs:
            self._graphs[place].replay()
        else:
            self._stages[place].run()

    @property
    def chooses(self) -> bool:
        """Whether the host chooses what each cycle drafts."""
        return self._chooser() is not None

    def _chooser(self) -> ChosenGrowth | None:
        return self.cycle.chooser if isinstance(self.cycle, DeviceCycle) else None

    def _launch(self, program: Program) -> None:
        """Run the program of a choice: the first time as it is, which compiles it; then it is captured."""
        assert isinstance(self.cycle, DeviceCycle)
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
        state = self.cycle.state
        told = torch.stack([state.verdicts.status, state.progress.cells]).tolist()
        while not all(told[0]):
            if watch is not None:
                watch(told[1][:count])
            with self.clock:
                for _ in range(poll if self._device.type == "cuda" and not self.chooses else 1):
                    self.step()
            told = torch.stack([state.verdicts.status, state.progress.cells]).tolist()
        progress, ended = state.progress, told[0]
        decided, cycles, history = progress.decided.cpu(), progress.cycles.tolist(), progress.history.cpu().numpy()
        kept, rejected = self.cycle.kept() if isinstance(self.cycle, IslandCycle) else (None, None)
        made = []
        for place in range(count):
            error = None if ended[place] == DONE else ENDINGS[ended[place]]
            tokens = decided[place].numpy() if error is None else None
            chooser = self._chooser()
            passes = None if chooser is None else chooser.passes
            drafted = (None if kept is None else kept[place], None if rejected is None else rejected[place])
            made.append(DecodedImage(tokens, cycles[place], error, history[place, : cycles[place]], passes, *drafted))
        return made


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


def check_memory(device: torch.device, needed: int, what: str = "beside the weights") -> None:
    """Raise DeviceError, saying how much is needed, where the device has less memory free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    elif "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    else:
        return
    if needed > free:
        raise DeviceError(
            f"this batch needs {needed / 2**30:.1f} GiB {what}, the device has {free / 2**30:.1f} free; "
            "lower the batch, or the policy's tree"
        )
