"""Drawing batches on the device by named methods: which of them can, how much memory that takes, and what it cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import torch

from underpaint.algos.accept import RULES
from underpaint.algos.accept.spec import spec_of
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.row_front import front_steps
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.batches import BatchProgram, NotDrawn, Wanted
from underpaint.runtime.device.chosen_growth import Beside
from underpaint.runtime.device.cycle import DeviceMethod
from underpaint.runtime.device.eager import EagerLoop
from underpaint.runtime.device.folder import DeviceModels, FolderModels
from underpaint.runtime.device.front_cycle import FrontMethod
from underpaint.runtime.device.island_cycle import IslandMethod, LowCondition, draft_bytes
from underpaint.runtime.device.jacobi_front_cycle import JacobiFrontMethod, RowFrontMethod
from underpaint.runtime.device.kernels.walk import Shape
from underpaint.runtime.device.low_models import LowFiles, LowModels, island_method, lacking
from underpaint.runtime.device.providers import TORCH, check_engines, check_forward, open_engines
from underpaint.runtime.device.rules import device_rule
from underpaint.runtime.device.runner import DecodedImage, DeviceError, DeviceRunner, Watch, check_memory, envelope_of
from underpaint.runtime.device.state import needed_bytes
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.comparison import EAGER
from underpaint.runtime.methods.grid_methods import ZiparConfig, ZiparMethod
from underpaint.runtime.methods.jacobi_config import JacobiConfig, JacobiMethod
from underpaint.runtime.methods.jacobi_front_config import JacobiFrontsConfig, JacobiFrontsMethod
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.method_config import MethodSpec
from underpaint.runtime.methods.mulo_method import MuloConfig, MuloMethod
from underpaint.runtime.methods.registry import METHODS
from underpaint.runtime.methods.tree_config import NO_POLICY, TreeConfig, TreeMethod
from underpaint.runtime.pipeline import Pipeline

MOST_BATCH: Final = 256
"""Images of a batch."""


def has_form(spec: MethodSpec, temperature: float) -> bool:
    """Whether a registered method can be drawn on the device."""
    config = spec.tuned.at(temperature)
    if isinstance(config, ZiparConfig | JacobiFrontsConfig):
        return True
    if isinstance(config, MuloConfig):
        return lacking(config) is None
    if isinstance(config, JacobiConfig):
        return RULES[config.rule].device is not None
    if not isinstance(config, TreeConfig) or config.skipping is not None or RULES[config.rule].device is None:
        return False
    return config.policy == NO_POLICY or POLICIES[config.policy].device is not None


def device_method(
    method: DecodingMethod, sampling: SamplingParams, grid: Grid
) -> DeviceMethod | RowFrontMethod | IslandMethod:
    """A method as the device takes it.

    Raises DeviceError where it is neither one of draft trees that are all verified, nor of Jacobi windows along the
    raster, nor of row fronts, nor MuLo-SD, naming the methods that are.
    """
    if isinstance(method, MuloMethod):
        return island_method(method, sampling, grid)
    if isinstance(method, ZiparMethod):
        window, sampler = method.config.window or grid.width, method.config.target_sampling(sampling)
        return FrontMethod(window, sampler, adaptive=method.config.adaptive)
    if isinstance(method, JacobiFrontsMethod):
        return JacobiFrontMethod(method.config.fronts, method.config.target_sampling(sampling))
    if isinstance(method, JacobiMethod):
        return DeviceMethod(None, method.rule, method.config.target_sampling(sampling), window=method.window)
    if not isinstance(method, TreeMethod) or method.skipping is not None:
        known = ", ".join(spec.name for spec in METHODS if has_form(spec, sampling.temperature))
        raise DeviceError(
            f"method '{method.name}' has no form on the device; those that have one: {known}, and POLICY:RULE of "
            "such parts; choose one of them, or another --backend"
        )
    policy = method.policy if method.drafts else None
    beside = None if method.window is None else Beside(*method.window)
    return DeviceMethod(policy, method.rule, method.config.target_sampling(sampling), beside=beside)


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What is to be drawn on a device, checked before any weight is read; make one with `plan_drawing`.

    needed: bytes of the largest program's buffers. forward: what makes the forward passes, see `providers.FORWARDS`.
    asked: of how many of the folder's decoders, by an engine.
    """

    pipeline: Pipeline
    folder: FolderModels
    device: torch.device
    batch: int
    rows: int
    needed: int
    forward: str = TORCH
    asked: int = 0

    def told(self) -> str:
        """The device and the batch in words."""
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else f"{self.device}, interpreted"
        return f"{where}, batches of {self.batch}{'' if self.forward == TORCH else f', forward by {self.forward}'}"

    def open(self) -> DeviceDrawer:
        """Read the weights, and open the engines."""
        engines = open_engines(self.folder.decoders[: self.asked], self.forward, self.batch, self.rows)
        models = DeviceModels.read(self.folder, self.pipeline.high.encoder, self.rows, self.device, engines)
        return DeviceDrawer(self.pipeline, models, self.batch)


def plan_drawing(
    pipeline: Pipeline,
    methods: Sequence[DecodingMethod],
    sampling: SamplingParams,
    device: torch.device,
    batch: int,
    forward: str = TORCH,
) -> DevicePlan:
    """Check that every method can be drawn in batches of `batch` (1 to `MOST_BATCH`), and that memory suffices.

    Raises DeviceError or ValueError: what has no form on the device, with the names of what has one; a tree beyond what
    the device holds; too little memory, with how much is needed; an engine that is not there, with how it is made.
    """
    if not 1 <= batch <= MOST_BATCH:
        raise DeviceError(f"--batch: expected 1 to {MOST_BATCH} images, got {batch}")
    check_forward(forward, device)
    folder, rows = FolderModels.of(pipeline), 1 if sampling.guidance == 1.0 else 2
    config, grid = folder.target.config, pipeline.grid
    target, drafter = folder.configs
    needed, small = 0, dict[tuple[int, str], int]()
    for method in methods:
        form = device_method(method, sampling, grid)
        try:
            plan, envelope = envelope_of(form, grid, config.vocab_size, config.eol_id, batch)
            low = LowFiles.of(pipeline, form) if isinstance(form, IslandMethod) else None
            if isinstance(form, DeviceMethod):
                drawn = min(_covered(form)) if plan is None else plan.drawn
                sizes = Shape(1, envelope.nodes, config.vocab_size, drawn, envelope.levels, envelope.children)
                for rule in (form.rule, *(() if form.beside is None else form.beside.rules)):
                    device_rule(rule, sizes, torch.device("cpu"))
        except ValueError as error:
            raise DeviceError(f"method '{method.name}': {str(error).removeprefix('device: ')}") from error
        drafts = None if plan is None or plan.by_target else drafter
        models = (target, drafts, rows, folder.number_bytes)
        prefix, held = max(1, config.prefix) + config.eol_tokens, 0 if plan is None else batch * plan.image_bytes
        if low is not None and isinstance(form, IslandMethod):
            small_models = (low.target.config, low.target.config.grid, low.prefix)
            held += draft_bytes(batch, rows, target, grid, *small_models, folder.number_bytes)
            small[form.ratio, form.resampler] = low.weight_bytes()
        needed = max(needed, held + needed_bytes(batch, envelope, grid.cells, prefix, *models))
    forms = [device_method(method, sampling, grid) for method in methods]
    asked = check_engines(folder, forms, forward, batch, rows)
    weights = folder.weight_bytes() * (1 if forward == TORCH else 2)  # an engine's own lie beside those in torch
    weights += sum(small.values())
    check_memory(device, needed + weights, f"({weights / 2**30:.1f} of them for the weights)")
    return DevicePlan(pipeline, folder, device, batch, rows, needed, forward, asked)


def _covered(form: DeviceMethod) -> frozenset[Drawn]:
    spec = spec_of(form.rule)
    return RULES["point"].drawn if spec is None else spec.drawn


class DeviceDrawer:
    """Makes programs of methods, on models that were read."""

    def __init__(self, pipeline: Pipeline, models: DeviceModels, batch: int) -> None:
        self.pipeline, self.models, self.batch = pipeline, models, batch
        self._low: dict[tuple[int, str], LowModels] = {}

    def low(self, method: IslandMethod) -> LowModels:
        """The models that draft for a method, read when they are first asked for."""
        key = (method.ratio, method.resampler)
        if key not in self._low:
            self._low[key] = LowFiles.of(self.pipeline, method).read(self.models.rows, self.models.device)
        return self._low[key]

    def program(self, method: DecodingMethod, sampling: SamplingParams) -> BatchProgram:
        """The program of a method; it holds memory until it is forgotten."""
        if self.cuda:
            torch.cuda.empty_cache()  # what a program before it held is free again, and counted so
        if method.name == EAGER:
            return _EagerProgram(self, method, sampling)
        return _CapturedProgram(self, method, sampling)

    @property
    def cuda(self) -> bool:
        """Whether there is a GPU to measure."""
        return self.models.device.type == "cuda"


class _Program(ABC):
    """What both kinds of programs share: conditions, the clock, and the memory at its peak."""

    def __init__(self, drawer: DeviceDrawer, method: DecodingMethod, sampling: SamplingParams) -> None:
        self._drawer, self._models, self._name = drawer, drawer.models, method.name
        self._form = device_method(method, sampling, drawer.pipeline.grid)
        if drawer.cuda:
            torch.cuda.reset_peak_memory_stats(drawer.models.device)

    def draw(self, wanted: Sequence[Wanted], watch: Watch | None = None) -> list[Drawing | NotDrawn]:
        if self._drawer.cuda:
            torch.cuda.synchronize()
        started = perf_counter()
        images = self._decoded(wanted, watch)
        seconds = (perf_counter() - started) / len(wanted)
        peak = torch.cuda.max_memory_allocated(self._models.device) if self._drawer.cuda else None
        device_seconds, levels = self._device_seconds(), self._levels
        found: list[Drawing | NotDrawn] = []
        for one, image in zip(wanted, images, strict=True):
            if image.tokens is None:
                found.append(NotDrawn(one, image.error or "it ended with an error"))
                continue
            drafted = image.history[1:]
            accepted, depths, nodes = (
                tuple(drafted[:, part].tolist()) if isinstance(self._form, DeviceMethod) else None for part in range(3)
            )
            found.append(
                Drawing(
                    method=self._name,
                    prompt=one.condition.caption(),
                    seed=one.seed,
                    tokens=tuple(image.tokens.tolist()),
                    accepted=accepted,
                    depths=depths,
                    target_nfe=image.cycles,
                    drafter_nfe=self._drafting
                    + (levels * (image.cycles - 1) if image.passes is None else image.passes),
                    seconds=seconds,
                    target_seconds=0.0,
                    drafter_seconds=0.0,
                    kept_cells=None if image.kept is None else tuple(image.kept.tolist()),
                    rejected=image.rejected,
                    nodes=nodes,
                    batch=len(wanted),
                    device_seconds=None if device_seconds is None else device_seconds / len(wanted),
                    peak_bytes=peak,
                )
            )
        return found

    _levels, _drafting = 0, 0
    """Drafter passes of a cycle, and of an image beside them."""

    def _device_seconds(self) -> float | None:
        return None

    @abstractmethod
    def _decoded(self, wanted: Sequence[Wanted], watch: Watch | None) -> list[DecodedImage]:
        """Draw a batch, in the order asked for."""


class _CapturedProgram(_Program):
    def __init__(self, drawer: DeviceDrawer, method: DecodingMethod, sampling: SamplingParams) -> None:
        super().__init__(drawer, method, sampling)
        models, pipeline = drawer.models, drawer.pipeline
        prefix = max(1, pipeline.high.decoder.config.prefix)
        form = self._form
        drafter = models.drafter if isinstance(form, DeviceMethod) and form.policy is not None else None
        self._low = drawer.low(form) if isinstance(form, IslandMethod) else None
        sizes = (pipeline.grid, prefix, drawer.batch, models.device, models.target.line_token)
        low = None if self._low is None else self._low.draft()
        self._runner = DeviceRunner(models.target, drafter, form, *sizes, low)
        self._levels = 0 if drafter is None else self._runner.cycle.envelope.levels
        if self._low is not None and isinstance(form, IslandMethod):
            self._drafting = front_steps(self._low.grid, form.draft_window)

    def prime(self, wanted: Sequence[Wanted]) -> None:
        """See `BatchProgram`. A program that a policy first chooses later is compiled and captured then."""
        self._begin(wanted)
        self._runner.capture()
        if self._runner.chooses:
            for _ in range(2):  # a program is compiled when it comes up, and captured when it does again
                self._decoded(wanted, None)

    def _begin(self, wanted: Sequence[Wanted]) -> None:
        conditions = [one.condition for one in wanted]
        batch, images = self._models.embed(conditions), [one.noise_key for one in conditions]
        low = None if self._low is None else LowCondition(*self._low.models.embed(conditions))
        self._runner.begin(batch.rows, [one.seed for one in wanted], images, batch.hidden, low)

    def _device_seconds(self) -> float:
        return self._runner.clock.seconds()

    def _decoded(self, wanted: Sequence[Wanted], watch: Watch | None) -> list[DecodedImage]:
        self._begin(wanted)
        return self._runner.finish(len(wanted), watch=watch)


class _EagerProgram(_Program):
    def __init__(self, drawer: DeviceDrawer, method: DecodingMethod, sampling: SamplingParams) -> None:
        super().__init__(drawer, method, sampling)
        assert isinstance(self._form, DeviceMethod)
        spec = spec_of(self._form.rule)
        greedy = spec is not None and spec.greedy
        models = drawer.models
        self._loop = EagerLoop(models.module, models.rows, self._form.sampler, greedy, drawer.pipeline.grid)

    def prime(self, wanted: Sequence[Wanted]) -> None:
        self.draw(wanted)

    def _decoded(self, wanted: Sequence[Wanted], watch: Watch | None) -> list[DecodedImage]:
        batch = self._models.embed([one.condition for one in wanted])
        images = [one.condition.noise_key for one in wanted]
        tokens = self._loop.decode(batch.rows, [one.seed for one in wanted], images, batch.hidden, watch)
        nothing = torch.zeros(tokens.shape[1], 3, dtype=torch.int64).numpy()
        return [DecodedImage(line, tokens.shape[1], None, nothing) for line in tokens]
