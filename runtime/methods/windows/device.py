"""The device form of Jacobi windows: every draft tree is the window, and no drafter runs."""

from dataclasses import dataclass, field
from typing import cast

from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.runtime.device.cycle import DraftForm
from underpaint.runtime.device.growth import Plan
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.windows.growth import window_plan
from underpaint.runtime.methods.windows.method import JacobiMethod


@dataclass(frozen=True, slots=True)
class WindowForm(DraftForm):
    """A Jacobi window and the rule that verifies it."""

    window: JacobiWindow = field(kw_only=True)

    def plan(self, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
        return window_plan(self.window, self.rule, grid, vocab_size, max_nodes)


def form(method: DecodingMethod, sampling: SamplingParams, grid: Grid) -> WindowForm:
    """Return the device form of a Jacobi window method."""
    one = cast(JacobiMethod, method)
    return WindowForm(one.rule, one.config.target_sampling(sampling), window=one.config.window)
