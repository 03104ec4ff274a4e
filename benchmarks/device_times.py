"""What `benchmarks.device` times: a copy, plain decoding against it, cycles of every method, their parts, pictures."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.device_checks import Check
from benchmarks.device_models import random_model, shipped_method, shipped_models, shipped_prompts, weight_bytes
from tools.device_programs import count_cycle
from tools.device_sizes import method_of
from underpaint.algos.protocols import Grid
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.device.capture import GraphCapture
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.eager import EagerLoop
from underpaint.runtime.device.runner import ENDINGS, DeviceRunner
from underpaint.runtime.device.state import needed_bytes
from underpaint.runtime.methods.method import ModelTables

EAGER_TOKENS = 16


def time_ms(device: torch.device, run: Callable[[], Any], rounds: int) -> float:
    """Return the median ms of `rounds` runs, by CUDA events or, on the CPU, by the clock."""
    times = []
    for _ in range(rounds):
        if device.type == "cpu":
            started = perf_counter()
            run()
            times.append(1e3 * (perf_counter() - started))
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return median(times)


def copy_gb_s(device: torch.device) -> float:
    """Return the bandwidth of a copy in GB/s, counting both the bytes read and the bytes written."""
    size = 2**20 if device.type == "cpu" else 2**30
    source, out = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / time_ms(device, lambda: out.copy_(source), 10) / 1e6


class RandomWeights:
    """Times cycles of a model with random weights, with half of every picture decided. Hardly any draft is accepted, so
    only cycles are timed, not pictures."""

    def __init__(
        self,
        device: torch.device,
        config: DecoderConfig,
        dtype: torch.dtype,
        batch: int,
        rounds: int,
        bound: float | None = None,
    ) -> None:
        """bound: for plain decoding of one image on a GPU, relative to its bytes at the bandwidth of a copy."""
        self.config, self.batch, self._device, self._rounds, self._bound = config, batch, device, rounds, bound
        self.module, drafter = random_model(config, dtype, device)
        self._decoders = DecoderForward(self.module, 2), DecoderForward(drafter, 2)
        self._condition = torch.randn(2 * batch, config.prefix, config.dim, dtype=dtype, device=device)

    def runner(self, name: str) -> DeviceRunner:
        """Return a method's captured program, with half of every picture drawn."""
        method, grid = method_of(name, self.config.vocab_size), Grid(self.config.grid_side, self.config.width)
        sizes = (self.config.prefix, self.batch, self._device)
        runner = DeviceRunner(self._decoders[0], self._decoders[1], method, grid, *sizes)
        images = list(range(self.batch))
        runner.begin(self._condition, [0] * self.batch, images)
        runner.capture()
        runner.begin(self._condition, [0] * self.batch, images)
        state = runner.cycle.state
        while int(state.progress.cells.min()) < grid.cells // 2:  # really drawn: lookups read the decided codes
            failed = [ENDINGS[status] for status in state.verdicts.status.tolist() if status in ENDINGS]
            if failed:
                raise RuntimeError(f"{name}: an image ended in the first half of its picture: {failed[0]}")
            runner.step()
        return runner

    def cycle(self, name: str) -> dict[str, Any]:
        """Time a method's cycle in ms; return also its graph's nodes and bytes, and its peak and predicted memory."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0
        runner = self.runner(name)
        ms = time_ms(self._device, runner.step, self._rounds)
        program = count_cycle(self.config, method_of(name, self.config.vocab_size), self.batch)
        figures: dict[str, Any] = {"cycle_ms": ms, "nodes": len(program.nodes)}
        figures["bytes"] = sum(node.bytes for node in program.nodes)
        if self._device.type == "cuda":
            figures["peak_bytes"] = torch.cuda.max_memory_allocated(self._device) - before
            form = method_of(name, self.config.vocab_size)
            layout = form.layout(runner.grid, self.config.vocab_size, None, self.batch)
            drafts = self._decoders[1].config if form.drafts else None
            images = self.batch + (self.batch > 1)  # the extra one starts the images that enter a free slot
            sizes = images, runner.cycle.envelope, runner.grid.cells, self.config.prefix
            target = self._decoders[0]
            state_bytes = needed_bytes(*sizes, target.config, drafts, target.rows, self._condition.dtype)
            figures["foreseen_bytes"] = state_bytes + images * layout.image_bytes
        return figures

    def plain(self, gb_s: float) -> dict[str, Any]:
        """Time plain decoding, captured and as an eager loop, against its bytes at the bandwidth of a copy."""
        config, cells = self.config, self.config.grid_side * self.config.width
        cached = config.prefix + cells // 2
        numbers = 2 * config.layers * 2 * self.batch * config.dim * cached
        moved = weight_bytes(self.module) + numbers * self._condition.element_size()
        ms, bound_ms = self.cycle("ar")["cycle_ms"], moved / gb_s / 1e6
        figures: dict[str, Any] = {"cycle_ms": ms, "bytes": moved, "bound_ms": bound_ms, "over_bound": ms / bound_ms}
        figures["eager_ms"] = self._eager_ms()
        if self._bound is not None and self._device.type == "cuda" and self.batch == 1:
            figures["checks"] = {"over bound": Check(ms / bound_ms, self._bound)}
        return figures

    def _eager_ms(self) -> float:
        """Return the ms per token of the eager loop that papers time, at the start of a picture, with a short cache."""
        sampler = method_of("ar", self.config.vocab_size).sampler
        loop = EagerLoop(self.module, 2, sampler, False, Grid(1, EAGER_TOKENS))
        hidden = torch.zeros(2 * self.batch, dtype=torch.int64, device=self._device)
        images = list(range(self.batch))
        decode = partial(loop.decode, self._condition, [0] * self.batch, images, hidden)
        decode()
        return time_ms(self._device, decode, 3) / EAGER_TOKENS

    def breakdown(self, name: str) -> dict[str, Any]:
        """Return the ms of each part of a cycle, captured as a graph of its own; each includes one graph launch."""
        runner = self.runner(name)
        parts = runner.cycle.parts()
        graphs = [run for _, run in parts]
        if self._device.type == "cuda":
            with torch.no_grad():
                graphs = [GraphCapture(self._device)(run, warm_ups=0)[0].replay for run in graphs]
        parts_ms = dict.fromkeys((part for part, _ in parts), 0.0)
        for place, (part, _) in enumerate(parts):
            rounds = [_timed_within(self._device, graphs, place) for _ in range(self._rounds)]
            parts_ms[part] += median(rounds)
        return {"parts_ms": parts_ms}


def _timed_within(device: torch.device, graphs: Sequence[Callable[[], None]], place: int) -> float:
    """Run a whole cycle part by part, and return the ms of the part at `place`."""
    ms = 0.0
    with torch.no_grad():
        for turn, run in enumerate(graphs):
            if turn == place:
                ms = time_ms(device, run, 1)
            else:
                run()
    return ms


def shipped_pictures(device: torch.device, names: Sequence[str], batch: int, tables: ModelTables) -> dict[str, Any]:
    """Draw whole pictures in batches, by the shipped weights in float32 at temperature 1, with real acceptance."""
    models, grid, sampler = shipped_models(device, torch.float32, tiny=device.type == "cpu")
    count = batch if device.type == "cpu" else batch * -(-16 // batch)
    conditions = shipped_prompts(count)
    figures: dict[str, Any] = {}
    for name in ("ar", *(name for name in names if name != "ar")):
        how = shipped_method(name, 1.0, sampler, tables)
        prefix = models.embed(conditions).rows.shape[1]
        drafter = models.drafter if how.drafts else None
        runner = DeviceRunner(models.target, drafter, how, grid, prefix, batch, device)
        cycles, seconds = 0, 0.0
        for turn in range(2 if device.type == "cuda" else 1):  # the first compiles and captures
            cycles, seconds = 0, 0.0
            for first in range(0, count, batch):
                part = conditions[first : first + batch]
                embedded, keys = models.embed(part), [one.noise_key for one in part]
                started = perf_counter()
                runner.begin(embedded.rows, [0] * len(part), keys, embedded.hidden)
                if turn == 0:
                    runner.capture()
                    runner.begin(embedded.rows, [0] * len(part), keys, embedded.hidden)
                images = runner.finish(len(part))
                seconds += perf_counter() - started
                cycles += sum(image.cycles - 1 for image in images)
        tokens = count * (grid.cells - 1) / cycles
        figures[name] = {"tokens_per_cycle": tokens, "ms_per_picture": 1e3 * seconds / count}
        figures[name]["over_ar"] = figures["ar"]["ms_per_picture"] / figures[name]["ms_per_picture"]
    loop = EagerLoop(models.module, 1, sampler, False, grid)
    embedded, keys = models.embed(conditions[:batch]), [one.noise_key for one in conditions[:batch]]
    decode = partial(loop.decode, embedded.rows, [0] * batch, keys, embedded.hidden)
    if device.type == "cuda":
        decode()  # loads libraries and grows the allocator
    eager = time_ms(device, decode, 1 if device.type == "cpu" else 3) / batch
    figures["ar-eager"] = {"tokens_per_cycle": 1.0, "ms_per_picture": eager}
    for one in figures.values():
        one["over_eager"] = eager / one["ms_per_picture"]
    return figures
