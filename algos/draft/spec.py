"""The registry of tree policies, and the entry (`PolicySpec`) of a policy."""

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
    """The registry entry of a tree policy.

    Attributes:
        make: A dataclass whose init fields are the settings and whose instances are policies.
        chain: In its trees, no node has two children.
        cost_aware: It chooses its trees by the engine's cost curve, the settings `verify_ms` and `draft_ms` (and
            `chain_ms` and `plain_ms`, if it has them).
        greedy_variant: For a policy that samples, the name of the policy of likeliest tokens to use instead at
            temperature 0; None if the policy itself is used.
        examples: Settings with trees small enough for the property tests; one of them may be empty.
        batched: The policy's form for many images at once; a test compares the two.
        device: Its form on the GPU, like `RuleSpec.device`: a function (policy, Room) -> Plan, see
            `runtime.device.growth`.
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
        """Raise ValueError if a plug-in registers an invalid policy."""
        check_dataclass(f"policy '{self.name}'", self.make)
        check_answers(f"policy '{self.name}'", cast("type[Policy]", self.make), "grow", _not_a_tree)
        if self.drawn not in DRAWN:
            raise ValueError(f"policy '{self.name}': expected drawn of {', '.join(DRAWN)}, got {self.drawn!r}")
        check_reference(f"policy '{self.name}'", self.device)


def _not_a_tree(answer: object, *_: object) -> str | None:
    """Return what the policy should have returned; None if `answer` is a draft tree."""
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
"""To add a policy, add one line here and a module that registers its `PolicySpec`; it is imported on first use."""


def policy_spec_of(policy: Policy) -> PolicySpec | None:
    """Return the registered spec that made `policy`; None if no registered spec did."""
    return next((spec for spec in POLICIES.loaded() if spec.make is type(policy)), None)
