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

    The next cycle is enumerated once per prefix, not once per branch that leads there: another test compares this with
    whole runs.
    """

    @cache
    def next_tokens(start: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        target, drafter = TargetAfter(model, 0), DrafterAfter(model, 0)
        target.start = drafter.start = start
        runs = enumerate_decoding(target, drafter, scheme.policy, scheme.rule, 8, cycle_count=2)
        return {run.tokens[1:]: weight for run, weight in runs.items()}

    done: dict[tuple[int, ...], float] = {}
    first = enumerate_decoding(TableTarget(model, 0), None, scheme.policy, scheme.rule, 8, cycle_count=1)
    unfinished = [(run.tokens, 1, weight) for run, weight in first.items()]
    while unfinished:
        tokens, count, weight = unfinished.pop()
        if len(tokens) == model.grid.cells:
            done[*tokens, count] = done.get((*tokens, count), 0.0) + weight
        else:
            for more, share in next_tokens(tokens).items():
                unfinished.append(((*tokens, *more), count + 1, weight * share))
    return done


def model_and_scheme(rule: str, drawn: Drawn, settings: dict[str, Any]) -> tuple[TableModel, Scheme]:
    policy, shape = (CHAINS if RULES[rule].needs_chain else TREES)[drawn]
    size = {"vocab_size": 3, "height": 1, "width": 4, "images": 1, "rows": 5, "concentration": 1.0, "error": 0.8}
    model = make_synthetic_model("dirichlet", size)
    return model, make_scheme(model, policy, rule, shape, settings)


@pytest.mark.parametrize(
    ("rule", "drawn", "settings"), [*{case.values[:2]: case for case in reversed(cases())}.values()]
)
def test_cycles_by_prefix_make_the_whole_runs_of_the_reference(
    rule: str, drawn: Drawn, settings: dict[str, Any]
) -> None:
    """One case of every rule and kind of tree: neither keeps anything between cycles but the tokens."""
    model, scheme = model_and_scheme(rule, drawn, settings)
    whole: dict[tuple[int, ...], float] = {}
    for run, weight in enumerate_decoding(
        TableTarget(model, 0), TableDrafter(model, 0), scheme.policy, scheme.rule, 8
    ).items():
        outcome = (*run.tokens, len(run.accepted))
        whole[outcome] = whole.get(outcome, 0.0) + weight
    assert exact_outcomes(model, scheme) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize(("rule", "drawn", "settings"), cases())
def test_the_batched_form_has_the_distribution_of_the_reference(
    rule: str, drawn: Drawn, settings: dict[str, Any]
) -> None:
    model, scheme = model_and_scheme(rule, drawn, settings)
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
