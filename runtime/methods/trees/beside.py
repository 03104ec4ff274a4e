"""Drafts other than a tree policy's own trees: Jacobi windows and drawn siblings, and their acceptance rules."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from underpaint.algos.accept import RULES
from underpaint.algos.protocols import Rule
from underpaint.algos.spatial.jacobi import WindowPlan
from underpaint.algos.spatial.jacobi_window import JacobiWindow, drawn_for
from underpaint.algos.tree import Drawn
from underpaint.runtime.methods.settings import SettingValue, settings_of

LOSSLESS_IN_WINDOWS: Final = "chain"
WINDOW: Final = JacobiWindow(1024, "maximal", "lookup", passes=True, beside=0.85, last_row=True)
"""The default window used together with trees: longer than any pass, so that the policy limits it."""
_NOT_BESIDE: Final = ("candidates", "levels", "confidence")
"""Settings of `JacobiWindow` that do not apply together with trees, as the window is then an exact chain."""


def window_settings() -> dict[str, Any]:
    """Return the types of the settings of a window used with trees; with length None the policy chooses the length."""
    return {**settings_of(JacobiWindow, _NOT_BESIDE), "length": int | None}


def window_record(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Return all settings of a window used together with trees, as JSON values."""
    usual = {name: value for name, value in asdict(WINDOW).items() if name not in _NOT_BESIDE}
    return {**usual, "length": None, **settings}


@dataclass(frozen=True, slots=True)
class DrawnSettings:
    """The lossless rules for drawn siblings, for a policy whose own trees contain the likeliest tokens; see `RULES`.

    Attributes:
        chain: Name of the rule for independent draws: chains, and trees whose siblings are drawn with replacement.
        tree: Name of the rule for trees drawn without replacement.
    """

    chain: str = "block"
    tree: str = "without_replacement"

    def rules(self, with_replacement: bool = False) -> dict[Drawn, Rule]:
        """Return the rule for each way to draw siblings.

        Args:
            with_replacement: Whether siblings in trees are drawn with replacement.

        Raises:
            ValueError: A rule is unknown, not lossless or unfit.
        """
        rules: dict[Drawn, Rule] = {}
        settings: tuple[tuple[str, Drawn, str], ...] = (
            ("chain", "iid", self.chain),
            ("tree", "without_replacement", self.tree),
        )
        for setting, drawn, name in settings:
            spec = RULES[name]
            spec.check_covers(drawn)
            if not spec.is_lossless({}):
                raise ValueError(f"drawn.{setting}: expected a lossless rule, got '{name}', which is {spec.promise}")
            if spec.needs_chain and (setting == "tree" or with_replacement):
                remedy = "; siblings drawn with replacement take 'multi_round'" if setting == "chain" else ""
                raise ValueError(
                    f"drawn.{setting}: expected a rule for trees, got '{name}', which covers chains{remedy}"
                )
            rules[drawn] = spec.make()
        return rules


def window_plan(settings: Mapping[str, SettingValue], name: str, rule: Rule) -> WindowPlan:
    """Return the Jacobi window to use together with a policy's trees, and the rule that verifies it.

    The rule of the trees also verifies the window if it covers chains of drawn tokens, else speculative sampling does.

    Args:
        settings: Settings of `JacobiWindow` that differ from `WINDOW`.
        name: The name of the trees' rule in the registry.
        rule: The rule of the policy's own trees.

    Raises:
        ValueError: A setting is out of range.
    """
    changes: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    spec, window = RULES[name], replace(WINDOW, **changes)
    if not window.is_exact:
        raise ValueError("window.coupling: expected independent or maximal beside trees, got 'confidence'")
    if spec.greedy and "iid" in spec.drawn:
        return WindowPlan(window, rule, likeliest=True)
    try:
        drawn_for(spec, window.coupling)
    except ValueError:
        return WindowPlan(window, RULES[LOSSLESS_IN_WINDOWS].make(), likeliest=False)
    return WindowPlan(window, rule, likeliest=False)
