"""What exactness means, as assertions."""

from functools import lru_cache

import numpy as np

from underpaint.algos.enumeration import (
    TokenDistribution,
    enumerate_decoding,
    target_distribution,
    tokens_distribution,
)
from underpaint.algos.protocols import Grid, Policy, Rule
from underpaint.algos.step import Drafter, Target
from underpaint.algos.tree import Verdict, root_only
from underpaint.sim.synthetic.models import PrefixDistribution, SyntheticTarget

TOLERANCE = 1e-12


def whole_images(distribution: PrefixDistribution, grid: Grid) -> TokenDistribution:
    """`target_distribution` of a synthetic target by its definition, the product along the image.

    It is kept where the distribution has a hash.
    """
    try:
        hash(distribution)
    except TypeError:
        return _products(distribution, grid)
    return dict(_kept_products(distribution, grid))


def _products(distribution: PrefixDistribution, grid: Grid) -> TokenDistribution:
    masses: TokenDistribution = {(): 1.0}
    for _ in range(grid.cells):
        longer: TokenDistribution = {}
        for prefix, mass in masses.items():
            row = distribution(prefix)
            shares = row / row.sum()
            longer.update({(*prefix, token): mass * float(shares[token]) for token in np.flatnonzero(row).tolist()})
        masses = longer
    return masses


_kept_products = lru_cache(maxsize=256)(_products)


def images_of(target: Target) -> TokenDistribution:
    """The target's distribution of whole images."""
    if type(target) is SyntheticTarget:
        return whole_images(target.distribution, target.grid)
    return target_distribution(target)


def largest_gap(
    target: Target, drafter: Drafter, policy: Policy, rule: Rule, max_nodes: int = 8, cycle_count: int | None = None
) -> float:
    """The largest difference between the probabilities that decoding and the target give to an image."""
    whole = images_of(target)
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
