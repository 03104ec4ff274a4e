"""Do lossless methods draw tokens by the target's distribution on the real engine? First tokens and pairs, against
exact distributions.

Run: python -m benchmarks.pair_statistics [--engines DIR] [--prompts-count 2] [--draws 2000] [--top-k K]
         [--out FILE]

For each prompt the engine itself gives the exact distribution of the first three tokens: p(a), p(b | a) and p(c | a, b)
for all that its sampler leaves possible. Every lossless method, AR among them, then draws the first three tokens many
times.
Reported: the G statistic of the counts of a, of pairs (a, b) and of pairs (b, c) against the exact distribution, as a
z-score ((G - its mean) / its deviation, by simulating the same number of draws from the exact distribution), and
whether any token was drawn that the distribution gives no mass. An exact method's scores are within about 3. The first
token is drawn from the condition's distribution before there is a draft; pairs are where a rule can be wrong.
"""

import sys
import time
from typing import NamedTuple

import numpy as np

from benchmarks.models import engines_option, open_models
from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Target, cycles
from underpaint.algos.tree import NO_TOKEN, Verdict, root_only
from underpaint.runtime.conditions import Condition
from underpaint.runtime.evaluation.comparison import read_conditions
from underpaint.runtime.methods.registry import METHODS, build_method, resolve
from underpaint.runtime.methods.trees.method import TreeMethod
from underpaint.runtime.pipeline import Pipeline

TOKENS = 3
SIMULATED = 400
SHOWN = ("a", "a, b", "b, c")
MOST_LEFT = 100
"""Codes that the sampler may leave: all triples of them are held, and all pairs take a pass."""


class Distributions(NamedTuple):
    """p(a, b, c) at the triples [N, 3] that have mass."""

    triples: IntArray
    masses: FloatArray

    def margin(self, columns: slice) -> dict[tuple[int, ...], float]:
        found: dict[tuple[int, ...], float] = {}
        for triple, mass in zip(self.triples[:, columns].tolist(), self.masses.tolist(), strict=True):
            found[tuple(triple)] = found.get(tuple(triple), 0.0) + mass
        return found


COLUMNS = (slice(0, 1), slice(0, 2), slice(1, 3))


def exact(target: Target) -> Distributions:
    """The distribution of the first three tokens, pass by pass: one pass for each pair (a, b)."""
    triples, masses = [], []
    first = target.begin().probs[0].astype(np.float64)
    for a in np.flatnonzero(first).tolist():
        target.begin()
        root = root_only(a, target.vocab_size)
        second = target.score(root).probs[0].astype(np.float64)
        for b in np.flatnonzero(second).tolist():
            target.begin()
            target.score(root)
            target.commit(root, Verdict((), b))
            third = target.score(root_only(b, target.vocab_size)).probs[0].astype(np.float64)
            for c in np.flatnonzero(third).tolist():
                triples.append((a, b, c))
                masses.append(first[a] * second[b] * third[c])
    weights = np.array(masses)
    return Distributions(np.array(triples), weights / weights.sum())


def draw_first(
    pipeline: Pipeline, built: TreeMethod, prompt: Condition, sampler: SamplingParams, seed: int
) -> tuple[int, ...]:
    target = pipeline.target(prompt, sampler).model
    drafter = pipeline.drafter(sampler).model if built.drafts else None
    tokens: list[int] = []
    for cycle in cycles(target, drafter, built.policy, built.rule, sampling(seed), pipeline.max_nodes):
        if cycle.tree.tokens[0] != NO_TOKEN or cycle.verdict.token != NO_TOKEN:
            tokens.extend(int(cycle.tree.tokens[node]) for node in cycle.verdict.path)
            tokens.append(cycle.verdict.token)
        if len(tokens) >= TOKENS:
            break
    return tuple(tokens[:TOKENS])


def g_statistic(counts: FloatArray, expected: FloatArray) -> FloatArray:
    """2 sum c log(c / e) over the last axis."""
    ratio = np.divide(counts, expected, out=np.ones_like(counts), where=counts > 0)
    total: FloatArray = 2 * (counts * np.log(ratio)).sum(axis=-1)
    return total


def score(drawn: IntArray, distributions: Distributions, columns: slice, rng: np.random.Generator) -> tuple[float, int]:
    """The z-score of the drawn tuples in these columns, and how many of them the distribution gives no mass."""
    margin = distributions.margin(columns)
    places = {key: place for place, key in enumerate(margin)}
    masses = np.array(list(margin.values()))
    counts, impossible = np.zeros(masses.size), 0
    for key in map(tuple, drawn[:, columns].tolist()):
        if key in places:
            counts[places[key]] += 1
        else:
            impossible += 1
    expected = masses * len(drawn)
    simulated = g_statistic(rng.multinomial(len(drawn), masses, SIMULATED).astype(np.float64), expected)
    spread = float(simulated.std())
    if spread == 0.0:  # one outcome has all the mass
        return 0.0, impossible
    return float((g_statistic(counts, expected) - simulated.mean()) / spread), impossible


def main(arguments: list[str] | None = None) -> None:
    parser = options("pair_statistics", __doc__)
    engines_option(parser)
    parser.add_argument("--resolution", type=int, choices=(64, 128), default=128)
    parser.add_argument("--prompts-count", type=at_least(1), default=2)
    parser.add_argument("--top-k", type=at_least(1), help="codes kept; default: as the models are meant to be sampled")
    parser.add_argument("--draws", type=at_least(1), default=2000)
    parser.add_argument("--methods", help="lossless tree methods, with commas between; default: all of them")
    asked = parse(parser, arguments)
    with refusing(parser):
        pipeline = open_models(asked, asked.resolution)
        prompts = read_conditions(pipeline, (), asked.prompts_count)
        built = lossless(pipeline, asked.methods)
        shipped = pipeline.sampling
        top_k = shipped.top_k if asked.top_k is None else asked.top_k
        left = top_k or pipeline.tables.vocab_size
        if left > MOST_LEFT:
            raise ValueError(
                f"--top-k: expected at most {MOST_LEFT} codes that the sampler leaves, because every three of them are "
                f"enumerated, got {left:,}"
            )
    sampler = SamplingParams(shipped.guidance, 1.0, top_k, shipped.top_p)
    rows = []
    print(f"{'prompt':44s} {'method':14s} " + " ".join(f"z({shown})".rjust(8) for shown in SHOWN) + "  impossible")
    for number, prompt in enumerate(prompts):
        distributions = exact(pipeline.target(prompt, sampler).model)
        for place, method in enumerate(built):
            start = time.monotonic()
            drawn = np.empty((asked.draws, TOKENS), dtype=np.int64)
            for index in range(asked.draws):
                seed = (number * len(built) + place) * asked.draws + index  # no two methods share noise
                drawn[index] = draw_first(pipeline, method, prompt, sampler, seed)
            found = [score(drawn, distributions, columns, np.random.default_rng(1)) for columns in COLUMNS]
            impossible = max(missing for _, missing in found)
            rows.append(
                {
                    "prompt": prompt.caption(),
                    "method": method.name,
                    "z": {shown: z for shown, (z, _) in zip(SHOWN, found, strict=True)},
                    "impossible": impossible,
                }
            )
            shown = " ".join(f"{z:8.2f}" for z, _ in found)
            print(f"{prompt.caption():44s} {method.name:14s} {shown} {impossible:11d}", flush=True)
            print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    report = {
        "resolution": asked.resolution,
        "draws": asked.draws,
        "sampler": {"guidance": sampler.guidance, "top_k": sampler.top_k, "top_p": sampler.top_p},
        "model": dict(pipeline.fingerprint()),
        "rows": rows,
    }
    finish(report, asked.out)


def lossless(pipeline: Pipeline, asked: str | None) -> list[TreeMethod]:
    """The methods asked for, with commas between (None: all that fit); ValueError for one that is no such method."""
    trees = [each.name for each in METHODS if each.tuned.sampled.family == "tree"]
    names = trees if asked is None else [name.strip() for name in asked.split(",")]
    found = []
    for name in names:
        built = build_method(name, resolve(name, 1.0), pipeline.tables)
        if isinstance(built, TreeMethod) and built.lossless:
            found.append(built)
        elif asked is not None:
            raise ValueError(f"--methods: expected lossless tree methods, '{name}' is none")
    return found


if __name__ == "__main__":
    main()
