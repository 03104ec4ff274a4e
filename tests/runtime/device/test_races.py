"""The race detector: planted races are seen, and what a barrier or a counter keeps apart is none."""

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.races import RaceDetector
from tests.runtime.device.test_attention import CASES
from tests.runtime.device.trees import by_device, cases
from underpaint.algos.accept import RULES
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.kernels import attention
from underpaint.runtime.device.launch import kernel, launch, tl


@pytest.fixture(autouse=True)
def no_races() -> None:
    """Races are planted here."""


@kernel
def shift_kernel(values, N: tl.constexpr, BARRIER: tl.constexpr) -> None:
    """Every value becomes the one to its right, which another thread may have overwritten."""
    place = tl.arange(0, N)
    right = tl.load(values + place + 1, place + 1 < N, other=0)
    if BARRIER:
        tl.debug_barrier()
    tl.store(values + place, right)


@kernel
def double_kernel(values, N: tl.constexpr) -> None:
    """In place: a thread reads and writes its own."""
    place = tl.arange(0, N)
    tl.store(values + place, 2 * tl.load(values + place))


@kernel
def meet_kernel(values, N: tl.constexpr) -> None:
    """All lanes store to one address."""
    tl.store(values + tl.zeros([N], tl.int32), tl.arange(0, N))


@kernel
def sum_kernel(values, counter, COUNTED: tl.constexpr) -> None:
    """Program 1 reads what program 0 stores."""
    if tl.program_id(0) == 0:
        tl.store(values, 1)
        if COUNTED:
            tl.atomic_add(counter, 1)
    else:
        if COUNTED:
            tl.atomic_add(counter, 1)
        tl.store(values + 1, tl.load(values) + 1)


@kernel
def mark_kernel(values, VALUE: tl.constexpr) -> None:
    """All programs store to one address, the same value or their own."""
    tl.store(values, VALUE if VALUE >= 0 else tl.program_id(0))


def races(function: Any, programs: int, warps: int, counter: bool = False, **constants: int) -> list[str]:
    detector = RaceDetector(most=1)
    values = torch.zeros(256, dtype=torch.int32)
    more = (torch.zeros(1, dtype=torch.int32),) if counter else ()
    with detector.watch():
        launch(function, (programs,), 0, values, *more, warps=warps, **constants)
    return detector.races


NEAR: Final = np.array([[code for code in range(5) if code != own] for own in range(5)])

SEEN: Final[dict[str, tuple[Callable[[], list[str]], str]]] = {
    "a neighbour's value": (lambda: races(shift_kernel, 1, 2, N=64, BARRIER=0), "different threads"),
    "fewer lanes than threads": (lambda: races(double_kernel, 1, 8, N=64), "fewer lanes than threads"),
    "two values at one address": (lambda: races(meet_kernel, 1, 2, N=64), "two values at one address"),
    "two programs": (lambda: races(sum_kernel, 2, 1, True, COUNTED=0), "two programs"),
    "two programs' stores": (lambda: races(mark_kernel, 2, 1, VALUE=-1), "two programs"),
}
NONE: Final[dict[str, Callable[[], list[str]]]] = {
    "a barrier": lambda: races(shift_kernel, 1, 2, N=64, BARRIER=1),
    "a thread's own values": lambda: races(double_kernel, 1, 2, N=64),
    "one warp of fewer lanes": lambda: races(double_kernel, 1, 1, N=16),
    "a counter": lambda: races(sum_kernel, 2, 1, True, COUNTED=1),
    "equal stores": lambda: races(mark_kernel, 2, 1, VALUE=7),
}


@pytest.mark.parametrize("race", SEEN)
def test_a_planted_race_is_seen(race: str) -> None:
    find, expected = SEEN[race]
    seen = find()
    assert len(seen) == 1
    assert expected in seen[0]
    assert seen[0].count("test_races.py:") >= 1


@pytest.mark.parametrize("order", NONE)
def test_what_is_kept_apart_is_no_race(order: str) -> None:
    assert NONE[order]() == []


@pytest.mark.parametrize(("rule", "drawn"), [("lantern", "top_k"), ("lantern", "without_replacement")])
def test_a_walk_without_its_barriers_races(rule: str, drawn: Drawn) -> None:
    detector, spec = RaceDetector(most=20), RULES[rule]

    @settings(max_examples=10)
    @given(data=st.data())
    def walk(data: st.DataObject) -> None:
        batch = [data.draw(cases(5, drawn, spec.needs_chain)) for _ in range(3)]
        by_device(spec.make(**({"neighbours": NEAR, "k": 2} if spec.codebook else {})), batch)

    with patch.object(RaceDetector, "_barrier", lambda self, right, builder: right(builder)), detector.watch():
        walk()
    assert any("from different threads" in race for race in detector.races)


@kernel
def is_the_last_number(arrivals, count):
    """Take the last program by its number for the last to finish, which holds in the interpreter alone."""
    return tl.program_id(2) == count - 1


@pytest.mark.parametrize("case", ["one query", "a tree"])
def test_a_program_that_does_not_count_arrivals_races(case: str) -> None:
    detector = RaceDetector(most=1)
    with patch.object(attention, "is_last", is_the_last_number), detector.watch():
        CASES[case].by_kernel(3)
    assert any("of two programs" in race for race in detector.races)
