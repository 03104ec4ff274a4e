"""What passes cost where workers draw, for methods that choose by it: one curve an evaluation, kept in its folder."""

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
from underpaint.runtime.evaluation.plan import ModelSource
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
    """The cost curve of an evaluation's model in `folder`: the one that is there, or this machine's, put there.

    All parts of the evaluation read that file, on whatever machine they are drawn: else they would draw by different
    trees. It is measured on as many threads as a worker has, in a process of its own unless jobs are drawn `inline`,
    and alone: workers beside each other may be slower. tell: is called before the measurement, where there is one.
    Raises ValueError where the models have no drafter.
    """
    about = pipeline.fingerprint()
    hashes = {part: about["sha256"].get(about.get(part)) for part in ("target", "drafter")}
    named = {
        "sha256": hashes,
        "resolution": about["resolution"],
        "threads": spec.threads,
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
        if not path.exists():  # a part that started at the same time may have put its own there
            os.replace(part_of(path), path)
    return path


def _measured(spec: ModelSource, sampling: SamplingParams) -> bytes:
    return _content(spec.open(own_threads=True), sampling)


def _content(pipeline: OpenModels, sampling: SamplingParams) -> bytes:
    curve = curve_of(pipeline, sampling)
    if curve is None:
        raise ValueError("evaluate: these models have no drafter, so a method that chooses by its cost cannot draw")
    return curve.content
