"""The device form of method `row-window`: the shipped form of Jacobi windows, at the length of a row."""

from typing import Any

from underpaint.algos.accept import RULES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.windows.device import WindowForm


def row_form(method: DecodingMethod, sampling: SamplingParams, grid: Grid) -> WindowForm:
    """The rule, the target's sampling, and the window that this grid gives."""
    config: Any = method.config
    return WindowForm(RULES["chain"].make(), config.target_sampling(sampling), window=config.window(grid))
