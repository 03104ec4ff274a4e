"""Names to specifications: one guess finds a rule, and a wrong name is told the nearest."""

import pytest

from underpaint.algos.accept import RULES
from underpaint.algos.accept.point import SPEC
from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.chain import Chain
from underpaint.algos.registry import build


def test_a_wrong_name_is_told_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"rule: there is no 'travrsal'; did you mean 'traversal'\? known: "):
        RULES["travrsal"]
    with pytest.raises(ValueError, match="policy: there is no 'zzzz'; known: "):
        POLICIES["zzzz"]


def test_names_are_unique() -> None:
    with pytest.raises(ValueError, match="'point' is registered already"):
        RULES.register(SPEC)
    assert "point" in RULES
    assert len(RULES) == len({spec.name for spec in RULES})


def test_settings_are_checked_by_name() -> None:
    assert build(Chain, {"length": 3}, "policy 'chain'") == Chain(3)
    with pytest.raises(ValueError, match=r"policy 'chain': unknown setting 'lenght'; did you mean 'length'\?"):
        build(Chain, {"lenght": 3}, "policy 'chain'")
    with pytest.raises(ValueError, match="rule 'point': unknown setting 'length'; it takes none"):
        build(RULES["point"].make, {"length": 3}, "rule 'point'")
