"""Answers of plug-ins are checked under any decorator, and calls within calls keep their time limits."""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from underpaint.algos.plugin_guard import PluginError, answers_within, check_answers


def not_six(answer: object, *_: object) -> str | None:
    return None if answer == 6 else "6"


def logged(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of a plug-in's own."""

    @wraps(method)
    def logging(*args: Any) -> Any:
        return method(*args)

    return logging


def test_a_method_under_a_decorator_of_its_own_is_checked_once() -> None:
    class Mine:
        @logged
        def ask(self, answer: int) -> int:
            return answer

    check_answers("part 'mine'", Mine, "ask", not_six)
    checked = Mine.ask
    check_answers("part 'mine'", Mine, "ask", not_six)
    assert Mine.ask is checked
    assert Mine().ask(6) == 6
    with pytest.raises(PluginError, match="part 'mine': ask must return 6, got 5"):
        Mine().ask(5)


def test_a_call_within_a_call_leaves_it_its_time_limit() -> None:
    class Inner:
        def ask(self) -> int:
            return 6

    class Outer:
        def ask(self, seconds: float) -> int:
            answer = Inner().ask()
            time.sleep(seconds)
            return answer

    for name, make in (("inner", Inner), ("outer", Outer)):
        check_answers(f"part '{name}'", make, "ask", not_six)
    with answers_within(0.3):
        assert Outer().ask(0.0) == 6
        started = time.perf_counter()
        with pytest.raises(PluginError, match=r"part 'outer': ask gave no answer within 0.3 s"):
            Outer().ask(30.0)
    assert time.perf_counter() - started < 20.0
    time.sleep(0.4)  # no limit is left behind
