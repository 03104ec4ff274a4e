"""The settings of a Jacobi window beside a tree policy, and the rule that judges it."""

from dataclasses import dataclass
from typing import NamedTuple

from underpaint.algos.accept import RULES, Rule
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill, drawn_for
from underpaint.algos.spatial.lookup import Lookup

LOSSLESS_IN_WINDOWS = "chain"


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Those of `algos.spatial.jacobi_window.JacobiWindow` and `algos.spatial.lookup.Lookup`, for a chain of drafts."""

    length: int = 14
    coupling: Coupling = "maximal"
    refill: Refill = "lookup"
    passes: bool = True
    beside: float = 0.85
    last_row: bool = True

    def window(self) -> JacobiWindow:
        """ValueError where a setting is none."""
        lookup = Lookup(self.passes, self.beside, self.last_row)
        return JacobiWindow(self.length, self.coupling, self.refill, lookup=lookup)


class WindowPlan(NamedTuple):
    """A window beside a tree policy.

    rule: what judges it. likeliest: its drafts are the likeliest tokens, as the rule decides by these.
    """

    window: JacobiWindow
    rule: Rule
    likeliest: bool


def window_plan(settings: WindowSettings, name: str, rule: Rule) -> WindowPlan:
    """The window beside trees that `rule`, made by the registry's `name`, judges.

    The same rule judges the window where it covers chains of drawn tokens, else speculative sampling does.
    """
    spec, window = RULES[name], settings.window()
    if spec.greedy and "iid" in spec.drawn:
        return WindowPlan(window, rule, likeliest=True)
    try:
        drawn_for(spec, window.coupling)
    except ValueError:
        return WindowPlan(window, RULES[LOSSLESS_IN_WINDOWS].make(), likeliest=False)
    return WindowPlan(window, rule, likeliest=False)
