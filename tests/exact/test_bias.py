"""The bias that sweeps report is the exact one, as far as draws of the siblings allow."""

import numpy as np
import pytest

from tests.exact.relaxed import apart, codebook, make, star
from tests.mutants.relaxed import decided_distribution
from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.enumeration import next_token_distribution
from underpaint.sim.batched.decoding import make_scheme, run_lockstep
from underpaint.sim.exact.bias import CONTEXTS, token_bias, visited_rows
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableModel


def small() -> TableModel:
    size = {"vocab_size": 12, "height": 6, "width": 6, "images": 4, "clusters": 4, "levels": 3}
    return make_synthetic_model("field", size)


@pytest.mark.parametrize("spec", RULES, ids=lambda spec: spec.name)
def test_draws_that_are_not_enumerated_give_the_same_distribution(spec: RuleSpec) -> None:
    generator = np.random.default_rng(0)
    for drawn in sorted(spec.drawn):
        target, draft = generator.dirichlet(np.ones(4), size=2)
        tree, rule = star((2,) if spec.needs_chain else (2, 0), drawn, draft), make(spec, codebook(4))
        rows = np.tile(target, (tree.size, 1))
        assert apart(next_token_distribution(rule, tree, rows), decided_distribution(rule, tree, rows)) < 1e-12


@pytest.mark.parametrize("residual", ["paper", "standard"])
def test_the_bias_on_chains_is_that_over_everything_the_drafter_can_draw(residual: str) -> None:
    model = small()
    scheme = make_scheme(model, "chain", "lantern_pp", {}, {"k": 6, "factor": 3.0, "residual": residual})
    done = run_lockstep(model, scheme, 32, 0)
    missed = []
    for row in visited_rows(model, done, CONTEXTS, 0).tolist():
        target, draft = (probs / probs.sum() for probs in (model.target[row], model.draft[0, row]))
        emitted = np.zeros(model.vocab_size)
        for token in range(model.vocab_size):
            tree = star((token,), "iid", draft)
            emitted += draft[token] * next_token_distribution(scheme.rule, tree, np.tile(target, (2, 1)))
        missed.append(apart(emitted, target))
    assert token_bias(model, scheme, 1, done) == pytest.approx(np.mean(missed), rel=0.1)


def test_lossless_settings_have_no_bias_and_greedy_rules_none_to_tell() -> None:
    model = small()
    for settings, expected in (({"delta": 0.0}, True), ({"delta": 0.0, "residual": "released"}, False)):
        scheme = make_scheme(model, "eagle2", "lantern", {}, settings)
        assert (token_bias(model, scheme, 3, run_lockstep(model, scheme, 8, 0)) == 0.0) == expected
    greedy = make_scheme(model, "eagle2", "lantern_greedy")
    assert token_bias(model, greedy, 3, run_lockstep(model, greedy, 8, 0)) is None
