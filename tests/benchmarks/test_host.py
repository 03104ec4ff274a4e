"""Benchmarks of what the host does alone, at sizes that take a moment."""

from benchmarks import certify, decide, grow
from tests.benchmarks.ending import figures
from underpaint.algos.draft import POLICIES


def test_deciding_is_timed_beside_loops_that_agree(tmp_path, capsys):
    asked = ["--nodes", "12", "--vocab-size", "64", "--neighbours", "8", "--rounds", "3"]
    found = figures(decide.main, asked, tmp_path, capsys)
    wanted = {"verdict_ms", "speedup", "speedup_arrays", "visited", "base_us", "visited_us", "fit_r2"}
    assert wanted <= set(found)
    assert (found["benchmark"], found["nodes"], found["neighbours"]) == ("decide", 12, 8)
    assert found["verdict_ms"] > 0
    assert 1 <= found["visited"] <= 11


def test_a_fit_that_too_few_stars_allow_is_none(tmp_path, capsys):
    asked = ["--nodes", "4", "--vocab-size", "64", "--neighbours", "63", "--delta", "1", "--rounds", "1"]
    found = figures(decide.main, asked, tmp_path, capsys)
    assert found["base_us"] is found["visited_us"] is found["fit_r2"] is None


def test_growing_is_timed_beside_implementations_that_agree(tmp_path, capsys):
    asked = ["--vocab-size", "64", "--depth", "2", "--top-k", "3", "--total-tokens", "5", "--rounds", "1"]
    found = figures(grow.main, asked, tmp_path, capsys)
    assert found["benchmark"] == "grow"
    assert found["nodes"] == 6
    assert set(found["policies_us"]) == {spec.name for spec in POLICIES}
    assert found["ratio_sorted"] > 0


def test_certificates_catch_what_is_wrong_and_pass_what_is_right(tmp_path, capsys):
    found = figures(certify.main, ["--runs", "3", "--cases", "1", "--wrong", "0", "--jobs", "1"], tmp_path, capsys)
    assert (found["wrong"], found["right"]) == (0, 3)
    assert found["false_alarms"] == found["missed"] == found["unnamed"] == []
    assert found["slowest_s"] is None
