"""What deciding a draft tree costs: LANTERN's verdict here, and by a direct loop over the same decisions.

Run: python -m benchmarks.decide [--nodes 60] [--vocab-size 16384] [--neighbours 1000] [--delta 0.1] [--rounds 60]

Point proposals on trees of ten nodes a level, distributions at temperature 1 given as arrays: row maths are nobody's
share, and the table of neighbours is random, as what it holds costs nothing. Two loops, written for this benchmark in
the manner
of released research code: "direct" follows every candidate path in plain Python, with a dense row (a list) made and
renormalised at each step; "arrays" does the same with a dense NumPy row. All three take the same uniforms and must
return the same verdicts.
The last line is JSON: `verdict_ms` (median, wanted: < 2), `speedup` over the direct loop (wanted: >= 10),
`speedup_arrays`, and the cost by nodes visited (`base_us` + `visited_us` per node, `fit_r2`).
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.accept.lantern import Lantern
from underpaint.algos.chance import At, Chance, Role, sampling
from underpaint.algos.tree import DraftTree, Verdict

SHARES = (4, 3, 2, 1)
Decide = Callable[[DraftTree, np.ndarray, Chance], Verdict]


class Case(NamedTuple):
    tree: DraftTree
    probs: np.ndarray
    image: int


def cases(nodes: int, vocab_size: int, count: int, seed: int) -> list[Case]:
    """Trees like EAGLE-2's: at each level the likeliest children of four nodes, by a drafter near the target."""
    generator = np.random.default_rng(seed)
    made = []
    for image in range(count):
        logits = generator.normal(scale=2.5, size=(nodes, vocab_size))
        probs = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        guess = logits + generator.normal(scale=0.5, size=logits.shape)
        tokens, parents = [0], [-1]
        level = {0: 10}
        while len(tokens) < nodes:
            first = len(tokens)
            for parent, wanted in level.items():
                wanted = min(wanted, nodes - len(tokens))
                tokens.extend(np.argsort(-guess[parent])[:wanted].tolist())
                parents.extend([parent] * wanted)
            level = dict(zip(range(first, len(tokens)), SHARES, strict=False))
        tree = DraftTree(
            np.array(tokens), np.array(parents), "top_k", np.empty((0, vocab_size)), np.full(nodes, -1, dtype=np.int64)
        )
        made.append(Case(tree, probs.astype(np.float32), image))
    return made


def random_table(vocab_size: int, k: int, seed: int) -> np.ndarray:
    """[V, k] int64: k distinct other codes for each."""
    steps = 1 + np.random.default_rng(seed).permutation(vocab_size - 1)[:k]
    return (np.arange(vocab_size)[:, None] + steps[None, :]) % vocab_size


def candidate_paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """The path to every leaf, siblings in order, as candidates are laid out in released code."""
    inner = set(tree.parents.tolist())
    return sorted(tree.path_to(node) for node in range(tree.size) if node not in inner)


def direct(tree: DraftTree, probs: np.ndarray, chance: Chance, near: list[list[int]], delta: float) -> Verdict:
    """Every candidate path, every neighbour and every dense row by a Python loop."""
    paths = candidate_paths(tree)
    kept: tuple[int, ...] = ()
    while True:
        node = kept[-1] if kept else 0
        row = [float(mass) for mass in probs[node]]
        seen: set[int] = set()
        went = False
        for path in paths:
            if len(path) <= len(kept) or path[: len(kept)] != kept or path[len(kept)] in seen:
                continue
            child = path[len(kept)]
            seen.add(child)
            token = int(tree.tokens[child])
            total = sum(row)
            row = [mass / total for mass in row]
            pooled, codes = 0.0, 0
            for code in near[token]:
                if pooled + row[code] > delta:
                    break
                pooled += row[code]
                codes += 1
            if chance.flip(row[token] + pooled, At(Role.ACCEPT, child)):
                kept, went = (*kept, child), True
                break
            for code in near[token][:codes]:
                row[code] = 0.0
            row[token] = 0.0
        if not went:
            role = Role.RESIDUAL if seen else Role.BONUS
            return Verdict(kept, chance.draw(np.array(row), At(role, node)))


def arrays(tree: DraftTree, probs: np.ndarray, chance: Chance, near: np.ndarray, delta: float) -> Verdict:
    """The same candidate loop, with a dense NumPy row at each step."""
    paths = candidate_paths(tree)
    kept: tuple[int, ...] = ()
    while True:
        node = kept[-1] if kept else 0
        row = probs[node].astype(np.float64)
        seen: set[int] = set()
        went = False
        for path in paths:
            if len(path) <= len(kept) or path[: len(kept)] != kept or path[len(kept)] in seen:
                continue
            child = path[len(kept)]
            seen.add(child)
            token = int(tree.tokens[child])
            row = row / row.sum()
            running = np.cumsum(row[near[token]])
            within = np.nonzero(running <= delta)[0]
            pooled = float(running[within[-1]]) if within.size else 0.0
            if chance.flip(float(row[token]) + pooled, At(Role.ACCEPT, child)):
                kept, went = (*kept, child), True
                break
            row[near[token][: within.size]] = 0.0
            row[token] = 0.0
        if not went:
            role = Role.RESIDUAL if seen else Role.BONUS
            return Verdict(kept, chance.draw(row, At(role, node)))


def timed(decide: Decide, case: Case, seed: int) -> tuple[float, Verdict]:
    """Milliseconds, the best of three calls with the same noise (made anew each time), and the verdict."""
    costs = []
    for _ in range(3):
        chance = sampling(seed, case.image)
        started = time.perf_counter()
        verdict = decide(case.tree, case.probs, chance)
        costs.append((time.perf_counter() - started) * 1e3)
    return min(costs), verdict


def visited(tree: DraftTree, verdict: Verdict) -> int:
    """Nodes that were tried."""
    below = tree.children()
    tried, node = 0, 0
    for kept in verdict.path:
        tried += below[node].index(kept) + 1
        node = kept
    return tried + len(below[node])


def main(arguments: list[str] | None = None) -> None:
    parser = options("decide", __doc__)
    parser.add_argument("--nodes", type=at_least(2), default=60)
    parser.add_argument("--vocab-size", type=at_least(64), default=16384)
    parser.add_argument("--neighbours", type=at_least(1), default=1000)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--rounds", type=at_least(1), default=60)
    parser.add_argument("--seed", type=at_least(0), default=0)
    settings = parse(parser, arguments)
    if settings.neighbours >= settings.vocab_size:
        parser.error(f"--neighbours: expected less than --vocab-size {settings.vocab_size}, got {settings.neighbours}")
    near = random_table(settings.vocab_size, settings.neighbours, settings.seed)
    with refusing(parser):
        rule = Lantern(near, delta=settings.delta)
    lists = near.tolist()
    ways: dict[str, Decide] = {
        "here": rule,
        "arrays": lambda tree, probs, chance: arrays(tree, probs, chance, near, settings.delta),
        "direct": lambda tree, probs, chance: direct(tree, probs, chance, lists, settings.delta),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    counts = []
    order = list(ways)
    for case in cases(settings.nodes, settings.vocab_size, settings.rounds, settings.seed):
        verdicts = []
        order.append(order.pop(0))  # nobody is always first
        for name in order:
            cost, verdict = timed(ways[name], case, settings.seed)
            spent[name].append(cost)
            verdicts.append(verdict)
        if len(set(verdicts)) != 1:
            raise SystemExit(f"the loops disagree: {verdicts}")
        counts.append(visited(case.tree, verdicts[0]))
    medians = {name: float(np.median(costs)) for name, costs in spent.items()}
    print(f"{settings.nodes} nodes, V = {settings.vocab_size}, k = {settings.neighbours}, delta = {settings.delta}")
    print(f"nodes visited: median {np.median(counts):.0f}, most {max(counts)}")
    for name, costs in spent.items():
        low, high = np.percentile(costs, [10, 90])
        print(f"{name:>8}: {medians[name]:9.3f} ms a verdict (10-90%: {low:.3f} to {high:.3f})")
    fitted = by_visited(rule, settings.vocab_size, settings.seed)
    print("by nodes visited: " + ("too few stars to fit" if fitted is None else fitted.shown()))
    finish(
        {
            "benchmark": "decide",
            "nodes": settings.nodes,
            "vocab_size": settings.vocab_size,
            "neighbours": settings.neighbours,
            "delta": settings.delta,
            "verdict_ms": round(medians["here"], 4),
            "speedup": round(medians["direct"] / medians["here"], 1),
            "speedup_arrays": round(medians["arrays"] / medians["here"], 2),
            "visited": float(np.median(counts)),
            "base_us": None if fitted is None else round(fitted.base_us, 2),
            "visited_us": None if fitted is None else round(fitted.visited_us, 3),
            "fit_r2": None if fitted is None else round(fitted.r2, 4),
        },
        settings.out,
    )


class Fit(NamedTuple):
    """A verdict's microseconds as a line over the nodes it visits."""

    base_us: float
    visited_us: float
    r2: float

    def shown(self) -> str:
        return f"{self.base_us:.1f} us + {self.visited_us:.2f} us each, R2 {self.r2:.3f}"


def by_visited(rule: Lantern, vocab_size: int, seed: int) -> Fit | None:
    """The least costs of stars of which all is tried; None where too few stars are ever refused whole."""
    generator = np.random.default_rng(seed)
    flat = np.full((1, vocab_size), 1.0 / vocab_size, dtype=np.float32)
    sizes = np.arange(1, 61, 4)
    least = []
    for count in sizes.tolist():
        tokens = np.array([0, *generator.permutation(vocab_size)[:count]])
        parents = np.array([-1, *[0] * count])
        tree = DraftTree(tokens, parents, "top_k", np.empty((0, vocab_size)), np.full(count + 1, -1, dtype=np.int64))
        probs = np.broadcast_to(flat, (count + 1, vocab_size))
        costs = []
        for cycle in range(300):
            started = time.perf_counter()
            verdict = rule(tree, probs, sampling(seed).cycle(cycle))
            cost = time.perf_counter() - started
            if not verdict.path:
                costs.append(cost * 1e6)
        least.append(min(costs, default=np.nan))
    here = np.isfinite(least)
    if here.sum() < 3:
        return None
    slope, base = np.polyfit(sizes[here], np.array(least)[here], 1)
    left = np.array(least)[here] - (slope * sizes[here] + base)
    return Fit(float(base), float(slope), float(1.0 - left.var() / np.var(np.array(least)[here])))


if __name__ == "__main__":
    main()
