"""Every rule's batched form draws from the distribution that its reference has, enumerated; plug-ins included."""

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.exact.relaxed import codebook, make, residuals
from underpaint.algos.accept import RULES
from underpaint.algos.enumeration import enumerate_decoding
from underpaint.algos.protocols import Grid
from underpaint.algos.step import Scored
from underpaint.algos.tree import Drawn, Verdict, root_only
from underpaint.sim.batched.decoding import Scheme, make_scheme, run_lockstep
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget

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


class TargetAfter(TableTarget):
    """A target whose image begins with the last token of `start`, drawn with certainty."""

    start: tuple[int, ...]

    @property
    def grid(self) -> Grid:
        return Grid(1, self.model.grid.cells - len(self.start) + 1)

    def begin(self) -> Scored:
        super().begin()
        for token, following in pairwise(self.start):
            self.commit(root_only(token, self.vocab_size), Verdict((), following))
        return Scored(np.eye(self.vocab_size)[[self.start[-1]]])


class DrafterAfter(TableDrafter):
    """A drafter that has read the tokens of `start` but the last."""

    start: tuple[int, ...]

    def begin(self, scored: Scored) -> None:
        super().begin(scored)
        for token, following in pairwise(self.start):
            self.commit(root_only(token, self.vocab_size), Verdict((), following), scored)


def exact_outcomes(model: TableModel, scheme: Scheme) -> dict[tuple[int, ...], float]:
    """The distribution of an image's tokens and its number of cycles, by the reference.

    The tables, policies and rules keep nothing between cycles but the tokens, so the next cycle is enumerated once per
    prefix, not once per branch that leads there.
    """

    @cache
    def next_tokens(start: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        target, drafter = TargetAfter(model, 0), DrafterAfter(model, 0)
        target.start = drafter.start = start
        runs = enumerate_decoding(target, drafter, scheme.policy, scheme.rule, 8, cycle_count=2)
        return {run.tokens[1:]: weight for run, weight in runs.items()}

    done: dict[tuple[int, ...], float] = {}
    first = enumerate_decoding(TableTarget(model, 0), None, scheme.policy, scheme.rule, 8, cycle_count=1)
    level = [(run.tokens, 1, weight) for run, weight in first.items()]
    while level:
        tokens, count, weight = level.pop()
        if len(tokens) == model.grid.cells:
            done[*tokens, count] = done.get((*tokens, count), 0.0) + weight
        else:
            level += [((*tokens, *more), count + 1, weight * share) for more, share in next_tokens(tokens).items()]
    return done


@pytest.mark.parametrize(("rule", "drawn", "settings"), cases())
def test_the_batched_form_has_the_distribution_of_the_reference(
    rule: str, drawn: Drawn, settings: dict[str, Any]
) -> None:
    policy, shape = (CHAINS if RULES[rule].needs_chain else TREES)[drawn]
    size = {"vocab_size": 3, "height": 1, "width": 4, "images": 1, "rows": 5, "concentration": 1.0, "error": 0.8}
    model = make_synthetic_model("dirichlet", size)
    scheme = make_scheme(model, policy, rule, shape, settings)
    assert scheme.vectorised
    exact = exact_outcomes(model, scheme)
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
