"""The summary of compared passes."""

from typing import Any

from underpaint.runtime.evaluation.pass_comparison import summary


def test_a_comparison_that_failed_is_shown_before_one_with_flips() -> None:
    def compared(passed: bool, flips: int, relative: float) -> dict[str, Any]:
        same = {"model": "target", "form": "chain", "count": 8}
        return {**same, "passed": passed, "flips": flips, "relative": relative}

    failed, flipped, large = compared(False, 0, 0.3), compared(True, 1, 1e-5), compared(True, 0, 5e-5)
    assert summary([large, failed, flipped]) == [failed]
    assert summary([large, flipped]) == [flipped]
