"""The cost curve of this machine, measured on first use and then read from the user's cache folder.

A curve is valid for one processor, engine, pair of models, number of threads and number of rows per pass. Its file name
depends on all of them, so a change of any leads to a new measurement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.cost_curve import (
    FORMAT,
    IN_CYCLE,
    IN_GRID,
    CostCurveFile,
    engine_costs,
    parse_cost_curve,
    read_cost_curve,
)
from underpaint.artifacts.files import check_file_writable, user_cache_folder
from underpaint.artifacts.manifest import ManifestError, write_beside
from underpaint.runtime.conditions import EncodedCondition
from underpaint.runtime.costs import in_cycle, in_grid, loops, passes, samples
from underpaint.runtime.costs.partial import PartialCurve
from underpaint.runtime.engines.context import EngineError, usable_cores
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.providers import WHEELS, gpu_backend
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.evaluation.comparison import choose_prompts
from underpaint.runtime.evaluation.machine import describe_machine, typed_command
from underpaint.runtime.methods.method import ModelTables
from underpaint.runtime.methods.registry import MethodConfig
from underpaint.runtime.resampling.registry import SUPER_RESOLUTION
from underpaint.runtime.resampling.resampler import Resampler
from underpaint.zoo.load import takes_grammar

if TYPE_CHECKING:
    from underpaint.runtime.models import OpenModels
    from underpaint.runtime.pipeline import Pipeline

_ROUNDS: Final = {False: 10, True: 40}
"""Number of samples of every pass repeated alone, by whether the curve is a full one."""
_PROMPTS: Final = 8
_IMAGES: Final = {False: 3, True: 4}
"""Largest number of images of every decoding loop."""
_SECONDS: Final = {False: 60.0, True: inf}
"""Time after which no further round of images begins: large models on a slow processor take minutes for three."""

Report = Callable[[int, int], None]
"""Callback: number of steps done, and in total."""


def cache_folder() -> Path:
    """Folder of the curves: `costs` in the user's cache folder."""
    return user_cache_folder() / "costs"


def measured_on(models: OpenModels, sampling: SamplingParams) -> dict[str, Any]:
    """What a curve of these models is valid for; see `CostCurveFile.measured_on`."""
    drafter = models.loaded_drafter
    names = [models.high.decoder.name, *([] if drafter is None else [drafter.decoder.name])]
    machine, about = describe_machine(), models.fingerprint()
    return {
        "processor": about.get("device") or _accelerator(models.backend) or machine["processor"],
        "cores": machine["cores"],
        "engine": f"{models.backend} {_engine_version(models.backend)}",
        "sha256": {name: about["sha256"][name] for name in names},
        "threads": about["threads"] or usable_cores(),
        "rows": 1 if sampling.guidance == 1.0 else 2,
    }


def curve_path(models: OpenModels, sampling: SamplingParams) -> Path:
    """Path of the curve of these models on this machine, which exists once it was measured."""
    about = json.dumps({"format": FORMAT, **measured_on(models, sampling)}, sort_keys=True)
    return cache_folder() / f"{models.high.decoder.name}-{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"


def read_stored_curve(models: OpenModels, sampling: SamplingParams) -> CostCurveFile | None:
    """The stored curve; None if there is none, or its file is damaged."""
    if models.loaded_drafter is None:
        return None
    try:
        return read_cost_curve(curve_path(models, sampling))
    except ValueError:
        return None


def curve_of(
    models: OpenModels,
    sampling: SamplingParams,
    report: Report | None = None,
    *,
    renew: bool = False,
    full: bool = False,
) -> CostCurveFile | None:
    """Return the curve of these models on this machine: the stored one, or a new one that is measured and stored.

    If the cache folder cannot be written, the curve is measured again next time. An interrupted measurement resumes
    after its last complete round, which is stored next to the curve's file.

    Args:
        models: The opened models, with or without a drafter.
        sampling: The sampling of the timed passes; its guidance determines the rows per pass.
        report: Progress callback.
        renew: Whether to measure in any case.
        full: Whether to also measure all families of methods and passes over cells, as `simulate predict` needs, which
            takes many minutes.

    Returns:
        The curve; None without a drafter.
    """
    if models.loaded_drafter is None:
        return None
    stored_curve = None if renew else read_stored_curve(models, sampling)
    if stored_curve is not None and (not full or _is_full(stored_curve)):
        return stored_curve
    path = curve_path(models, sampling)
    # An interrupted short measurement is not reused for a full one, which has more rounds and other loops.
    kinds = [loop.family for loop in _loops(models.high, models.loaded_drafter, full, [[1, 1.0]], [[1, 1.0]])]
    partial = PartialCurve.of(path.with_suffix(".full.json") if full else path, kinds, renew=renew)
    content = (json.dumps(_measure(models, sampling, report, full, partial)) + "\n").encode()
    fresh = parse_cost_curve(content, path)
    try:
        check_file_writable(path)
        write_beside(path, content)
        partial.forget()
    except OSError:
        pass
    return fresh


def with_costs(
    models: OpenModels,
    tables: ModelTables,
    configs: Sequence[MethodConfig],
    sampling: SamplingParams,
    curve_for: Callable[[OpenModels, SamplingParams], CostCurveFile | None] | None = None,
) -> ModelTables:
    """Return `tables` with the costs of this machine if one of the methods chooses by them.

    Args:
        models: The opened models.
        tables: The tables of the models; costs that they already hold are kept.
        configs: The configurations of the methods.
        sampling: See `curve_of`.
        curve_for: A function to use instead of `curve_of`, for example with a progress bar.

    Returns:
        The tables, unchanged if no method needs costs or there is no curve.
    """
    if tables.costs is not None or not any(config.needs_costs for config in configs):
        return tables
    curve = (curve_for or curve_of)(models, sampling)
    return tables if curve is None else replace(tables, costs=engine_costs(curve))


def _is_full(curve: CostCurveFile) -> bool:
    return curve.in_grid is not None and curve.in_cycle is not None and bool(curve.in_cycle.window_ms)


def _measure(
    models: OpenModels,
    sampling: SamplingParams,
    report: Report | None,
    full: bool,
    partial: PartialCurve,
) -> dict[str, Any]:
    target, drafter = models.high, models.loaded_drafter
    assert drafter is not None
    before = target.params
    target.sample_by(sampling)
    drafter.sample_by(sampling)
    started = perf_counter()
    conditions = conditions_of(models)
    rounds, images = _ROUNDS[full], _IMAGES[full]
    turns = in_cycle.turns(len(partial.loops))
    most = passes.rounds_in_all(rounds) + turns * (images + 1) + (images + 1 if full else 0)
    done = 0

    def step() -> None:
        nonlocal done
        done = min(done + 1, most)
        if report is not None:
            report(done, most)

    def keep(verify: passes.BySize, draft: passes.BySize) -> None:
        partial.verify, partial.draft = verify, draft
        partial.save()

    verify, draft = passes.measure_passes(target, drafter, rounds, step, (partial.verify, partial.draft), keep)
    curve = {**header_of(models, sampling, full=full), **passes_alone(verify, draft)}
    run = _loops(target, drafter, full, curve["verify_ms"], curve["draft_ms"])
    timed = (images, conditions, step, _SECONDS[full], partial.rounds, partial.save)
    cycles, rounds_done = in_cycle.measure(target, drafter, run, *timed)
    curve[IN_CYCLE] = samples.to_dict(cycles, rounds_done, curve)
    if full:
        low, plain = low_targets(models.folder_models(), sampling), curve[IN_CYCLE]["plain"]
        cells = in_grid.measure(target, low, images, conditions, step, plain["target_ms"] + plain["host_ms"])
        curve[IN_GRID] = in_grid.to_dict(cells, low, target.grid, images, curve["verify_ms"])
    if report is not None:
        report(most, most)
    target.sample_by(before)
    drafter.sample_by(before)
    seconds = round(perf_counter() - started, 2)
    return {**curve, "seconds": seconds, "machine": describe_machine(), "command": typed_command()}


def header_of(models: OpenModels, sampling: SamplingParams, *, full: bool) -> dict[str, Any]:
    """The entries of a curve that describe models with a drafter and this machine, without any times."""
    target, drafter = models.high, models.loaded_drafter
    assert drafter is not None
    return {
        "format": FORMAT,
        "model": {"target": target.decoder.name, "drafter": drafter.decoder.name, "rows": target.engine.rows},
        "measured_on": measured_on(models, sampling),
        "sampling": asdict(sampling),
        "full": full,
    }


def passes_alone(verify: passes.BySize, draft: passes.BySize) -> dict[str, Any]:
    """The parts of a curve for passes repeated alone: medians, and the spread of the samples."""
    parts: dict[str, Any] = {}
    for name, by_size in (("verify", verify), ("draft", draft)):
        spread = passes.columns(by_size)
        parts |= {f"{name}_ms": spread.pop("median"), f"{name}_spread_ms": spread}
    return parts


def conditions_of(models: OpenModels) -> tuple[EncodedCondition, ...]:
    """Conditions of the timed images: prompts of the grammar, or else an example of the target's encoder."""
    encoder, folder_models = models.high.encoder, models.folder_models()
    if folder_models is not None and takes_grammar(folder_models.index):
        return tuple(encoder.encode(one) for one in choose_prompts(_PROMPTS))
    return (encoder.example(),)


def low_targets(models: Pipeline | None, sampling: SamplingParams) -> list[in_grid.LowTarget]:
    """The smaller targets of a folder, in 8 bits and in float32, with the resamplers of MuLo-SD's presets."""
    targets = list[in_grid.LowTarget]()
    if models is None:
        return targets
    for ratio in models.low.known_ratios():
        resamplers = dict[str, Resampler]()
        for kind in ("latent", SUPER_RESOLUTION):
            with suppress(ManifestError, EngineError):
                resamplers[kind] = models.low.resampler(kind, ratio)
        for int8 in (True, False) if resamplers else ():
            with suppress(EngineError):
                small = models.low.target(ratio, int8)
                small.sample_by(sampling)
                targets.append(in_grid.LowTarget(ratio, int8, small, resamplers))
    return targets


def all_loops_of(
    target: EngineTarget, drafter: EngineDrafter, verify_ms: list[list[float]], draft_ms: list[list[float]]
) -> tuple[loops.CostLoop, ...]:
    """See `loops.all_loops`."""
    return loops.all_loops(target.vocab_size, verify_ms, draft_ms, drafter.fuses_chains, drafter.fuses_trees)


def _loops(
    target: EngineTarget, drafter: EngineDrafter, full: bool, verify_ms: list[list[float]], draft_ms: list[list[float]]
) -> tuple[loops.CostLoop, ...]:
    if full:
        return all_loops_of(target, drafter, verify_ms, draft_ms)
    return loops.choosing_loops(target.vocab_size, verify_ms, draft_ms, drafter.fuses_chains)


def _engine_version(backend: str) -> str:
    packages: dict[str, tuple[str, ...]] = {"cpu": WHEELS, "live": ("torch",)}
    for package in WHEELS if gpu_backend(backend) else packages.get(backend, (backend, f"{backend}-cu13")):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "unknown"


def _accelerator(backend: str) -> str | None:
    """Name of the GPU that a backend runs on; None for a CPU. A live model names its own device."""
    if backend in ("cpu", "live"):
        return None
    from underpaint.runtime.engines.tensorrt_runtime import gpu_name  # needs PyTorch

    gpu = gpu_backend(backend)
    return gpu_name(0 if gpu is None else gpu.device)
