"""How many near codes a table holds: what the simulator pools over is what the runtime does."""

import numpy as np
import pytest

from tests.sim.replay.test_trace import field
from underpaint.algos.accept.neighbours import table_columns
from underpaint.runtime.methods.registry import MOST_PUBLISHED_K, scaled_to
from underpaint.sim.batched.decoding import make_rule


@pytest.mark.parametrize("codes", [2, 24, 101, 1024, 4096, 8192, 16384, 65536])
def test_a_table_holds_the_largest_published_k_and_a_hundred_codes(codes: int) -> None:
    assert table_columns(codes) == min(max(100, scaled_to(codes, MOST_PUBLISHED_K)), codes - 1)


def test_a_simulated_rule_pools_over_as_many() -> None:
    model = field(vocab_size=128)
    rule = make_rule(model, "lantern", {"k": 100})
    assert np.asarray(rule.neighbours).shape == (128, table_columns(128))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"k must be in 0\.\.100"):
        make_rule(model, "lantern", {"k": 101})
