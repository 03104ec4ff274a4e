"""The table of recent rules: its figures are those of the rules today, and its optimum is the known one."""

import json

import numpy as np
import pytest

from benchmarks.pages import RESULTS
from benchmarks.recent_rules import DRAFTS, WORLDS, Draft, World, most_accepted, rows_of
from underpaint.algos.draft.delayed import delayed_shape
from underpaint.algos.transport import best_acceptance, overlap

ROWS = json.loads((RESULTS / "recent-rules.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda draft: draft.name)
def test_the_record_is_what_the_rules_do(draft: Draft) -> None:
    rows = rows_of(WORLDS[0], draft)
    assert rows == [row for row in ROWS if row["world"] == "toy" and row["draft"] == draft.name]


def test_no_lossless_rule_beats_the_optimum_and_block_verification_reaches_it_on_chains() -> None:
    for row in ROWS:
        if row["total_variation"] == 0.0:
            assert row["kept"] <= row["best"] + 1e-8
        if row["rule"] == "block":
            assert row["kept"] == pytest.approx(row["best"], abs=1e-8)


def test_on_one_level_the_optimum_is_the_transport() -> None:
    generator = np.random.default_rng(4)
    for _ in range(3):
        target, draft = generator.dirichlet(np.ones(2), size=2)
        world = World("any", lambda prefix, row=target: row, lambda prefix, row=draft: row)
        assert most_accepted(world, delayed_shape(1, 0, 1)) == pytest.approx(float(overlap(target, draft)), abs=1e-8)
        both = {
            frozenset({0}): draft[0] ** 2,
            frozenset({1}): draft[1] ** 2,
            frozenset({0, 1}): 2 * draft[0] * draft[1],
        }
        assert most_accepted(world, delayed_shape(2, 0, 1)) == pytest.approx(best_acceptance(target, both), abs=1e-8)
