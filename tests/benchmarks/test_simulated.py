"""Benchmarks that need no engine, on few images and few settings."""

import pytest

from benchmarks import chain_study, roofline_study, simulate, simulated_methods
from tests.benchmarks.ending import figures


def test_lockstep_stands_beside_the_loop(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(simulate, "SCHEMES", simulate.SCHEMES[:1])
    found = figures(simulate.main, ["--images", "4", "--loop-images", "2"], tmp_path, capsys)
    assert (found["benchmark"], found["images"]) == ("simulate", 4)
    (row,) = found["rows"]
    assert row["times_faster"] == pytest.approx(row["loop_ms"] / row["lockstep_ms"])
    assert row["tokens_lockstep"] == pytest.approx(row["tokens_loop"], rel=0.3)


def test_chains_end_in_a_row_a_model(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        chain_study, "SYNTHETIC_MODELS", {"sharp": ("sharp", {"height": 6, "width": 6, "vocab_size": 32})}
    )
    monkeypatch.setattr(chain_study, "RIVALS", {name: rows[:1] for name, rows in chain_study.RIVALS.items()})
    found = figures(chain_study.main, ["--images", "2", "--jobs", "1"], tmp_path, capsys)
    assert (found["benchmark"], found["images"], found["costs"]) == ("chain_study", 2, "costs128.json")
    (row,) = found["rows"]
    assert row["place"] == "sharp"
    assert set(row["methods"]) == {"chain", "adt", "roofline", "without calls"}
    assert row["methods"]["chain"]["calls_share"] > 0.9
    assert row["methods"]["without calls"]["calls_share"] == 0.0
    for mean, low, high in row["roofline_over"].values():
        assert low <= mean <= high


def test_the_study_ends_in_a_row_a_world_rule_and_machine(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(roofline_study, "MACHINES", ("a100/llamagen-xl",))
    rivals = {name: roofline_study.RIVALS[name][:1] for name in ("chain", "adt", "sampled")}
    monkeypatch.setattr(roofline_study, "RIVALS", rivals)
    model = "flat, drafter far"
    asked = ["--model", model, "--rules", "point", "--seeds", "1", "--images", "2", "--jobs", "1"]
    found = figures(roofline_study.main, asked, tmp_path, capsys)
    assert (found["benchmark"], found["seeds"], found["images"]) == ("roofline_study", 1, 2)
    assert set(found["models"]) == {model}
    (row,) = found["rows"]
    assert (row["model"], row["rule"], row["machine"], row["images"]) == (model, "point", "a100/llamagen-xl", 2)
    assert set(row["methods"]) == {
        "chain",
        "adt",
        "sampled",
        "adt, equal nodes",
        "jacobi-lookup",
        *roofline_study.PARTS,
    }
    assert row["strongest_rival"] in ("chain", "adt", "adt, equal nodes", "jacobi-lookup")
    for mean, low, high in row["roofline_over"].values():
        assert low <= mean <= high


def test_every_method_is_simulated_on_both_machines(tmp_path, capsys):
    asked = ["--images", "2", "--model", "flat", "--jobs", "1", "--methods", "speculative,sequoia,scd-maximal,lantern"]
    found = figures(simulated_methods.main, asked, tmp_path, capsys)
    assert not found["left_out"]
    rows = {(row["method"], row["preset"], row["machine"]): row for row in found["rows"]}
    machines = simulated_methods.MACHINES
    assert {key[0] for key in rows} == {"speculative", "sequoia", "scd-maximal", "lantern"}
    assert all((method, preset, machine) in rows for method, preset, _ in rows for machine in machines)
    assert rows["scd-maximal", "paper", machines[0]]["speedup"] > rows["scd-maximal", "tuned", machines[0]]["speedup"]
    assert all(row["speedup_low"] <= row["speedup"] <= row["speedup_high"] for row in rows.values())
