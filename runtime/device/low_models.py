"""What a MuLo-SD method is on the device, and the models that draft for it: a smaller target, and what enlarges."""

from typing import NamedTuple, Self

import torch

from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.cell_rule import PooledCells
from underpaint.algos.spatial.mulo import Repair
from underpaint.algos.spatial.row_front import check_window
from underpaint.models.sampler import TokenSampler
from underpaint.runtime.device.folder import DeviceModels, decoder_bytes
from underpaint.runtime.device.island_cycle import IslandMethod, LowDraft
from underpaint.runtime.device.kernels.islands import Region
from underpaint.runtime.device.runner import DeviceError
from underpaint.runtime.device.sampler_weights import read_enlarger
from underpaint.runtime.device.weights import read_decoder, stored_numbers
from underpaint.runtime.engines.condition_encoder import ConditionEncoder
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder
from underpaint.runtime.methods.mulo_method import MuloConfig, MuloMethod
from underpaint.runtime.pipeline import Pipeline
from underpaint.runtime.resampling.registry import LATENT
from underpaint.zoo.load import Located


def lacking(config: MuloConfig) -> str | None:
    """What of a MuLo-SD method has no form on the device, and what to set instead; None where it has one."""
    none = "no form on the device"
    if config.resampler not in LATENT:
        return f"a resampler through pictures ('{config.resampler}') has {none}; set resampler={next(iter(LATENT))}"
    if config.rule != "pooled":
        return f"rule '{config.rule}' of cells has {none}; set rule=pooled"
    if config.rows is not None:
        return f"drafts of some rows at a time have {none}; set rows=none"
    if config.draft_int8:
        return f"a low target that multiplies in 8 bits has {none}; set draft_int8=none"
    for name in ("adaptive", "draft_adaptive"):
        if getattr(config, name):
            return f"MuLo-SD's row fronts in an adaptive window have {none}; set {name}=false"
    return None


def island_method(method: MuloMethod, sampling: SamplingParams, grid: Grid) -> IslandMethod:
    """A MuLo-SD method as the device takes it; DeviceError where it has no form, or does not fit the grid."""
    config, rule = method.config, method.rule
    lacks = lacking(config)
    if lacks is not None or not isinstance(rule, PooledCells):
        raise DeviceError(f"method '{method.name}': {lacks}")
    repair = Repair(config.reject, config.radius, config.order, config.window, config.adaptive, config.keys)
    try:
        repair.check(grid)
    except ValueError as error:
        raise DeviceError(f"method '{method.name}': {error}") from error
    low = grid.width // max(1, config.ratio)
    return IslandMethod(
        near=rule.neighbours,
        tau=rule.tau,
        region=Region(config.reject, config.radius, config.order),
        window=repair.front_window(grid),
        draft_window=low if config.draft_window is None else config.draft_window,
        greedy=config.greedy,
        sampler=config.target_sampling(sampling),
        draft_sampler=sampling,
        ratio=config.ratio,
        resampler=config.resampler,
    )


class LowFiles(NamedTuple):
    """The models that draft for a method, checked but not read."""

    target: ElsewhereDecoder
    encoder: ConditionEncoder
    enlarger: Located

    @classmethod
    def of(cls, pipeline: Pipeline, method: IslandMethod) -> Self:
        """Those of a pipeline that was opened for the device; ValueError where one is missing, or does not fit."""
        found = pipeline.low.target(method.ratio)
        if not isinstance(found.decoder, ElsewhereDecoder):
            raise EngineError(f"{pipeline.folder}: expected models opened with backend device, got {pipeline.backend}")
        if found.decoder.config.eol_token is not None:
            raise ValueError("device: row fronts have no form where the lines of the picture end in a token")
        check_window(method.draft_window, found.grid, "draft_window")
        return cls(found.decoder, found.encoder, pipeline.low.networks(method.resampler, method.ratio)[0])

    @property
    def prefix(self) -> int:
        """Condition positions of the target at most."""
        return max(1, self.target.config.prefix)

    def weight_bytes(self) -> int:
        """Bytes that the weights take on the device."""
        return decoder_bytes(self.target) + 4 * stored_numbers(self.enlarger)

    def read(self, rows: int, device: torch.device) -> "LowModels":
        """Read the weights; EngineError where a file is not what its manifest says."""
        target = read_decoder(self.target, device)
        models = DeviceModels(target, None, self.encoder, rows, device)
        return LowModels(models, read_enlarger(self.enlarger, device), self.target.config.grid, self.prefix)


class LowModels(NamedTuple):
    """The models that draft, on a device."""

    models: DeviceModels
    enlarger: TokenSampler
    grid: Grid
    prefix: int

    def draft(self) -> LowDraft:
        """As a program takes them."""
        return LowDraft(self.models.target, self.enlarger, self.grid, self.prefix)
