"""Every rule's batched form draws from the distribution that its reference has, enumerated; plug-ins included."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.exact.relaxed import codebook, make, residuals
from underpaint.algos.accept import RULES
from underpaint.algos.enumeration import enumerate_decoding
from underpaint.algos.tree import Drawn
from underpaint.sim.batched.decoding import make_scheme, run_lockstep
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableDrafter, TableTarget

TREES: dict[Drawn, tuple[str, dict[str, Any]]] = {
    "iid": ("delayed", {"paths": 2, "trunk": 0, "branch": 2}),
    "without_replacement": ("eagle1", {"widths": (2, 1)}),
    "top_k": ("eagle2", {"depth": 2, "top_k": 2, "total_tokens": 3}),
}
CHAINS: dict[Drawn, tuple[str, dict[str, Any]]] = {
    "iid": ("chain", {"length": 2}),
    "top_k": ("chain_top1", {"length": 2}),
}
IMAGES = 10000


def cases() -> list[Any]:
    """Every rule, kind of tree, residual and up to two examples for which there is a batched form."""
    params = []
    for spec in RULES:
        for drawn in sorted(spec.drawn & (CHAINS if spec.needs_chain else TREES).keys()):
            for options in residuals(spec, drawn):
                for number, example in enumerate(spec.examples[1:3] or ({},)):
                    settings = dict(example) | options
                    if spec.batched(make(spec, codebook(3), **settings), drawn) is not None:
                        name = "-".join([spec.name, drawn, *options.values(), str(number)])
                        params.append(pytest.param(spec.name, drawn, settings, id=name))
    return params


@pytest.mark.parametrize(("rule", "drawn", "settings"), cases())
def test_the_batched_form_has_the_distribution_of_the_reference(
    rule: str, drawn: Drawn, settings: dict[str, Any]
) -> None:
    policy, shape = (CHAINS if RULES[rule].needs_chain else TREES)[drawn]
    size = {"vocab_size": 3, "height": 1, "width": 4, "images": 1, "rows": 5, "concentration": 1.0, "error": 0.8}
    model = make_synthetic_model("dirichlet", size)
    scheme = make_scheme(model, policy, rule, shape, settings)
    assert scheme.vectorised
    exact: dict[tuple[int, ...], float] = {}
    models = TableTarget(model, 0), TableDrafter(model, 0)
    for trace, weight in enumerate_decoding(*models, scheme.policy, scheme.rule, 8).items():
        outcome = (*trace.tokens, len(trace.accepted))
        exact[outcome] = exact.get(outcome, 0.0) + weight
    result = run_lockstep(model, scheme, IMAGES, 1)
    seen = Counter(map(tuple, np.column_stack([result.canvas, result.runs.cycles + 1]).tolist()))
    expected = {outcome: IMAGES * weight for outcome, weight in exact.items() if weight > 1e-12}
    assert seen.keys() <= expected.keys()
    rare = {outcome for outcome, count in expected.items() if count < 5.0}
    pairs = [(seen[outcome], count) for outcome, count in expected.items() if outcome not in rare]
    pairs.append((sum(seen[outcome] for outcome in rare), 1.0 + sum(expected[outcome] for outcome in rare)))
    squares = sum((count - expected_count) ** 2 / expected_count for count, expected_count in pairs)
    assert squares < len(pairs) + 5.0 * np.sqrt(2.0 * len(pairs)), (squares, len(pairs))


def test_most_rules_have_a_batched_form() -> None:
    assert {case.values[0] for case in cases()} >= {
        "chain",
        "point",
        "without_replacement",
        "lantern",
        "neighbour_budget",
        "mulo",
        "greedy",
        "multi_round",
        "ensemble",
        *("block", "hsd", "fly", "fly_greedy", "gbv", "sjd_sv"),
    }
