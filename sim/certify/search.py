"""Generate test cases for a verifier, and shrink the ones that it fails."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from underpaint.algos.tree import Drawn
from underpaint.sim.certify.case import VerifierCase

Item = TypeVar("Item")
SPARSE, DENSE = (0, 1, 0, 2, 3, 5), (1, 2, 3, 5)
"""Possible weights of a token: few and small, so that ties are common and files are readable. Zeros reveal mistakes at
the boundary; dense weights leave residuals of several tokens, which reveal mistakes in the last draw."""
MOST_NODES = {2: 3, 3: 3, 4: 2}
"""Most drafted nodes by vocabulary size: enough for two siblings with a child, without too many possible trees."""


def build_case(pick: Callable[[int, int], int], drawn: Drawn, chain: bool, cycles: int = 1) -> VerifierCase:
    """Build a case from integers: pick(low, high) returns one in low..high, and small ones give small cases. Several
    cycles multiply the possible outcomes, so they get few tokens and at most one drafted node or two siblings.
    """
    size = pick(2, 4 if cycles == 1 else 3 if cycles == 2 else 2)
    nodes = pick(1, MOST_NODES[size] if cycles == 1 else 1 if chain else 2)
    choice = DENSE if pick(0, 1) else SPARSE
    parents = [-1]
    for node in range(1, nodes + 1):
        parents.append(node - 1 if chain else 0 if cycles > 1 else _with_room(parents, pick(0, node - 1), size))
    banned = (pick(0, size - 1),) if pick(0, 2) == 2 and size > 2 else ()
    count = pick(1, 3)
    siblings = max(parents.count(node) for node in range(nodes + 1))
    support = siblings if drawn == "without_replacement" else 1
    target = tuple(_weights(pick, choice, size, 1, banned) for _ in range(count))
    draft = tuple(_weights(pick, choice, size, support, ()) for _ in range(count))
    return VerifierCase(size, tuple(parents), drawn, target, draft, banned)


def _with_room(parents: list[int], parent: int, size: int) -> int:
    """`parent`, or the next node, cyclically, with fewer children than there are tokens."""
    nodes: list[int] = [*range(parent, len(parents)), *range(parent)]
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


def cases_to_judge(drawn: Drawn, chain: bool, count: int, seed: int = 0, cycles: int = 1) -> list[VerifierCase]:
    """The fixed cases, then random ones, `count` in total. With one cycle, each has at least two drafted nodes."""
    fixed = (fixed_cases(drawn, chain) if cycles == 1 else repeated_cases(drawn, chain, cycles))[:count]
    return [*fixed, *seeded_cases(drawn, chain, count - len(fixed), seed, cycles)]


def seeded_cases(drawn: Drawn, chain: bool, count: int, seed: int = 0, cycles: int = 1) -> list[VerifierCase]:
    """Distinct random cases. With one cycle, each has at least two drafted nodes."""
    random = np.random.default_rng([seed, 7])
    cases: dict[VerifierCase, None] = {}
    while len(cases) < count:
        case = build_case(lambda low, high: int(random.integers(low, high + 1)), drawn, chain, cycles)
        if len(case.parents) > 2 or cycles > 1:
            cases[case] = None
    return list(cases)


def case_size(case: VerifierCase) -> tuple[int, ...]:
    """The size of a case, for comparisons: nodes, tokens, target rows, banned tokens, and the sum of the weights."""
    rows = (*case.target, *case.draft)
    return len(case.parents), case.vocab_size, len(case.target), len(case.banned), sum(map(sum, rows))


def shrink(fails: Callable[[VerifierCase], bool], failing: VerifierCase, seconds: float) -> tuple[VerifierCase, bool]:
    """Shrink a failing case: remove one part at a time as long as it still fails.

    Args:
        fails: Returns whether a case fails in the same way.
        failing: A failing case.
        seconds: Time limit.

    Returns:
        The smallest case found, and whether no part of it can be removed.
    """
    until = time.monotonic() + seconds
    smaller = _smaller(failing)
    while time.monotonic() < until:
        case = next(smaller, None)
        if case is None:
            return failing, True
        if fails(case):
            failing, smaller = case, _smaller(case)
    return failing, False


def _smaller(case: VerifierCase) -> Iterator[VerifierCase]:
    """The valid cases with one part removed, the largest parts first."""
    for changed in _without_parts(case):
        with suppress(ValueError):  # the rest is no valid case: a row of zeros, or more siblings than tokens
            yield replace(case, **changed)


def _without_parts(case: VerifierCase) -> Iterator[dict[str, Any]]:
    for node in range(1, len(case.parents)):
        if node not in case.parents and len(case.parents) > 2:  # a verifier may need a draft
            rest = (*case.parents[:node], *case.parents[node + 1 :])
            yield {"parents": tuple(above - (above > node) for above in rest)}
    if case.banned:
        yield {"banned": ()}
    for token in reversed(range(case.vocab_size)):
        rows = {name: tuple(_cut(row, token) for row in getattr(case, name)) for name in ("target", "draft")}
        banned = tuple(one - (one > token) for one in case.banned if one != token)
        yield {"vocab_size": case.vocab_size - 1, "banned": banned, **rows}
    for name in ("target", "draft"):
        table: tuple[tuple[int, ...], ...] = getattr(case, name)
        if len(table) > 1:
            for place in range(len(table)):
                yield {name: _cut(table, place)}
        for place, row in enumerate(table):
            for token, weight in enumerate(row):
                for less in dict.fromkeys((0, 1, weight // 2, weight - 1)):
                    if less < weight:
                        changed = (*row[:token], less, *row[token + 1 :])
                        yield {name: (*table[:place], changed, *table[place + 1 :])}


def _cut(items: tuple[Item, ...], place: int) -> tuple[Item, ...]:
    return (*items[:place], *items[place + 1 :])


def fixed_cases(drawn: Drawn, chain: bool) -> list[VerifierCase]:
    """Fixed cases that reveal every known kind of mistake, independent of the seed.

    They include two and three siblings, a sibling with a child, and chains; residuals of two tokens, one of them below
    the draft's share; target or draft probabilities of 0; ties; rows that depend on earlier tokens; a banned token.
    """
    target, draft = (3, 2, 5, 1), (5, 1, 3, 3)
    # Three rows: with two, the row after two tokens equals the row after the first of them.
    targets, drafts = (target, (1, 5, 2, 3), (2, 1, 4, 4)), (draft, (2, 1, 1, 4))
    zeros, drawn_zeros = ((0, 3, 2, 5), (4, 0, 1, 2), (1, 2, 0, 3)), ((3, 0, 2, 1), (1, 3, 0, 2))
    pair, deep, line = (-1, 0, 0), (-1, 0, 0, 1), (-1, 0, 1)
    parts: list[tuple[Any, ...]] = [
        (4, pair, (target,), (draft,)),
        (4, pair, zeros, drawn_zeros),
        (4, pair, ((2, 2, 1, 1),), ((1, 1, 2, 2),)),
        (4, pair, targets, drafts, (2,)),
        (3, deep, ((3, 2, 5), (1, 5, 2), (4, 1, 1)), ((5, 1, 3), (2, 1, 4))),
        (3, deep, ((0, 3, 5), (4, 0, 1), (1, 2, 2)), ((2, 3, 1), (1, 1, 2))),
        (4, (-1, 0, 0, 0), (target,), (draft,)),
        (4, line, targets, drafts),
        (4, line, zeros, drawn_zeros),
        (4, line, targets, drafts, (2,)),
        (2, line, ((1, 3), (3, 1), (1, 1)), ((3, 1), (1, 2))),
    ]
    return [VerifierCase(size, parents, drawn, *rest) for size, parents, *rest in parts if not chain or parents == line]


def precision_case(drawn: Drawn) -> VerifierCase:
    """A small case whose probabilities and ratios are no short binary numbers, so its thresholds show the precision."""
    return VerifierCase(2, (-1, 0), drawn, ((3, 8), (9, 4)), ((7, 5), (2, 9)))


def repeated_cases(drawn: Drawn, chain: bool, cycles: int) -> list[VerifierCase]:
    """Fixed cases for several consecutive cycles: rows that depend on earlier tokens, zeros, and siblings."""
    two = [
        VerifierCase(2, (-1, 0), drawn, ((1, 3), (3, 1), (1, 1)), ((3, 1), (1, 2))),
        VerifierCase(2, (-1, 0), drawn, ((0, 1), (2, 3)), ((1, 1), (1, 0))),
    ]
    if cycles == 2:
        two.append(VerifierCase(3, (-1, 0), drawn, ((3, 2, 5), (1, 5, 2)), ((5, 1, 3), (2, 1, 4))))
    if not chain:
        two.append(VerifierCase(2, (-1, 0, 0), drawn, ((1, 3), (3, 1), (1, 1)), ((3, 1), (1, 2))))
    return two
