"""What cycles cost, measured inside decoding loops: read, and priced by what happened in them."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from underpaint.algos.arrays import FloatArray
from underpaint.artifacts.cost_curve import (
    HostCosts,
    HostFamily,
    InCycleCosts,
    PlainCosts,
    TreeCallCosts,
    read_cost_curve,
)
from underpaint.sim.batched.decoding import make_scheme, run_lockstep, run_loop
from underpaint.sim.latency.cycle_costs import family_of, host_ms, pools, times
from underpaint.sim.latency.models import SizeMissing
from underpaint.sim.report.statistics import Runs, tokens_per_cycle
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget

JSON: dict[str, Any] = {
    "rounds": 2,
    "plain": {"target_ms": 1.0, "host_ms": 0.5},
    "target_ms": [[1, 2.0], [5, 4.0]],
    "draft_ms": [[1, 0.25], [4, 1.0]],
    "chain_ms": [[1, 0.5], [4, 2.0]],
    "host_ms": {
        "one_call": {"cycle": 0.5, "level": 0.0, "node": 0.125, "pooled": 4.0},
        "ranked": {"cycle": 0.25, "level": 1.0, "node": 0.0, "pooled": 2.0},
    },
}
COSTS = InCycleCosts(
    PlainCosts(1.0, 0.5),
    target_ms=((1, 2.0), (5, 4.0)),
    draft_ms=((1, 0.25), (4, 1.0)),
    chain_ms=((1, 0.5), (4, 2.0)),
    rounds=2,
    host_ms={"one_call": HostCosts(0.5, 0.0, 0.125, 4.0), "ranked": HostCosts(0.25, 1.0, 0.0, 2.0)},
)


def field() -> TableModel:
    base = {"vocab_size": 24, "clusters": 4, "levels": 3, "height": 6, "width": 6, "images": 4, "depth_known": 3}
    return make_synthetic_model("field", base)


def image_ms(*args: Any, **named: Any) -> FloatArray:
    return times(*args, **named).total


def runs(chained: dict[int, int]) -> Runs:
    """Two cycles over 5 nodes and one over the root alone, after 8 levels of one node and one pass over two."""
    verify, draft, chains = (np.zeros((1, 7), dtype=np.int64) for _ in range(3))
    verify[0, [1, 5]] = 1 + 1, 2
    draft[0, [1, 2]] = 8, 1
    for levels, calls in chained.items():
        chains[0, levels] = calls
    return Runs(9, np.array([3]), np.array([5]), np.array([8]), verify, draft, chains)


ALONE = {"format": 3, "verify_ms": [[1, 1.0]], "draft_ms": [[1, 0.5]]}


def test_trees_drafted_in_one_call_have_a_price_of_their_own(tmp_path: Path) -> None:
    grown = dataclasses.replace(COSTS, tree_ms={"ranked": TreeCallCosts(0.375, ((1, 0.125), (4, 0.5)))})
    by_level, in_one_call = (float(image_ms(costs, runs({}), "ranked", False)[0]) for costs in (COSTS, grown))
    assert in_one_call == pytest.approx(by_level - 0.5 * (8 * 0.25 + 0.5) + 2 * 0.375)
    assert image_ms(grown, runs({4: 1}), "ranked", False) == pytest.approx(
        image_ms(COSTS, runs({4: 1}), "ranked", False) - 0.5 * (4 * 0.25 + 0.5) + 0.375
    ), "a chain in one call is no tree"
    sampled_costs = dataclasses.replace(grown, host_ms={**COSTS.host_ms, "sampled": COSTS.host_ms["ranked"]})
    assert image_ms(sampled_costs, runs({}), "sampled", False) == pytest.approx(by_level), (
        "its siblings were not measured"
    )
    path = tmp_path / "costs.json"
    for written, tree in (({"ranked": {"call": 0.375, "levels": [[1, 0.125], [4, 0.5]]}}, grown.tree_ms), ({}, {})):
        path.write_text(json.dumps({**ALONE, "in_cycle": {**JSON, "tree_ms": written}}))
        in_cycle = read_cost_curve(path).in_cycle
        assert in_cycle is not None
        assert in_cycle.tree_ms == tree
    path.write_text(json.dumps({**ALONE, "in_cycle": {**JSON, "tree_ms": [[1, 0.125]]}}))
    with pytest.raises(ValueError, match=r"tree_ms: expected an object, got \[\[1, 0\.125\]\]"):
        read_cost_curve(path)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**ALONE, "in_cycle": JSON}))
    assert read_cost_curve(path).in_cycle == COSTS
    path.write_text(json.dumps(ALONE))
    assert read_cost_curve(path).in_cycle is None
    with pytest.raises(ValueError, match=r"absent\.json"):
        read_cost_curve(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"target_ms": [[2, 1.0]]}, "target_ms must name rising sizes from 1 node on"),
        ({"draft_ms": [[1, 1.0], [1, 1.0]]}, "draft_ms must name rising sizes"),
        ({"target_ms": []}, "target_ms must name rising sizes"),
        ({"chain_ms": [[1, 0.0]]}, "chain_ms must hold positive times"),
        ({"plain": {"target_ms": 1.0}}, "host_ms"),
        ({"plain": {"target_ms": 1.0, "host_ms": -1.0}}, r"plain: host_ms: expected 0 to 1e\+09, got -1"),
        ({"host_ms": {"ranked": {"cycle": 1.0}}}, "level"),
        ({"tree_ms": {"ranked": {"call": 0.5, "levels": [[2, 0.5]]}}}, "tree_ms of 'ranked' must name rising sizes"),
        (
            {"tree_ms": {"ranked": {"call": -1.0, "levels": [[1, 0.5]]}}},
            r"tree_ms: ranked: call: expected 0 to 1e\+09, got -1",
        ),
        ({"tree_ms": {"guessed": {}}}, "tree_ms: expected one of .* got 'guessed'"),
        ({"host_ms": 3}, "host_ms: expected an object, got 3"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**ALONE, "in_cycle": {**JSON, **changed}}))
    with pytest.raises(ValueError, match=rf"(?s)costs\.json.*{message}"):
        read_cost_curve(path)


@pytest.mark.parametrize(
    ("family", "pooled", "chained", "expected"),
    [
        # the first pass and the root alone; target; drafter passes; host: of 2 cycles, of 9 levels or of 10 nodes
        ("ranked", False, {}, 2 * 1.5 + 2 * 4 + (8 * 0.25 + 0.5) + (2 * 0.25 + 9)),
        ("ranked", True, {}, 3 + 8 + 2.5 + 9.5 + 2 * 2),
        # a level that came to nothing, whose cycle was over the root alone
        ("ranked", False, {4: 2}, 3 + 8 + (2 * 2 + 0.5) + (2 * 0.5 + 10 * 0.125) + 1),
        # a chain and a tree
        ("ranked", False, {4: 1}, 3 + 8 + (2 + 4 * 0.25 + 0.5) + (0.5 + 5 * 0.125) + (0.25 + 5)),
        ("ranked", True, {4: 1}, 3 + 8 + 3.5 + 1.125 + 5.25 + 4 + 2),
    ],
)
def test_an_image_is_priced_by_its_passes(
    family: HostFamily, pooled: bool, chained: dict[int, int], expected: float
) -> None:
    once = runs(chained)
    assert image_ms(COSTS, once, family, pooled) == pytest.approx(expected)
    twice = once.and_more(once).pooled(1)
    assert (twice.images, twice.decodings) == (1, 2)
    assert image_ms(COSTS, twice, family, pooled) == pytest.approx(2 * expected)


def test_who_drafts_in_one_call_only_needs_no_other_price() -> None:
    model, calls = field(), dataclasses.replace(COSTS, host_ms={"one_call": COSTS.host_ms["one_call"]})
    narrow = {"max_width": 1, "start_width": 1, "max_depth": 4, "start_depth": 2}
    for policy, settings in (("chain_top1", {"length": 3}), ("adt", narrow)):
        scheme = make_scheme(model, policy, "point", settings)
        assert np.all(image_ms(calls, run_loop(model, scheme, 2, 0, chains=True), family_of(scheme), pooled=False) > 0)
        with pytest.raises(ValueError, match="not for 'ranked'"):
            image_ms(calls, run_loop(model, scheme, 2, 0), family_of(scheme), pooled=False)


def test_trees_beside_chains_in_one_call_keep_their_own_price() -> None:
    model = field()
    settings = {"max_width": 2, "start_width": 1, "max_depth": 4, "start_depth": 2, "total_tokens": 4}
    scheme = make_scheme(model, "adt", "point", settings)
    once = run_loop(model, scheme, 4, 0, chains=True)
    calls, alone = once.chained.sum(), (once.verify[:, 1] - 1).sum()
    trees = once.cycles.sum() - calls - alone
    assert calls > 0
    assert trees > 0, "at width 2 ADT-Tree grows level by level"
    dear = dataclasses.replace(COSTS, host_ms={**COSTS.host_ms, "ranked": HostCosts(100.0, 0.0, 0.0, 0.0)})
    levels = (once.chained @ np.arange(once.chained.shape[1])).sum()
    expected = 100 * trees + 0.5 * (calls + alone) + 0.125 * (levels + calls)
    assert host_ms(dear, once, family_of(scheme), pooled=False).sum() == pytest.approx(expected)


def test_roofline_is_priced_by_what_each_cycle_did() -> None:
    model = field()
    costs = {"verify_ms": ((1, 1.0), (5, 1.1)), "draft_ms": 2.0, "chain_ms": ((1, 0.1), (4, 0.2)), "plain_ms": 0.85}
    scheme = make_scheme(model, "roofline", "point", costs)
    once = run_loop(model, scheme, 4, 0, chains=True)
    alone, calls = (once.verify[:, 1] - 1).sum(), once.chained.sum()
    assert alone > 0
    assert 0 < calls < once.cycles.sum() - alone, "trees, chains in one call and plain steps"
    family_costs = {
        "cost_aware": HostCosts(100.0, 0.0, 0.0, 8.0),
        "cost_aware_chain": HostCosts(0.75, 0.25, 0.125, 4.0),
    }
    priced = dataclasses.replace(COSTS, host_ms={**COSTS.host_ms, **family_costs})
    trees = once.cycles.sum() - alone - calls
    levels = (once.chained @ np.arange(once.chained.shape[1])).sum()
    plain, chains = 0.75 + 0.125, 0.75 * calls + 0.25 * levels + 0.125 * (levels + calls)
    for pooled in (False, True):  # a plain step has nothing to pool
        host = host_ms(priced, once, family_of(scheme), pooled).sum()
        assert host == pytest.approx(100 * trees + plain * alone + chains + pooled * (8 * trees + 4 * calls))
    by_curve = image_ms(priced, once, "cost_aware", pooled=False) - host_ms(priced, once, "cost_aware", pooled=False)
    to_dict = image_ms(priced, once, "ranked", pooled=False) - host_ms(priced, once, "ranked", pooled=False)
    assert (by_curve - to_dict).sum() == pytest.approx((2.0 - 1.0) * alone), "a plain step's pass is one of the loop's"


def test_a_policy_that_weighs_its_trees_alone_is_priced_as_such() -> None:
    model = field()
    scheme = make_scheme(model, "roofline", "point", {"verify_ms": ((1, 1.0), (5, 1.6)), "draft_ms": 0.4})
    once = run_loop(model, scheme, 4, 0, chains=True)
    alone = (once.verify[:, 1] - 1).sum()
    assert 0 < alone < once.cycles.sum()
    priced = dataclasses.replace(COSTS, host_ms={"cost_aware": HostCosts(1.0, 0.0, 0.0, 0.0)})
    assert host_ms(priced, once, "cost_aware", pooled=False).sum() == pytest.approx(once.cycles.sum())


def test_what_was_not_measured_is_named() -> None:
    with pytest.raises(ValueError, match="not for 'sampled'"):
        image_ms(COSTS, runs({}), "sampled", pooled=False)
    with pytest.raises(SizeMissing, match="target passes: measured from 1 to 3 nodes, asked for 5"):
        image_ms(dataclasses.replace(COSTS, target_ms=((1, 1.0), (3, 2.0))), runs({}), "ranked", pooled=False)


def test_a_chain_in_one_call_is_the_chain_level_by_level() -> None:
    model = field()
    scheme = make_scheme(model, "adt", "point", {"max_width": 1, "start_width": 1, "max_depth": 6, "total_tokens": 6})
    apart, at_once = (run_loop(model, scheme, 4, 0, chains=chains) for chains in (False, True))
    for name in ("cycles", "accepted", "depth", "verify", "draft"):
        assert np.array_equal(getattr(apart, name), getattr(at_once, name)), name
    assert not apart.chained.any()
    levels = np.arange(at_once.chained.shape[1])
    assert np.array_equal(at_once.chained @ levels, at_once.draft[:, 1])


def test_trees_drawn_with_replacement_take_the_host_as_long_as_other_sampled_ones_in_curves_without_them() -> None:
    old = dataclasses.replace(COSTS, host_ms={**COSTS.host_ms, "sampled": HostCosts(1.0, 2.0, 3.0, 4.0)})
    old = dataclasses.replace(old, tree_ms={"sampled": TreeCallCosts(50.0, ((1, 60.0),))})
    new = dataclasses.replace(old, host_ms={**old.host_ms, "iid": HostCosts(7.0, 0.0, 0.0, 0.0)})
    of_others, of_iid = image_ms(old, runs({}), "iid", False), image_ms(new, runs({}), "iid", False)
    assert of_others == pytest.approx(image_ms(dataclasses.replace(old, tree_ms={}), runs({}), "sampled", False)), (
        "no call drafts such trees, so they grow level by level"
    )
    assert of_iid != of_others


@pytest.mark.parametrize(
    ("policy", "rule", "settings", "family"),
    [
        ("chain", "chain", {}, "sampled"),
        ("eagle1", "without_replacement", {"widths": (2, 2)}, "sampled"),
        ("eagle2", "point", {"depth": 2, "top_k": 2}, "ranked"),
        ("eagle2", "lantern", {"depth": 2, "top_k": 1}, "ranked"),
        ("chain_top1", "lantern", {}, "ranked"),
        ("roofline", "point", {}, "cost_aware"),
        ("sequoia", "without_replacement", {}, "sampled"),
        ("sequoia_top_k", "point", {}, "ranked"),
        ("delayed", "multi_round", {}, "iid"),
        ("delayed", "gbv", {}, "iid_paths"),
        ("chain", "block", {}, "sampled"),
    ],
)
def test_schemes_are_told_apart_by_how_the_host_drafts(
    policy: str, rule: str, settings: dict[str, object], family: HostFamily
) -> None:
    model = field()
    scheme = make_scheme(model, policy, rule, settings)
    assert family_of(scheme) == family
    assert pools(scheme) == (rule == "lantern")


def test_decodings_of_one_image_are_not_taken_for_independent() -> None:
    model = field()
    scheme = make_scheme(model, "chain", "chain", {"length": 3})
    once = run_lockstep(model, scheme, model.images, 0).runs
    again = once
    for _ in range(15):  # sixteen times the same: they say no more than one of them
        again = again.and_more(once)
    assert tokens_per_cycle(again.pooled(model.images)) == pytest.approx(tokens_per_cycle(once))
    assert tokens_per_cycle(again).half_width < 0.3 * tokens_per_cycle(once).half_width
    with pytest.raises(ValueError, match="expected a multiple of 3 images, got 4"):
        once.pooled(3)
    with pytest.raises(ValueError, match="decoded 1 times, got 16"):
        once.and_more(again.pooled(model.images))


def test_a_target_and_a_drafter_have_the_table_model_s_grid() -> None:
    model = field()
    for half in (TableTarget(model, 9), TableDrafter(model, 9)):
        assert (half.vocab_size, half.grid) == (model.vocab_size, model.grid)


def test_families_of_other_names_and_other_formats_are_refused(tmp_path: Path) -> None:
    path, one = tmp_path / "costs.json", {"cycle": 1.0, "level": 0.5, "node": 0.25, "pooled": 2.0}
    path.write_text(json.dumps({**ALONE, "in_cycle": {**JSON, "host_ms": {"cost_aware": one}}}))
    curve = read_cost_curve(path)
    assert curve.in_cycle is not None
    assert curve.in_cycle.host_ms == {"cost_aware": HostCosts(**one)}
    assert curve.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    for changed, message in (
        ({"format": 2}, "expected format 3, got 2: an older"),
        ({}, "host_ms: expected one of .* got 'guessed'"),
    ):
        path.write_text(json.dumps({**ALONE, **changed, "in_cycle": {**JSON, "host_ms": {"guessed": one}}}))
        with pytest.raises(ValueError, match=message):
            read_cost_curve(path)
