"""What block and traversal verification accept beyond token-wise rules, on a shipped model's own image tokens.

Run: python -m benchmarks.verification [--models DIR] [--resolution 128] [--prompts-count 16] [--seeds 1] [--out FILE]

A token-wise rule decodes pictures at temperature 1; at every cycle each rule is asked what it would accept of the same
draft under the same target distributions. Its expected accepted length there is exact: every outcome of its flips is
walked with its weight (what it would draw afterwards does not change a length), so the rules differ by nothing but
themselves. Intervals: 95 %, bootstrap over pictures. The last line is JSON; --out writes it to a file too.
"""

import json
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from benchmarks.models import models_option, open_models
from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Enumerating, enumerate_outcomes
from underpaint.algos.draft import POLICIES
from underpaint.algos.registry import build
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import decode
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.drawing import noise_of
from underpaint.runtime.evaluation.comparison import read_conditions

CASES = (
    ("chain", {"length": 3}, ("chain", "block")),
    ("chain", {"length": 5}, ("chain", "block")),
    ("chain", {"length": 8}, ("chain", "block")),
    ("eagle1", {"widths": [3, 4, 3, 2]}, ("without_replacement", "traversal")),
    ("eagle1", {"widths": [2, 2, 2, 2]}, ("without_replacement", "traversal")),
    ("eagle2", {"depth": 4, "top_k": 4, "total_tokens": 12}, ("point", "traversal")),
)


@dataclass(frozen=True, slots=True)
class FlipsOnly:
    """Branches on flips; a draw, which comes after the length is settled, takes its first possible token."""

    walked: Enumerating

    def cycle(self, index: int) -> Self:
        return type(self)(self.walked.cycle(index))

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        return self.walked.flip(chance_of, at, out_of)

    def draw(self, weights: FloatArray, at: At) -> int:
        return int(np.flatnonzero(weights)[0])


def expected_length(rule: str, tree: DraftTree, probs: FloatArray) -> float:
    decide = RULES[rule].make()
    lengths = enumerate_outcomes(lambda chance: len(decide(tree, probs, FlipsOnly(chance)).path))
    return sum(length * weight for length, weight in lengths.items())


@dataclass(slots=True)
class Witness:
    """Decides by the first rule, and notes what each would have accepted."""

    rules: tuple[str, ...]
    seen: list[list[float]] = field(default_factory=list)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        if tree.size > 1:
            self.seen.append([expected_length(rule, tree, probs) for rule in self.rules])
        return RULES[self.rules[0]].make()(tree, probs, chance)


def interval(pictures: list[FloatArray], draws: int = 2000) -> tuple[float, float]:
    """Of the ratio of mean tokens per cycle, second rule to first."""
    rng = np.random.default_rng(0)
    sums = np.array([[*(1 + lengths).sum(axis=0)] for lengths in pictures])
    picks = rng.integers(len(sums), size=(draws, len(sums)))
    ratios = sums[picks, 1].sum(axis=1) / sums[picks, 0].sum(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def main(arguments: list[str] | None = None) -> None:
    parser = options("verification", __doc__)
    models_option(parser)
    parser.add_argument("--resolution", type=int, choices=(64, 128), default=128)
    parser.add_argument("--prompts-count", type=at_least(1), default=16)
    parser.add_argument("--seeds", type=at_least(1), default=1)
    asked = parse(parser, arguments)
    with refusing(parser):
        pipeline = open_models(asked, asked.resolution)
        prompts = read_conditions(pipeline, (), asked.prompts_count)
    shipped = pipeline.sampling
    sampler = SamplingParams(shipped.guidance, 1.0, shipped.top_k, shipped.top_p)
    rows = []
    print("policy  settings                                        token-wise  tokens/cycle   better     gain  95 %")
    for policy, settings, rules in CASES:
        plain = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
        pictures = []
        for prompt in prompts:
            for seed in range(asked.seeds):
                witness = Witness(rules)
                target, drafter = pipeline.target(prompt, sampler).model, pipeline.drafter(sampler).model
                grown = build(POLICIES[policy].make, plain, policy)
                decode(target, drafter, grown, witness, noise_of(prompt, seed), pipeline.max_nodes)
                pictures.append(np.array(witness.seen))
        whole = 1 + np.concatenate(pictures).mean(axis=0)
        low, high = interval(pictures)
        rows.append(
            {
                "policy": policy,
                "settings": settings,
                "rules": rules,
                "tokens_per_cycle": whole.tolist(),
                "gain": whole[1] / whole[0] - 1,
                "gain_low": low - 1,
                "gain_high": high - 1,
                "cycles": sum(len(lengths) for lengths in pictures),
            }
        )
        print(
            f"{policy:7s} {json.dumps(settings):47s} {rules[0]:>10s} {whole[0]:13.3f} {whole[1]:8.3f} "
            f"{100 * (whole[1] / whole[0] - 1):7.2f}% [{100 * (low - 1):.2f}, {100 * (high - 1):.2f}]",
            flush=True,
        )
    found = {
        "resolution": asked.resolution,
        "prompts": asked.prompts_count,
        "seeds": asked.seeds,
        "sampler": {"guidance": sampler.guidance, "top_k": sampler.top_k, "top_p": sampler.top_p},
        "model": dict(pipeline.fingerprint()),
        "rows": rows,
    }
    finish(found, asked.out)


if __name__ == "__main__":
    main()
