"""What exactness means, as assertions."""

import numpy as np

from underpaint.algos.enumeration import enumerate_decoding, target_distribution, tokens_distribution
from underpaint.algos.protocols import Policy, Rule
from underpaint.algos.step import Drafter, Target
from underpaint.algos.tree import Verdict, root_only

TOLERANCE = 1e-12


def largest_gap(
    target: Target, drafter: Drafter, policy: Policy, rule: Rule, max_nodes: int = 8, cycle_count: int | None = None
) -> float:
    """The largest difference between the probabilities that decoding and the target give to an image."""
    whole = target_distribution(target)
    got = tokens_distribution(enumerate_decoding(target, drafter, policy, rule, max_nodes, cycle_count), whole)
    return max(abs(got.get(image, 0.0) - whole.get(image, 0.0)) for image in {**got, **whole})


def assert_exact(
    target: Target, drafter: Drafter, policy: Policy, rule: Rule, max_nodes: int = 8, cycle_count: int | None = None
) -> None:
    gap = largest_gap(target, drafter, policy, rule, max_nodes, cycle_count)
    assert gap <= TOLERANCE, f"an image's probability is off by {gap:.3g}"


def argmax_decoding(target: Target) -> tuple[int, ...]:
    """The image at temperature 0, one cell at a time."""
    tokens = [int(np.argmax(target.begin().probs[0]))]
    for _ in range(1, target.grid.cells):
        tree = root_only(tokens[-1], target.vocab_size)
        tokens.append(int(np.argmax(target.score(tree).probs[0])))
        target.commit(tree, Verdict((), tokens[-1]))
    return tuple(tokens)


def assert_argmax(
    target: Target, drafter: Drafter, policy: Policy, rule: Rule, max_nodes: int = 8, cycle_count: int | None = None
) -> None:
    best = argmax_decoding(target)
    for trace in enumerate_decoding(target, drafter, policy, rule, max_nodes, cycle_count):
        assert trace.tokens == best[: len(trace.tokens)]
