"""What a tree policy may draft besides its own trees: Jacobi windows and drawn siblings, and the rules for those."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from underpaint.algos.accept import RULES
from underpaint.algos.protocols import Rule
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill, drawn_for
from underpaint.algos.spatial.lookup import Lookup
from underpaint.algos.tree import Drawn

LOSSLESS_IN_WINDOWS: Final = "chain"
ANY_LENGTH: Final = 1024
"""Of a window that the policy bounds."""


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Those of `algos.spatial.jacobi_window.JacobiWindow` and `algos.spatial.lookup.Lookup`, for a chain of drafts.

    length: of the window at most; None: whatever the policy asks for and a target pass holds.
    """

    length: int | None = None
    coupling: Coupling = "maximal"
    refill: Refill = "lookup"
    passes: bool = True
    beside: float = 0.85
    last_row: bool = True

    def window(self) -> JacobiWindow:
        """ValueError where a setting is none."""
        lookup = Lookup(self.passes, self.beside)
        length = ANY_LENGTH if self.length is None else self.length
        return JacobiWindow(length, self.coupling, self.refill, lookup=lookup, last_row=self.last_row)


@dataclass(frozen=True, slots=True)
class DrawnSettings:
    """The lossless rules that judge drawn siblings of a policy whose own trees hold likeliest tokens.

    chain: of independent draws: chains, and trees whose siblings are drawn with replacement. tree: of trees drawn
    without replacement. See `RULES`.
    """

    chain: str = "block"
    tree: str = "without_replacement"

    def rules(self, with_replacement: bool = False) -> dict[Drawn, Rule]:
        """By how siblings were drawn. ValueError where a rule is none, is not lossless or does not cover them.

        with_replacement: whether trees are drawn so.
        """
        found: dict[Drawn, Rule] = {}
        wanted: tuple[tuple[str, Drawn, str], ...] = (
            ("chain", "iid", self.chain),
            ("tree", "without_replacement", self.tree),
        )
        for setting, drawn, name in wanted:
            spec = RULES[name]
            spec.check_covers(drawn)
            if not spec.is_lossless({}):
                raise ValueError(f"drawn.{setting}: expected a lossless rule, got '{name}', which is {spec.promise}")
            if spec.needs_chain and (setting == "tree" or with_replacement):
                remedy = "; siblings drawn with replacement take 'multi_round'" if setting == "chain" else ""
                raise ValueError(
                    f"drawn.{setting}: expected a rule for trees, got '{name}', which covers chains{remedy}"
                )
            found[drawn] = spec.make()
        return found


class WindowPlan(NamedTuple):
    """A window beside a tree policy.

    rule: what judges it. likeliest: its drafts are the likeliest tokens, as the rule decides by these. drawn_rules:
    what judges drawn siblings of the policy, by how they were drawn; empty where it is not to draw any.
    """

    window: JacobiWindow
    rule: Rule
    likeliest: bool
    drawn_rules: Mapping[Drawn, Rule] = MappingProxyType({})


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
