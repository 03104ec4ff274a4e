"""Cases to judge a verifier on, and the smallest one that it fails."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from underpaint.algos.tree import Drawn
from underpaint.sim.certify.case import VerifierCase

if TYPE_CHECKING:
    from hypothesis import strategies as st

SPARSE, DENSE = (0, 1, 0, 2, 3, 5), (1, 2, 3, 5)
"""What a token's weight is chosen from: few and small, so that ties are common and files are readable. Tokens of
probability 0 show slips at the boundary; residuals of several tokens show slips in the last draw."""
MOST_NODES = {2: 3, 3: 3, 4: 2}
"""Drafted nodes by the size of the vocabulary: a pair of siblings with a child, and not too many trees to draw."""


def build_case(pick: Callable[[int, int], int], drawn: Drawn, chain: bool) -> VerifierCase:
    """A case out of whole numbers; pick(low, high) gives one of low..high, and small ones give small cases."""
    size = pick(2, 4)
    nodes = pick(1, MOST_NODES[size])
    choice = DENSE if pick(0, 1) else SPARSE
    parents = [-1]
    for node in range(1, nodes + 1):
        parents.append(node - 1 if chain else _with_room(parents, pick(0, node - 1), size))
    banned = (pick(0, size - 1),) if pick(0, 2) == 2 and size > 2 else ()
    count = pick(1, 3)
    siblings = max(parents.count(node) for node in range(nodes + 1))
    support = siblings if drawn == "without_replacement" else 1
    target = tuple(_weights(pick, choice, size, 1, banned) for _ in range(count))
    draft = tuple(_weights(pick, choice, size, support, ()) for _ in range(count))
    return VerifierCase(size, tuple(parents), drawn, target, draft, banned)


def _with_room(parents: list[int], wanted: int, size: int) -> int:
    """`wanted`, or the first node after it, round and round, that has fewer children than there are tokens."""
    nodes: list[int] = [*range(wanted, len(parents)), *range(wanted)]
    return next(node for node in nodes if parents.count(node) < size)


def _weights(
    pick: Callable[[int, int], int], choice: tuple[int, ...], size: int, support: int, banned: tuple[int, ...]
) -> tuple[int, ...]:
    weights = [choice[pick(0, len(choice) - 1)] for _ in range(size)]
    free = [token for token in range(size) if token not in banned]
    for token in free:
        if sum(weights[one] > 0 for one in free) < support:
            weights[token] = max(1, weights[token])
    return tuple(weights)


def seeded_cases(drawn: Drawn, chain: bool, count: int, seed: int = 0) -> list[VerifierCase]:
    """Distinct cases from a seed, each of two drafted nodes or more."""
    random = np.random.default_rng([seed, 7])
    found: dict[VerifierCase, None] = {}
    while len(found) < count:
        case = build_case(lambda low, high: int(random.integers(low, high + 1)), drawn, chain)
        if len(case.parents) > 2:
            found[case] = None
    return list(found)


def case_size(case: VerifierCase) -> tuple[int, ...]:
    """What makes a case small: few nodes, few tokens, few rows, small weights."""
    rows = (*case.target, *case.draft)
    return len(case.parents), case.vocab_size, len(case.target), len(case.banned), sum(map(sum, rows))


def shrink(
    fails: Callable[[VerifierCase], bool], drawn: Drawn, chain: bool, failing: VerifierCase, seconds: float
) -> tuple[VerifierCase, bool]:
    """The smallest failing case that Hypothesis finds within some seconds, and whether Hypothesis is installed."""
    try:
        from hypothesis import HealthCheck, Phase, find, settings
        from hypothesis.errors import HypothesisException
    except ImportError:
        return failing, False
    until = time.monotonic() + seconds
    best = failing

    def condition(case: VerifierCase) -> bool:
        nonlocal best
        if time.monotonic() > until or not fails(case):
            return False
        best = min(best, case, key=case_size)
        return True

    # Nothing new found in time, or a condition that changed its mind at the deadline: `best` holds what was found.
    with suppress(HypothesisException):
        find(
            _strategy(drawn, chain),
            condition,
            settings=settings(
                max_examples=400,
                deadline=None,
                database=None,
                derandomize=True,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            ),
        )
    return best, True


def _strategy(drawn: Drawn, chain: bool) -> "st.SearchStrategy[VerifierCase]":
    from hypothesis import strategies as st

    @st.composite
    def cases(draw: st.DrawFn) -> VerifierCase:
        return build_case(lambda low, high: int(draw(st.integers(low, high))), drawn, chain)

    return cases()
