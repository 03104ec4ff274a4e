"""Which measure of quality sees known damage, and with how many pictures.

Run: python -m benchmarks.quality_damage [--models DIR] [--resolution 128] [--prompts-count 200] [--out FILE]

Plain AR draws two pictures for every prompt at temperature 1, with different noise, as a relaxed method's pictures
have other tokens than AR's. In the second a share of the tokens is replaced by their k-th nearest code, and each
measure that `underpaint compare` tells compares it with the first, prompt by prompt. The control is damaged nowhere:
what a measure sees in it is chance, and is in all other rows too.

Accuracy, the judge's log-probability and the target's log-likelihood see a loss where the 95 % interval of the paired
difference leaves out 0; pictures needed are for a chance of 0.8 to see it. The classifier sees it where the interval of
its AUC lies above 0.5; pictures needed are the fewest prompts of COUNTS from which on all larger counts see it.

What a loss of accuracy is worth in log-probability is told too: over all damages, each beside its own picture before
the damage, which has the same noise. So a bar of accuracy can be judged by the log-probability too. The last line is
JSON; --out writes it to a file too.
"""

import json
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.models import models_option, open_models
from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.drawing import Drawing, draw
from underpaint.runtime.evaluation.comparison import read_conditions
from underpaint.runtime.evaluation.damage import replaced_by_neighbours
from underpaint.runtime.evaluation.paired import interval_ends, paired_difference, pictures_needed, resampled
from underpaint.runtime.evaluation.picture_judge import judge_of
from underpaint.runtime.evaluation.picture_quality import PictureViews
from underpaint.runtime.evaluation.two_sample import LEAST_PROMPTS, two_sample_test
from underpaint.runtime.methods.registry import build_method, resolve

COUNTS = (25, 50, 100, 200, 400)
"""Prompts that the classifier is tried with, as far as there are so many."""


class Damage(NamedTuple):
    """A share of the tokens is replaced by their `rank`-th nearest code. share 0: none, the control."""

    share: float
    rank: int


DAMAGES = (
    Damage(0.0, 1),
    *(Damage(share, rank) for rank in (1, 10, 50) for share in (0.01, 0.05, 0.2, 0.5)),
)
POINTS = 0.02
"""The loss of accuracy whose worth in log-probability is told."""


def worth_of_points(accuracy: FloatArray, log_probability: FloatArray) -> dict[str, float] | None:
    """The log-probability that goes with a loss of `POINTS` of accuracy, in nats: a line through 0 over all damages.

    Both [damages, prompts]: what each damage adds to the figure of each prompt. The interval is a bootstrap over
    prompts (95 %). None where the damages cost no accuracy.
    """

    def nats(chosen: IntArray) -> FloatArray:
        """[..., prompts] places to [...] nats."""
        lost, told = (one[:, chosen].mean(axis=-1) for one in (accuracy, log_probability))
        slope: FloatArray = np.sum(lost * told, axis=0) / np.sum(lost * lost, axis=0)
        return POINTS * slope

    prompts = accuracy.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        whole, drawn = nats(np.arange(prompts)), nats(resampled(prompts))
    if not np.isfinite(whole):
        return None
    low, high = interval_ends(drawn[np.isfinite(drawn)])
    return {"points": POINTS, "nats": float(whole), "nats_low": low, "nats_high": high}


def paired(name: str, base: FloatArray, damaged: FloatArray) -> dict[str, Any]:
    """A measure that has a figure a picture: [prompts] each."""
    found = paired_difference(base[None], damaged[None])
    seen = found.high is not None and found.high < 0.0
    needed = pictures_needed(damaged - base) if seen else None
    return {
        "measure": name,
        "difference": found.mean,
        "difference_low": found.low,
        "difference_high": found.high,
        "sees": seen,
        "pictures_needed": needed,
    }


def told_apart(base: FloatArray, damaged: FloatArray) -> dict[str, Any]:
    """The classifier: features [prompts, F] each."""
    counts = [count for count in COUNTS if count < len(base)] + [len(base)]
    tests = {count: two_sample_test(base[:count, None], damaged[:count, None]) for count in counts}
    needed = None
    for count in reversed(counts):
        if tests[count].low <= 0.5:
            break
        needed = count
    whole = tests[len(base)]
    return {
        "measure": "auc",
        "difference": whole.auc - 0.5,
        "difference_low": whole.low - 0.5,
        "difference_high": whole.high - 0.5,
        "sees": whole.low > 0.5,
        "pictures_needed": needed,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options("quality_damage", __doc__)
    models_option(parser)
    parser.add_argument("--resolution", type=int, choices=(64, 128), default=128)
    parser.add_argument("--prompts-count", type=at_least(LEAST_PROMPTS), default=200)
    asked = parse(parser, arguments)
    with refusing(parser):
        pipeline = open_models(asked, asked.resolution)
        prompts = read_conditions(pipeline, (), asked.prompts_count)
        judge = judge_of(pipeline)
        if judge is None:
            raise ValueError(f"{asked.models} holds no judge, so nothing sees a damage; export one into it")
    shipped = pipeline.sampling
    sampling = SamplingParams(shipped.guidance, 1.0, shipped.top_k, shipped.top_p)
    plain = build_method("ar", resolve("ar", 1.0), pipeline.tables)
    views = PictureViews(pipeline, judge, prompts, compared=True, likelihood=sampling)
    neighbours = pipeline.tables.neighbours

    def drawn(seed: int) -> list[Drawing]:
        found = []
        for number, prompt in enumerate(prompts):
            found.append(draw(pipeline, plain, sampling, prompt, seed))
            print(f"\rdrawing, seed {seed}: {number + 1} of {len(prompts)}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return found

    def figures(pictures: list[Drawing]) -> dict[str, FloatArray]:
        likely = views.attribute_log_probability(pictures, judge)
        assert likely is not None
        return {
            "accuracy": views.read_right(pictures, judge)[judge.grammar.accuracy].astype(np.float64),
            "attribute_log_probability": likely,
            "log_likelihood": np.array([views.log_likelihood(one) for one in pictures]),
        }

    base, again = drawn(0), drawn(1)
    of_base = figures(base)
    features = np.stack([views.features(one) for one in base])
    rows: list[dict[str, Any]] = []
    undamaged = figures(again)
    costs: dict[str, list[FloatArray]] = {"accuracy": [], "attribute_log_probability": []}
    for damage in DAMAGES:
        rng = np.random.default_rng(0)
        whole = np.array([one.tokens for one in again])
        codes = replaced_by_neighbours(whole, neighbours, damage.share, damage.rank, rng)
        damaged = [replace(one, tokens=tuple(row)) for one, row in zip(again, codes.tolist(), strict=True)]
        own = figures(damaged) if damage.share else undamaged
        for name, held in costs.items():
            held.append(own[name] - undamaged[name])
        measures = [paired(name, of_base[name], own[name]) for name in of_base]
        measures.append(told_apart(features, np.stack([views.features(one) for one in damaged])))
        for found in measures:
            rows.append({"share": damage.share, "rank": damage.rank, **found})
            print(
                f"{damage.share:5.0%} rank {damage.rank:2d}  {found['measure']:26s} {found['difference']:+.4f} "
                f"[{found['difference_low']:+.4f}, {found['difference_high']:+.4f}]  {found['pictures_needed']}",
                flush=True,
            )
    found = {
        "resolution": asked.resolution,
        "prompts": asked.prompts_count,
        "sampler": {"guidance": sampling.guidance, "top_k": sampling.top_k, "top_p": sampling.top_p},
        "model": json.loads(json.dumps(dict(pipeline.fingerprint()))),
        "worth": worth_of_points(*map(np.stack, costs.values())),
        "rows": rows,
    }
    worth = found["worth"]
    if worth is not None:
        ends = f"{worth['nats_low']:.4f}, {worth['nats_high']:.4f}"
        print(f"{POINTS:g} of accuracy is worth {worth['nats']:.4f} nats [{ends}] of log-probability")
    finish(found, asked.out)


if __name__ == "__main__":
    main()
