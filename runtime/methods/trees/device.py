"""The device form of the tree methods: a policy that grows draft trees, and the rule that verifies them."""

from dataclasses import dataclass
from typing import cast

from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.protocols import Grid, Policy, Rule
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import WindowPlan
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.chosen_growth import chosen_plan, judged_beside
from underpaint.runtime.device.cycle import DraftForm
from underpaint.runtime.device.growth import Plan, plan_of
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.trees.method import TreeMethod


@dataclass(frozen=True, slots=True)
class TreeForm(DraftForm):
    """The device form of a policy and a rule.

    Attributes:
        policy: The policy; None is plain autoregression.
        beside: The window and rules for `roofline`; None without a window.
    """

    policy: Policy | None = None
    beside: WindowPlan | None = None

    @property
    def drafts(self) -> bool:
        return self.policy is not None

    @property
    def engine_gap(self) -> str | None:
        return None if self.beside is None else "roofline makes passes of any size, and engines have fixed ones"

    def judged(self, drawn: Drawn, children: int) -> tuple[tuple[Rule, Drawn, int], ...]:
        if self.beside is None or not isinstance(self.policy, Roofline):
            return DraftForm.judged(self, drawn, children)
        return judged_beside(self.rule, self.policy, self.beside, children)

    def plan(self, grid: Grid, vocab_size: int, max_nodes: int) -> Plan | None:
        if self.beside is not None:
            if not isinstance(self.policy, Roofline):
                raise ValueError("device: windows beside trees have a form with roofline alone")
            return chosen_plan(self.policy, self.beside, grid, vocab_size, max_nodes)
        return None if self.policy is None else plan_of(self.policy, grid, vocab_size, max_nodes)


def form(method: DecodingMethod, sampling: SamplingParams, grid: Grid) -> TreeForm:
    """Return the device form of a tree method."""
    one = cast(TreeMethod, method)
    policy = one.policy if one.drafts else None
    return TreeForm(one.rule, one.config.target_sampling(sampling), policy=policy, beside=one.window)
