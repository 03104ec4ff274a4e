"""What growing an EAGLE-2 tree costs on the host, the drafter's passes left out.

Run: python -m benchmarks.grow [--vocab-size 16384] [--depth 5] [--top-k 10] [--total-tokens 59]

The direct implementation goes node by node, as one would write it first: a Python object a node, the reranking over a
list of them, and each distribution either sorted whole or partitioned before its best are sorted. All get the same
recorded distributions and must return the same tree. Times are CPU time of this process, the median of the rounds, as
the machine may be shared. The last line is JSON.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.report import at_least, finish, options, parse
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.eagle2 import grow_eagle2
from underpaint.algos.draft.tree_builder import point_tree
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.tree import DraftTree

WIDEST = 16
"""Nodes that a policy expands at once by its defaults, at most."""


class Recorded:
    """A drafter whose passes cost nothing: its distributions lie ready, one block a pass."""

    def __init__(self, vocab_size: int, frontier: int, passes: int, seed: int) -> None:
        logits = 1.5 * np.random.default_rng(seed).standard_normal((passes, frontier, vocab_size))
        masses = np.exp(logits)
        self.distributions = (masses / masses.sum(axis=-1, keepdims=True)).astype(np.float32)
        self.turn = 0

    @property
    def vocab_size(self) -> int:
        return int(self.distributions.shape[-1])

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        distributions: FloatArray = self.distributions[self.turn, : len(tokens)]
        self.turn += 1
        return distributions


@dataclass(eq=False)
class Node:
    token: int
    parent: "Node | None"
    score: float
    drafter_id: int = -1


def by_sorting(distribution: FloatArray, top_k: int) -> IntArray:
    return np.argsort(-distribution, kind="stable")[:top_k]


def by_partition(distribution: FloatArray, top_k: int) -> IntArray:
    best = np.sort(np.argpartition(distribution, distribution.size - top_k)[-top_k:])
    return best[np.argsort(-distribution[best], kind="stable")]


def grow_directly(
    drafter: Recorded, depth: int, top_k: int, total_tokens: int, likeliest: Callable[[FloatArray, int], IntArray]
) -> DraftTree:
    """EAGLE-2 node by node."""
    root = 0
    top = Node(root, None, 1.0)
    level, found, held = [top], [], 0
    for _ in range(depth):
        level = sorted(level, key=lambda node: -node.score)[:top_k]
        ids = [node.parent.drafter_id if node.parent else -1 for node in level]
        distributions = drafter.expand(np.array([node.token for node in level]), np.array(ids))
        deeper = []
        for node, distribution in zip(level, distributions, strict=True):
            node.drafter_id, held = held, held + 1
            for token in likeliest(distribution, top_k).tolist():
                deeper.append(Node(token, node, node.score * float(distribution[token])))
        found.extend(deeper)
        level = deeper
    chosen = sorted(range(len(found)), key=lambda place: -found[place].score)[:total_tokens]
    kept = [top, *(found[place] for place in sorted(chosen))]
    tokens = [node.token for node in kept]
    parents = [kept.index(node.parent) if node.parent else -1 for node in kept]
    return point_tree(np.array(tokens), np.array(parents), drafter.vocab_size)


def cpu_us(work: Callable[[], object], rounds: int) -> float:
    work()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) * 1e6)
    return statistics.median(times)


def main(arguments: list[str] | None = None) -> None:
    parser = options("grow", __doc__)
    parser.add_argument("--vocab-size", type=at_least(64), default=16384)
    parser.add_argument("--depth", type=at_least(1), default=5)
    parser.add_argument("--top-k", type=at_least(1), default=10)
    parser.add_argument("--total-tokens", type=at_least(1), default=59)
    parser.add_argument("--rounds", type=at_least(1), default=100)
    parser.add_argument("--seed", type=at_least(0), default=0)
    args = parse(parser, arguments)
    if args.top_k > args.vocab_size:
        parser.error(f"--top-k: expected at most the {args.vocab_size} codes of --vocab-size, got {args.top_k}")
    frontier = max(args.top_k, args.total_tokens, WIDEST)
    drafter = Recorded(args.vocab_size, frontier, max(args.depth, 10), args.seed)
    budget = Budget(args.depth, args.total_tokens + 1)

    def ours() -> DraftTree:
        drafter.turn = 0
        return grow_eagle2(drafter, 0, budget, args.depth, args.top_k, args.total_tokens)

    def direct(likeliest: Callable[[FloatArray, int], IntArray]) -> DraftTree:
        drafter.turn = 0
        return grow_directly(drafter, args.depth, args.top_k, args.total_tokens, likeliest)

    one = ours()
    for likeliest in (by_sorting, by_partition):
        other = direct(likeliest)
        if one.tokens.tolist() != other.tokens.tolist() or one.parents.tolist() != other.parents.tolist():
            raise SystemExit("the implementations grew different trees; nothing to compare")
    ours_us = cpu_us(ours, args.rounds)
    few = max(5, args.rounds // 5)
    sorting_us = cpu_us(lambda: direct(by_sorting), few)
    partition_us = cpu_us(lambda: direct(by_partition), few)
    policies = {}
    for spec in POLICIES:
        policy = spec.make()
        policy.begin(Grid(64, 64))

        def grown() -> DraftTree:
            drafter.turn = 0
            return policy.grow(drafter, 0, budget, sampling(args.seed))  # noqa: B023

        policies[spec.name] = round(cpu_us(grown, args.rounds), 1)
        print(f"{spec.name:14s} {policies[spec.name]:9.1f} us a tree, {grown().size - 1} drafted nodes")
    print(f"EAGLE-2 {ours_us:.0f} us; node by node, sorted {sorting_us:.0f} us, partitioned {partition_us:.0f} us")
    report = {
        "benchmark": "grow",
        **{name: getattr(args, name) for name in ("vocab_size", "depth", "top_k", "total_tokens")},
        "nodes": one.size,
        "grow_us": round(ours_us, 1),
        "direct_sorted_us": round(sorting_us, 1),
        "direct_partitioned_us": round(partition_us, 1),
        "ratio_sorted": round(sorting_us / ours_us, 2),
        "ratio_partitioned": round(partition_us / ours_us, 2),
        "policies_us": policies,
    }
    finish(report, args.out)


if __name__ == "__main__":
    main()
