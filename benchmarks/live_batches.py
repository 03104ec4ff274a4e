"""Batches and compiled passes of a live model: seconds of a picture beside one at a time, uncompiled.

Run: python -m benchmarks.live_batches [FOLDER] [--steps N] [--rounds N] [--pictures N] [--out FILE]

The target is that of `live_drafter`, ten layers of 512, with pictures of 4 x 12 cells; FOLDER (runs/live-drafter)
keeps it once it is trained. A round draws the same pictures by every variant, in an order of its own, under guidance at
temperature 1, on one thread. Seconds are the processor's, which other work on the machine lengthens least; the clock's
are told beside them. Figures are medians over rounds; the interval of a speed-up is a bootstrap over rounds, 95 %.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.live_drafter import PROMPT, opened, target_options, trained_target
from benchmarks.report import at_least, finish, options, parse
from underpaint.runtime.evaluation.paired import FigureInterval, interval_ends, resampled
from underpaint.runtime.live.generate import AcceleratedModel
from underpaint.training.shown import shown

GRID: Final = (4, 12)
METHODS: Final = ("ar", "jacobi-lookup")
BATCHES: Final = (1, 2, 4, 8)


class Variant(NamedTuple):
    """A method, the pictures drawn at once, and whether passes are compiled."""

    method: str
    batch: int
    compiled: bool = False


class Round(NamedTuple):
    """What drawing all pictures once took: the processor's and the clock's seconds, and target passes of a picture."""

    processor: float
    clock: float
    passes: float


VARIANTS: Final = (
    *(Variant(method, batch) for method in METHODS for batch in BATCHES),
    *(Variant(method, 1, compiled=True) for method in METHODS),
)


def draw_round(fast: AcceleratedModel, batch: int, seeds: Sequence[int]) -> Round:
    """Draw a picture of each seed."""
    started = process_time(), perf_counter()
    made = fast.generate([PROMPT] * len(seeds), seed=seeds, batch=batch)
    spent = process_time() - started[0], perf_counter() - started[1]
    return Round(*spent, float(np.mean([one.drawing.target_nfe for one in made])))


def median_ratio(base: Sequence[float], own: Sequence[float]) -> FigureInterval:
    """The median over rounds of `base` by `own`, with its bootstrap interval."""
    ratios = np.array(base) / np.array(own)
    return FigureInterval(float(np.median(ratios)), *interval_ends(np.median(ratios[resampled(ratios.size)], axis=1)))


def main(arguments: list[str] | None = None) -> None:
    parser = options("live_batches", __doc__)
    target_options(parser)
    parser.add_argument("--rounds", type=at_least(3), default=9)
    parser.add_argument("--pictures", type=at_least(1), default=8, help="pictures of a round")
    asked = parse(parser, arguments)
    with shown(False):
        tiny = trained_target(parser, asked.folder, asked.steps)
    models = {one: opened(tiny, one.method, GRID, compile=one.compiled) for one in VARIANTS}
    for one, fast in models.items():  # allocates, and compiles passes of every size
        draw_round(fast, one.batch, range(asked.pictures))
    taken: dict[Variant, list[Round]] = {one: [] for one in VARIANTS}
    random = np.random.default_rng(0)
    for number in range(1, asked.rounds + 1):
        for place in random.permutation(len(VARIANTS)):
            one = VARIANTS[place]
            seeds = range(number * asked.pictures, (number + 1) * asked.pictures)
            taken[one].append(draw_round(models[one], one.batch, seeds))
    rows = []
    for one, rounds in taken.items():
        base = taken[Variant(one.method, 1)]
        faster = median_ratio([each.processor for each in base], [each.processor for each in rounds])
        figures: dict[str, Any] = {
            name: float(np.median([getattr(each, name) for each in rounds])) / count
            for name, count in (("passes", 1), ("processor", asked.pictures), ("clock", asked.pictures))
        }
        rows.append({**one._asdict(), **figures, **faster.named("speedup")})
    about = {"grid": list(GRID), "rounds": asked.rounds, "pictures": asked.pictures, "steps": asked.steps}
    about["machine_load"] = float(np.round(np.mean(os.getloadavg()), 1))
    finish({"benchmark": "live_batches", **about, "rows": rows}, asked.out)


if __name__ == "__main__":
    main()
