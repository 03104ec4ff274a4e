"""What a target pass costs after the processor did something else for a while.

Run: python -m benchmarks.pauses [--target target128] [--threads 2] [--rounds 60] [--out FILE]

Plain autoregression comes back to the target after a fraction of a millisecond, a cycle that drafts after some of
drafter and host. Every pass here follows a busy wait on one core, in which nothing of the model is touched; all pauses
and sizes take turns within each round. The last line is JSON: `passes_ms` is [[pause ms, {T: median ms}], ...]. With
--threads 1 no thread has to be woken: what a pause costs there is not that.
"""

import time
from pathlib import Path

import numpy as np

from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.workers import usable_cores
from underpaint.runtime.costs.passes import halfway, verify_once
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.target import EngineTarget
from underpaint.zoo.load import FOLDER

PAUSES_MS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
SIZES = (1, 4, 9)


def wait(milliseconds: float) -> None:
    """Keep this core busy for so long."""
    end = time.perf_counter() + 1e-3 * milliseconds
    while time.perf_counter() < end:
        pass


def measure(target: EngineTarget, rounds: int) -> dict[float, dict[int, float]]:
    """Median ms of a pass, by the pause before it and its size."""
    halfway(target)
    found: dict[tuple[float, int], list[float]] = {(pause, size): [] for pause in PAUSES_MS for size in SIZES}
    for _ in range(rounds):
        for (pause, size), samples in found.items():
            verify_once(target, size)
            wait(pause)
            samples.append(verify_once(target, size).graph_ms)
    return {pause: {size: float(np.median(found[pause, size])) for size in SIZES} for pause in PAUSES_MS}


def main(arguments: list[str] | None = None) -> None:
    parser = options("pauses", __doc__)
    parser.add_argument("--target", default="target128", help="name of a target in the folder")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of models (default: the zoo)")
    parser.add_argument("--threads", type=at_least(1), default=usable_cores(), help="of the target")
    parser.add_argument("--rounds", type=at_least(1), default=60, help="samples of every pause and size")
    given = parse(parser, arguments)
    with refusing(parser):
        context = EngineContext(threads=given.threads, pool="shared")
        target = EngineTarget.open(given.target, SamplingParams(top_k=5), given.folder, context)
    found = measure(target, given.rounds)
    print(f"pause ms {'  '.join(f'T = {size}' for size in SIZES)}")
    for pause, by_size in found.items():
        print(f"{pause:8.1f} {'  '.join(f'{ms:5.3f}' for ms in by_size.values())}")
    finish(
        {
            "benchmark": "pauses",
            "model": {"target": given.target},
            "threads": given.threads,
            "rounds": given.rounds,
            "passes_ms": [
                [pause, {str(size): round(ms, 4) for size, ms in by_size.items()}] for pause, by_size in found.items()
            ],
        },
        given.out,
    )


if __name__ == "__main__":
    main()
