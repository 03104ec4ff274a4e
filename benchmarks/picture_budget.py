"""A budget over the picture against the same budget spent evenly: tokens kept at equal exact total variation.

Run: python -m benchmarks.picture_budget [--engines DIR] [--prompts-count 40] [--rows 4] [--seed 0] [--out FILE]

The shipped models draw each prompt by `neighbour_budget`, at most `delta` a node. What it spent on the picture is all
that `picture_budget` may spend on the same prompt with the same seed. Both are exact sums of total variations, worked
out at every node that the walk reached.

A row is a policy with a `delta`: tokens a cycle of the lossless rule, of both, and the difference of both with its 95 %
interval by a bootstrap over prompts, which are paired.
"""

import sys
from typing import Any, NamedTuple

import numpy as np

from benchmarks.models import engines_option, open_models
from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.accept.neighbour_budget import NeighbourBudget, move_to_draft, move_to_points
from underpaint.algos.accept.picture_budget import PictureBudget
from underpaint.algos.accept.proposals import normalised
from underpaint.algos.accept.spec import Rule
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance, sampling
from underpaint.algos.draft import POLICIES
from underpaint.algos.registry import build
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import decode
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.runtime.conditions import Condition
from underpaint.runtime.evaluation.comparison import read_conditions
from underpaint.runtime.pipeline import Pipeline

DELTAS = (0.1,)
POLICIES_AND_SETTINGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("one point", "eagle2", {"depth": 5, "top_k": 1, "total_tokens": 5}),
    ("two points", "eagle2", {"depth": 5, "top_k": 2, "total_tokens": 10}),
    ("one drawn", "chain", {"length": 5}),
    ("ten points", "eagle2", {}),
)
RESAMPLED = 10000


class Drawing(NamedTuple):
    """One picture: cycles after the first, tokens that they decided, and total variation spent."""

    cycles: int
    tokens: int
    spent: float


class EvenSpending:
    """Implements `Rule` by `neighbour_budget`; adds up what it spends."""

    def __init__(self, neighbours: IntArray, delta: float) -> None:
        self.rule, self.near, self.delta, self.spent = NeighbourBudget(neighbours, delta=delta), neighbours, delta, 0.0

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        verdict = self.rule(tree, probs, chance)
        below = tree.children()
        for node in (0, *verdict.path):
            if below[node]:
                self.spent += self._spent(tree, node, below[node], normalised(probs[node]))
        return verdict

    def _spent(self, tree: DraftTree, node: int, children: list[int], target: FloatArray) -> float:
        if tree.drawn == "top_k":
            tokens = [int(tree.tokens[child]) for child in children]
            return _apart(move_to_points(target, tokens, self.near, self.delta), target)
        draft = normalised(tree.draft_distribution(node))  # of one drawn sibling
        return _apart(move_to_draft(target, draft, self.near, self.delta), target)


def _apart(one: FloatArray, other: FloatArray) -> float:
    return 0.5 * float(np.abs(one - other).sum())


class Models(NamedTuple):
    """The engine, and how it samples."""

    pipeline: Pipeline
    sampler: SamplingParams

    def draw(self, policy: str, settings: dict[str, Any], rule: Rule, prompt: Condition, seed: int) -> tuple[int, int]:
        """Cycles after the first, and the tokens that they decided."""
        target, drafter = self.pipeline.target(prompt, self.sampler), self.pipeline.drafter(self.sampler)
        made = build(POLICIES[policy].make, settings, policy)
        done = decode(target.model, drafter.model, made, rule, sampling(seed), self.pipeline.max_nodes)
        return len(done.cycles) - 1, done.tokens.size - 1


def tokens_a_cycle(drawings: list[Drawing]) -> float:
    """Of all pictures together."""
    return sum(one.tokens for one in drawings) / sum(one.cycles for one in drawings)


def interval(even: list[Drawing], picture: list[Drawing]) -> tuple[float, float]:
    """The ends of the 95 % interval of the difference in tokens a cycle: a bootstrap over prompts."""
    draws = np.random.default_rng(0).integers(len(even), size=(RESAMPLED, len(even)))
    tokens = np.array([one.tokens for one in even])[draws].sum(axis=1)
    before, after = (np.array([one.cycles for one in each])[draws].sum(axis=1) for each in (even, picture))
    low, high = np.quantile(tokens / after - tokens / before, [0.025, 0.975])
    return float(low), float(high)


def compare(
    models: Models, case: tuple[str, str, dict[str, Any]], prompts: list[Condition], seed: int
) -> list[dict[str, Any]]:
    """The rows of one policy."""
    siblings, policy, settings = case
    near = models.pipeline.tables.neighbours
    cells = models.pipeline.target(prompts[0], models.sampler).model.grid.cells
    numbered = list(enumerate(prompts, start=seed))
    exact = [Drawing(*models.draw(policy, settings, NeighbourBudget(near, delta=0.0), p, n), 0.0) for n, p in numbered]
    rows = []
    for delta in DELTAS:
        even, picture = [], []
        for number, prompt in numbered:
            spending = EvenSpending(near, delta)
            even.append(Drawing(*models.draw(policy, settings, spending, prompt, number), spending.spent))
            rule = PictureBudget(near, delta=min(1.0, spending.spent / cells))
            picture.append(Drawing(*models.draw(policy, settings, rule, prompt, number), rule.spent))
            if picture[-1].spent > even[-1].spent + 1e-9:
                raise AssertionError(f"the budget was passed: {picture[-1].spent} over {even[-1].spent}")
        low, high = interval(even, picture)
        rows.append(
            {
                "siblings": siblings,
                "policy": policy,
                "settings": settings,
                "delta": delta,
                "prompts": len(prompts),
                "even_bias": sum(one.spent for one in even) / (cells * len(prompts)),
                "picture_bias": sum(one.spent for one in picture) / (cells * len(prompts)),
                "lossless_tokens": tokens_a_cycle(exact),
                "even_tokens": tokens_a_cycle(even),
                "picture_tokens": tokens_a_cycle(picture),
                "more": tokens_a_cycle(picture) - tokens_a_cycle(even),
                "low": low,
                "high": high,
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Compare, and print one JSON line."""
    parser = options("picture_budget", __doc__)
    engines_option(parser)
    parser.add_argument("--prompts-count", type=at_least(2), default=40, help="pictures of each row")
    parser.add_argument("--seed", type=at_least(0), default=0, help="noise of the first picture")
    parser.add_argument(
        "--rows", type=int, choices=range(1, 5), default=4, help="how many of the policies, from the first"
    )
    asked = parse(parser, arguments)
    with refusing(parser):
        pipeline = open_models(asked, 128)
        prompts = list(read_conditions(pipeline, (), asked.prompts_count))
    shipped = pipeline.sampling
    models = Models(pipeline, SamplingParams(shipped.guidance, 1.0, shipped.top_k, shipped.top_p))
    rows = [row for case in POLICIES_AND_SETTINGS[: asked.rows] for row in compare(models, case, prompts, asked.seed)]
    finish({"benchmark": "picture_budget", "model": dict(pipeline.fingerprint()), "rows": rows}, asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
