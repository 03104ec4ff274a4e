"""Benchmarks that need no engine, on few images and few settings."""

from benchmarks import roofline_study, simulated_methods
from tests.benchmarks.ending import figures


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
