"""A tree policy's entry in the registry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from underpaint.algos.batched.spec import BatchedPolicyOf, no_batched_policy
from underpaint.algos.plugin_guard import check_answers
from underpaint.algos.protocols import Policy
from underpaint.algos.registry import Registry, check_dataclass, check_reference
from underpaint.algos.tree import DRAWN, DraftTree, Drawn


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy's entry in the registry.

    make: a dataclass whose init fields are the settings and whose instances are policies.
    chain: its trees never have two children at one node.
    cost_aware: it chooses its trees by the engine's cost curve, the settings `verify_ms` and `draft_ms` (and, where it
        has them, `chain_ms` and `plain_ms`).
    greedy_variant: the name of the policy of likeliest tokens that stands for one of draws at temperature 0; None where
        it is the same.
    examples: settings that make trees small enough for the property tests; one of them may be empty.
    batched: its form over many images at once; a test holds the two together.
    device: its form on the GPU, as `RuleSpec.device`: a function (policy, Room) -> Plan, see `runtime.device.growth`.
    """

    name: str
    make: Callable[..., Policy]
    drawn: Drawn
    source: str
    deviations: str = ""
    chain: bool = False
    cost_aware: bool = False
    greedy_variant: str | None = None
    examples: tuple[Mapping[str, Any], ...] = ()
    batched: BatchedPolicyOf = no_batched_policy
    device: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where what a plug-in registers is no policy."""
        check_dataclass(f"policy '{self.name}'", self.make)
        check_answers(f"policy '{self.name}'", cast("type[Policy]", self.make), "grow", _not_a_tree)
        if self.drawn not in DRAWN:
            raise ValueError(f"policy '{self.name}': expected drawn of {', '.join(DRAWN)}, got {self.drawn!r}")
        check_reference(f"policy '{self.name}'", self.device)


def _not_a_tree(answer: object, *_: object) -> str | None:
    """What a policy should have answered; None where it is a draft tree."""
    return None if isinstance(answer, DraftTree) else "a DraftTree"


_HERE: Final = "underpaint.algos.draft"
POLICIES: Registry[PolicySpec] = Registry(
    "policy",
    "underpaint.policies",
    {
        "eagle2": f"{_HERE}.eagle2",
        "adt": f"{_HERE}.adt",
        "chain": f"{_HERE}.chain",
        "chain_top1": f"{_HERE}.chain",
        "delayed": f"{_HERE}.delayed",
        "eagle1": f"{_HERE}.eagle1",
        "static_top_k": f"{_HERE}.eagle1",
        "opt": f"{_HERE}.opt",
        "sequoia": f"{_HERE}.sequoia",
        "sequoia_top_k": f"{_HERE}.sequoia",
        "roofline": f"{_HERE}.roofline",
        "scheduled": f"{_HERE}.scheduled",
    },
)
"""A policy is one line here, and one module that registers its `PolicySpec`, imported when the name is asked for."""


def policy_spec_of(policy: Policy) -> PolicySpec | None:
    """The registered spec that made `policy`; None for a policy that no spec makes."""
    return next((spec for spec in POLICIES.loaded() if spec.make is type(policy)), None)
