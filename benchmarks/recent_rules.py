"""What the rules of 2025 and 2026 keep of the most that any lossless rule can, on cases small enough to enumerate.

Run: python -m benchmarks.recent_rules [--out FILE]

The optimum is a linear programme over all lossless rules that see the whole draft: for every draft that the drafter may
draw, the probability of each accepted node and extra token. The target draws what comes after. The objective is the
number of accepted nodes. On one level it is the transport of `underpaint.algos.transport`. The last line is JSON.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.optimize import linprog

from benchmarks.report import finish, options, parse
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance, enumerate_outcomes
from underpaint.algos.draft.delayed import delayed_shape
from underpaint.algos.enumeration import (
    accepted_per_cycle,
    enumerate_decoding,
    target_distribution,
    tokens_distribution,
    total_variation,
)
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.tree import DraftTree, Shape
from underpaint.sim.synthetic.models import Prefix, RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.strategies import ShapePolicy

Law = Callable[[Prefix], FloatArray]


class World(NamedTuple):
    """A target and a drafter over two tokens."""

    name: str
    target: Law
    draft: Law


class Draft(NamedTuple):
    """A shape of drafts, and the rules to try on it, with their settings."""

    name: str
    shape: Shape
    rules: tuple[tuple[str, Mapping[str, Any]], ...]


WORLDS: Final = (
    World("toy", lambda prefix: np.array([1 / 3, 2 / 3]), lambda prefix: np.array([2 / 3, 1 / 3])),
    World("random", RandomDistribution(2, seed=0), RandomDistribution(2, seed=50)),
)
ON_CHAINS: Final = (
    ("chain", {}),
    ("block", {}),
    ("ensemble", {"weight": 0.7}),
    ("fly", {"threshold": 0.3, "window": 1}),
    ("hsd", {}),
    ("sjd_sv", {"share": 0.8}),
)
ON_PATHS: Final = (("multi_round", {}), ("traversal", {}), ("gbv", {}))
DRAFTS: Final = (
    Draft("a chain of 2", delayed_shape(1, 0, 2), ON_CHAINS),
    Draft("a chain of 3", delayed_shape(1, 0, 3), ON_CHAINS),
    Draft("2 siblings", delayed_shape(2, 0, 1), ON_PATHS),
    Draft("2 paths of 2", delayed_shape(2, 0, 2), ON_PATHS),
    Draft("1 token, then 2 siblings", delayed_shape(2, 1, 1), ON_PATHS),
)


def drawn_trees(world: World, shape: Shape, root: int) -> list[tuple[DraftTree, float]]:
    """Return every draft of this shape below the image's first token `root`, with its probability."""

    def program(chance: Chance) -> tuple[int, ...]:
        drafter = SyntheticDrafter(world.draft)
        drafter.begin(SyntheticTarget(world.target, Grid(1, 9)).begin())
        tree = ShapePolicy(shape[1:], "iid").grow(drafter, root, Budget(9, 99), chance)
        trees[tuple(tree.tokens.tolist())] = tree
        return tuple(tree.tokens.tolist())

    trees = dict[tuple[int, ...], DraftTree]()
    return [(trees[tokens], weight) for tokens, weight in enumerate_outcomes(program).items()]


def most_accepted(world: World, shape: Shape) -> float:
    """Return the most nodes that a lossless rule keeps of such drafts, on average over the image's first token."""
    return sum(float(share) * most_accepted_below(world, shape, root) for root, share in enumerate(world.target(())))


def most_accepted_below(world: World, shape: Shape, root: int) -> float:
    """Return the most nodes that a lossless rule keeps of such drafts, on average below the first token `root`."""
    trees = drawn_trees(world, shape, root)
    depth = trees[0][0].depth
    images = list(product(range(2), repeat=depth + 1))

    def likely(tokens: tuple[int, ...], after: int) -> float:
        return float(
            np.prod([world.target((root, *tokens[:place]))[tokens[place]] for place in range(after, depth + 1)])
        )

    gains, rows, bounds = list[float](), list[FloatArray](), list[FloatArray]()
    for number, (tree, weight) in enumerate(trees):
        for node, token in product(range(tree.size), range(2)):
            path = tree.path_to(node)
            emitted = (*(int(tree.tokens[one]) for one in path), token)
            starts = [image[: len(emitted)] == emitted for image in images]
            rest = [likely(image, len(emitted)) if fits else 0.0 for image, fits in zip(images, starts, strict=True)]
            rows.append(weight * np.array(rest))
            bounds.append(np.eye(len(trees))[number])
            gains.append(-weight * len(path))
    whole = [likely(image, 0) for image in images]
    solved = linprog(
        gains,
        A_eq=np.concatenate([np.array(rows).T, np.array(bounds).T]),
        b_eq=np.concatenate([whole, np.ones(len(trees))]),
        bounds=(0, None),
    )
    if not solved.success:
        raise RuntimeError(f"{world.name}: the programme has no solution: {solved.message}")
    return float(-solved.fun)


def rows_of(world: World, draft: Draft) -> list[dict[str, Any]]:
    """Return a row for each rule: the nodes that it keeps of the draft, and the optimum."""
    rows, best = [], most_accepted(world, draft.shape)
    depth = drawn_trees(world, draft.shape, 0)[0][0].depth
    for name, settings in draft.rules:
        rule, target = RULES[name].make(**settings), SyntheticTarget(world.target, Grid(1, depth + 2))
        policy = ShapePolicy(draft.shape[1:], "iid")
        traces = enumerate_decoding(target, SyntheticDrafter(world.draft), policy, rule, 8, 2)
        whole = target_distribution(target)
        rows.append(
            {
                "world": world.name,
                "draft": draft.name,
                "rule": name,
                "settings": dict(settings),
                "kept": round(accepted_per_cycle(traces, 1), 9),
                "best": round(best, 9),
                "total_variation": round(total_variation(tokens_distribution(traces, whole), whole), 9),
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> None:
    args = parse(options("recent_rules", __doc__), arguments)
    finish({"rows": [row for world, draft in product(WORLDS, DRAFTS) for row in rows_of(world, draft)]}, args.out)


if __name__ == "__main__":
    main()
