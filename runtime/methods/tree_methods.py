"""The methods of the tree family: a tree policy and an acceptance rule each, with the settings that were tuned."""

from collections.abc import Mapping
from typing import Final, TypeAlias

from underpaint.algos.accept import RULES
from underpaint.algos.accept.spec import at_temperature
from underpaint.runtime.methods.method_config import Method, no_settings
from underpaint.runtime.methods.settings import Shown
from underpaint.runtime.methods.tree_config import NO_POLICY, TreeRecipe

_LIKELIEST: Final = {"chain": "chain_top1", "eagle1": "static_top_k"}
"""At temperature 0: the policy of the likeliest tokens, in place of one that draws them."""

_TREE: Final[Mapping[str, Shown]] = {"depth": 5, "top_k": 2, "total_tokens": 6}
_DEEPER_TREE: Final[Mapping[str, Shown]] = {"depth": 6, "top_k": 2, "total_tokens": 8}
_CONTROL: Final[Mapping[str, Shown]] = {"depth": 3, "top_k": 2, "total_tokens": 6}
_ADAPTIVE: Final[Mapping[str, Shown]] = {
    "start_depth": 4,
    "max_depth": 8,
    "start_width": 1,
    "max_width": 1,
    "total_tokens": 12,
}
"""Width 1: on two cores every further branch costs more than it brings; one chain is drafted in a single call."""
_STATIC: Final[Mapping[str, Shown]] = {"widths": (2, 2, 1, 1, 1)}
_CHAIN: Final[Mapping[str, Shown]] = {"length": 5}
_NONE: Final = no_settings()

_Acceptance: TypeAlias = tuple[Mapping[str, Shown], Mapping[str, Shown]]
"""A rule's settings above temperature 0, and those of its counterpart at 0."""
_LANTERN: Final[_Acceptance] = ({"k": 14, "delta": 0.6, "residual": "standard"}, {"k": 10, "delta": 0.4})
_RELATIVE: Final[_Acceptance] = ({"k": 10, "factor": 5.0, "residual": "standard"}, {"k": 10, "factor": 5.0})
_RELATIVE_ON_CHAINS: Final[_Acceptance] = ({"k": 20, "factor": 3.0, "residual": "standard"}, {"k": 20, "factor": 3.0})


def _method(
    name: str,
    policy: str,
    rule: str,
    summary: str,
    tree: Mapping[str, Shown] = _NONE,
    acceptance: _Acceptance = (_NONE, _NONE),
) -> Method:
    """A method by its policy and rule above temperature 0; at 0 both have counterparts. tree: the policy's settings."""
    sampled, greedy = acceptance
    at_zero = _LIKELIEST.get(policy, policy), at_temperature(RULES[rule], 0.0).name
    return Method(name, summary, TreeRecipe(policy, rule, tree, sampled), TreeRecipe(*at_zero, tree, greedy))


TREE_METHODS: Final = (
    _method("ar", NO_POLICY, "point", "plain autoregression: one target pass per token, the baseline"),
    _method("speculative", "chain", "chain", "speculative sampling on a chain", _CHAIN),
    _method("block", "chain", "block", "block verification of a chain", _CHAIN),
    _method(
        "eagle1", "eagle1", "without_replacement", "EAGLE-1: a static tree, siblings drawn without replacement", _STATIC
    ),
    _method("eagle2", "eagle2", "point", "EAGLE-2: a dynamic tree of the likeliest tokens", _TREE),
    _method(
        "eagle2-static",
        "eagle2",
        "point",
        "the control for ADT-Tree: EAGLE-2 at ADT-Tree's mean depth, never adapted",
        _CONTROL,
    ),
    _method("adt", "adt", "point", "ADT-Tree: EAGLE-2 whose depth and width follow the acceptance so far", _ADAPTIVE),
    _method(
        "lantern",
        "eagle2",
        "lantern",
        "LANTERN: EAGLE-2's tree, near codes pooled up to a bound",
        _DEEPER_TREE,
        _LANTERN,
    ),
    _method(
        "lantern++",
        "eagle1",
        "lantern_pp",
        "LANTERN++: EAGLE-1's static tree, near codes pooled in proportion to p",
        _STATIC,
        _RELATIVE,
    ),
    _method("adt+lantern", "adt", "lantern", "ADT-Tree's tree with LANTERN's acceptance", _ADAPTIVE, _LANTERN),
    _method(
        "adt+lantern++",
        "adt",
        "lantern_pp",
        "ADT-Tree's tree with LANTERN++'s acceptance",
        _ADAPTIVE,
        _RELATIVE_ON_CHAINS,
    ),
    _method(
        "roofline",
        "roofline",
        "point",
        "trees, or chains in one call, of most expected tokens per millisecond on the engine's cost curve",
    ),
    _method(
        "roofline+lantern", "roofline", "lantern", "roofline's trees with LANTERN's acceptance", acceptance=_LANTERN
    ),
)
