"""Measured cost curves on their way to the policies that choose by cost."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.algos.draft.costs import EngineCosts
from underpaint.artifacts.cost_curve import read_cost_curve, read_engine_costs
from underpaint.runtime.methods.registry import build_method, resolve

CODES = SyntheticPipeline().tables
COSTS = EngineCosts(((1, 2.0), (4, 3.0), (8, 5.0)), ((1, 0.5), (8, 0.75)))


def written(path: Path, **changed: object) -> Path:
    values = {"format": 3, "verify_ms": COSTS.verify_ms, "draft_ms": COSTS.draft_ms, "machine": {}, **changed}
    path.write_text(json.dumps(values))
    return path


def test_a_file_is_read_and_its_overhead_is_the_target_s(tmp_path: Path) -> None:
    assert read_engine_costs(written(tmp_path / "costs.json"))._replace(fingerprint="") == COSTS
    with_overhead = read_engine_costs(written(tmp_path / "costs.json", overhead_ms=0.5))
    assert with_overhead._replace(fingerprint="") == EngineCosts(((1, 2.5), (4, 3.5), (8, 5.5)), COSTS.draft_ms)


IN_CYCLE = {
    "plain": {"target_ms": 1.3, "host_ms": 0.3},
    "target_ms": [[1, 3.0], [4, 4.0]],
    "draft_ms": [[1, 0.6], [2, 0.7]],
    "chain_ms": [[1, 0.5], [6, 1.0]],
    "host_ms": {
        "cost_aware": {"cycle": 1.0, "level": 0.25, "node": 0.125, "pooled": 9.0},
        "cost_aware_chain": {"cycle": 0.5, "level": 0.0625, "node": 0.25, "pooled": 9.0},
    },
}
WITHIN = EngineCosts(
    ((1, 4.125), (4, 5.5)),
    ((1, 0.85), (2, 0.95)),
    # Weighing takes the host no less than growing a tree: half a ms for the cycle is not won back.
    ((1, 0.5 + 0.0625), (6, 1.0 + 6 * 0.0625 + 7 * 0.125 - 0.5)),
    3.0 + 0.5 + 0.25,
)


def test_what_was_measured_inside_cycles_goes_first(tmp_path: Path) -> None:
    costs = read_engine_costs(written(tmp_path / "costs.json", overhead_ms=0.5, in_cycle=IN_CYCLE))
    assert costs._replace(fingerprint="") == WITHIN
    assert costs.trees == {}  # the host was not measured around static trees
    without = read_engine_costs(written(tmp_path / "costs.json", in_cycle={**IN_CYCLE, "chain_ms": []}))
    assert without._replace(fingerprint="") == WITHIN._replace(chain_ms=None, plain_ms=1.3 + 0.3)
    assert read_engine_costs(written(tmp_path / "old.json", in_cycle=None))._replace(fingerprint="") == COSTS


def test_a_static_tree_in_one_call_is_priced_as_one(tmp_path: Path) -> None:
    """By its own family where it was measured, else as chains in one call; never as so many passes of the drafter."""
    host = {**IN_CYCLE["host_ms"], "one_call": {"cycle": 0.5, "level": 0.0, "node": 0.25, "pooled": 0.0}}
    short = {**IN_CYCLE, "host_ms": host}
    whole = {
        **short,
        "host_ms": {**host, "ranked": {"cycle": 1.0, "level": 0.125, "node": 0.5, "pooled": 0.0}},
        "tree_ms": {"ranked": {"call": 0.375, "levels": [[1, 0.25], [2, 0.5]]}},
    }

    def prices(in_cycle: object, method: str, temperature: float) -> tuple[object, ...]:
        path = written(tmp_path / "costs.json", in_cycle=in_cycle)
        config = resolve(method, temperature, settings=[f"costs={path}"])
        settings = build_method(method, config, CODES).config.to_dict()["policy_settings"]
        return tuple(settings[name] for name in ("verify_ms", "call_ms", "draft_ms"))

    chain = ((1, 3.75), (4, 5.5)), pytest.approx(0.4), pytest.approx(0.1)
    assert prices(short, "sequoia", 1.0) == prices(short, "sequoia", 0.0) == prices(whole, "sequoia", 1.0) == chain
    assert prices(whole, "sequoia", 0.0) == (((1, 4.5), (4, 7.0)), 0.375, 0.375)
    assert prices({**short, "chain_ms": []}, "sequoia", 1.0) == (WITHIN.verify_ms, 0.0, WITHIN.draft_ms[0][1])


def test_a_curve_of_another_state_of_the_machine_is_told(tmp_path: Path) -> None:
    curve = read_cost_curve(written(tmp_path / "costs.json", in_cycle=IN_CYCLE))  # 2.0 ms alone, 1.3 ms in cycles
    assert "took 2.00 ms alone and 1.30 ms inside" in str(curve.disturbed())
    calm = written(tmp_path / "calm.json", in_cycle={**IN_CYCLE, "plain": {"target_ms": 1.6, "host_ms": 0.3}})
    assert read_cost_curve(calm).disturbed() is None
    assert "took 1.80 ms here, and 1.30 ms when" in str(curve.outdated(1.8))
    assert "took 0.90 ms here" in str(curve.outdated(0.9))
    assert curve.outdated(1.0) is curve.outdated(1.7) is None
    short = read_cost_curve(written(tmp_path / "short.json"))
    assert short.disturbed() is short.outdated(99.0) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"in_cycle": {**IN_CYCLE, "host_ms": {}}}, "holds no 'cost_aware'"),
        (
            {"in_cycle": {**IN_CYCLE, "host_ms": {"cost_aware": {"cycle": -1, "level": 0, "node": 0, "pooled": 0}}}},
            r"host_ms: cost_aware: cycle: expected 0 to 1e\+09, got -1",
        ),
        ({"in_cycle": {**IN_CYCLE, "target_ms": [[2, 1.0]]}}, "rising sizes from 1 node on"),
        ({"in_cycle": {**IN_CYCLE, "chain_ms": [[2, 1.0]]}}, "chain_ms must name rising sizes from 1 level on"),
        (
            {"in_cycle": {**IN_CYCLE, "chain_ms": [], "plain": {"target_ms": 0.0, "host_ms": 0.0}}},
            "plain step must take a positive",
        ),
        ({"verify_ms": []}, "rising sizes from 1 node on"),
        ({"verify_ms": [[2, 1.0]]}, "rising sizes from 1 node on"),
        ({"draft_ms": [[1, 1.0], [1, 2.0]]}, "draft_ms must name rising sizes"),
        ({"draft_ms": [[1, -1.0]]}, "positive times"),
        ({"overhead_ms": float("nan")}, "JSON, which has no NaN"),
        ({"overhead_ms": 1e308}, r"overhead_ms: expected 0 to 1e\+09, got 1e\+308"),
        ({"verify_ms": [[1, 1e308]]}, "positive times of at most"),
        ({"verify_ms": [[True, 1.0]]}, "verify_ms: expected a whole number, got True"),
        ({"format": 3.0}, "expected format 3, got 3.0"),
        ({"format": True}, "expected format 3, got True"),
        ({"passes_ms": []}, "the curve: unknown setting 'passes_ms'"),
        ({"overhead_ms": -1}, r"overhead_ms: expected 0 to 1e\+09, got -1"),
        ({"verify_ms": 3}, "verify_ms: expected a list, got 3"),
        ({"verify_ms": [["a", 1.0]]}, "verify_ms: expected a whole number, got 'a'"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_engine_costs(written(tmp_path / "costs.json", **changed))
    with pytest.raises(ValueError, match=r"absent\.json.*underpaint costs"):
        resolve("roofline", 1.0, settings=[f"costs={tmp_path / 'absent.json'}"])


@pytest.mark.parametrize("method", ["roofline", "roofline+lantern", "sequoia:without_replacement"])
def test_a_policy_that_chooses_by_cost_takes_the_engine_s(tmp_path: Path, method: str) -> None:
    draft_ms = COSTS.draft_ms[0][1] if method.startswith("sequoia") else COSTS.draft_ms
    named = resolve(method, 1.0, settings=[f"costs={written(tmp_path / 'mine.json')}"])
    for built in (
        build_method(method, resolve(method, 1.0), replace(CODES, costs=COSTS)),
        build_method(method, named, CODES),
        build_method(method, named, replace(CODES, costs=EngineCosts(((1, 9.0),), ((1, 9.0),)))),
    ):
        settings = built.config.to_dict()["policy_settings"]
        assert (settings["verify_ms"], settings["draft_ms"]) == (COSTS.verify_ms, draft_ms)


def test_prices_of_chains_and_of_plain_steps_go_to_who_knows_them(tmp_path: Path) -> None:
    path = written(tmp_path / "costs.json", in_cycle=IN_CYCLE)
    for method in ("roofline", "sequoia:without_replacement"):
        config = resolve(method, 1.0, settings=[f"costs={path}"])
        settings = build_method(method, config, CODES).config.to_dict()["policy_settings"]
        prices = {name: settings[name] for name in ("chain_ms", "plain_ms") if name in settings}
        assert prices == ({"chain_ms": WITHIN.chain_ms, "plain_ms": 3.75} if method == "roofline" else {})
    typed = resolve("roofline", 1.0, settings=["chain_ms=1:0.5,4:1", "plain_ms=none"]).to_dict()["policy_settings"]
    assert (typed["chain_ms"], typed["plain_ms"]) == (((1, 0.5), (4, 1.0)), None)


def test_a_method_says_which_curve_its_costs_come_from(tmp_path: Path) -> None:
    path = written(tmp_path / "costs.json")
    own_costs, others = read_engine_costs(path), COSTS._replace(fingerprint="ab")

    def curve_of(settings: list[str], costs: EngineCosts | None, method: str = "roofline") -> str | None:
        config = resolve(method, 1.0, settings=settings)
        fingerprint = build_method(method, config, replace(CODES, costs=costs)).config.to_dict().get("cost_curve")
        return None if fingerprint is None else str(fingerprint)

    assert curve_of([], None) is None
    assert curve_of([], others) == "ab"
    assert curve_of([], others, "eagle2") is None
    assert curve_of([f"costs={path}"], others) == own_costs.fingerprint
    typed = ["draft_ms=0.1", "verify_ms=1:1", "chain_ms=none", "plain_ms=1"]
    assert curve_of(typed, others) is None
    assert curve_of(typed[:1], others) == "ab"


def test_what_a_user_sets_stands(tmp_path: Path) -> None:
    config = resolve("roofline", 1.0, settings=["draft_ms=1:0.1,4:0.2", "top_k=3"])
    settings = build_method("roofline", config, replace(CODES, costs=COSTS)).config.to_dict()["policy_settings"]
    assert settings["draft_ms"] == ((1, 0.1), (4, 0.2))
    assert settings["verify_ms"] == COSTS.verify_ms
    assert settings["top_k"] == 3
    assert resolve("roofline", 1.0, settings=["draft_ms=0.25"]).to_dict()["policy_settings"]["draft_ms"] == 0.25
    with pytest.raises(ValueError, match="unknown setting 'costs'"):
        resolve("eagle2", 1.0, settings=[f"costs={written(tmp_path / 'costs.json')}"])
