"""Checks whether a rule and a policy can be combined."""

from underpaint.algos.accept.spec import RuleSpec
from underpaint.algos.draft.spec import POLICIES, PolicySpec


def check_fits(rule: RuleSpec, policy: PolicySpec) -> None:
    """Raise ValueError, with the reason, unless `rule` supports the trees of `policy`."""
    rule.check_covers(policy.drawn)
    if rule.needs_chain and not policy.chain:
        chains = ", ".join(spec.name for spec in POLICIES if spec.chain)
        raise ValueError(
            f"rule '{rule.name}' covers chains, policy '{policy.name}' grows trees; choose a chain policy ({chains}) "
            "or a rule for trees"
        )


def fits(rule: RuleSpec, policy: PolicySpec) -> bool:
    """Return whether `check_fits` accepts the pair of rule and policy."""
    try:
        check_fits(rule, policy)
    except ValueError:
        return False
    return True
