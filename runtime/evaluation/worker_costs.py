"""Pass costs on workers, for methods that choose by them: one curve per evaluation, stored in its folder."""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.cost_curve import read_cost_curve
from underpaint.artifacts.files import part_of, written_beside
from underpaint.runtime.costs.machine_curve import curve_of
from underpaint.runtime.evaluation.plan import ModelSource, threads_of
from underpaint.runtime.models import OpenModels


def costs_file(
    folder: Path,
    spec: ModelSource,
    pipeline: OpenModels,
    sampling: SamplingParams,
    *,
    inline: bool,
    tell: Callable[[], None],
) -> Path:
    """Return the file of an evaluation's cost curve; measure and store this machine's curve if there is none.

    All shards of the evaluation read this file, on any machine; otherwise they would draw with different trees. The
    measurement runs on the threads that draw, in its own process unless jobs are drawn `inline`, and alone, as
    concurrent workers may slow it down.

    Args:
        folder: The folder of the evaluation.
        spec: The models for workers to open.
        pipeline: The same models, opened in this process.
        sampling: Sampling parameters of the target.
        inline: Whether this process draws the jobs.
        tell: Called before a measurement.

    Returns:
        The absolute path of the file.

    Raises:
        ValueError: The models have no drafter.
    """
    about = pipeline.fingerprint()
    hashes = {part: about["sha256"].get(about.get(part)) for part in ("target", "drafter")}
    named = {
        "sha256": hashes,
        "resolution": about["resolution"],
        "threads": threads_of(spec, about, inline=inline),
        "rows": 1 if sampling.guidance == 1.0 else 2,
    }
    name = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]
    path = (folder / f"costs-{name}.json").absolute()
    if path.exists():
        read_cost_curve(path)
        return path
    tell()
    if inline:
        content = _content(pipeline, sampling)
    else:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
            content = alone.submit(_measured, spec, sampling).result()
    with written_beside(path) as file:
        file.write(content)
        file.flush()
        if not path.exists():  # another shard that started at the same time may have stored its own
            os.replace(part_of(path), path)
    return path


def _measured(spec: ModelSource, sampling: SamplingParams) -> bytes:
    return _content(spec.open(own_threads=True), sampling)


def _content(pipeline: OpenModels, sampling: SamplingParams) -> bytes:
    curve = curve_of(pipeline, sampling)
    if curve is None:
        raise ValueError("evaluate: these models have no drafter, so a method that chooses by its cost cannot draw")
    return curve.content
