"""Bad arguments end every benchmark with code 2 and one line that says what was expected, before any work."""

import importlib
from pathlib import Path

import pytest

import benchmarks.report as report

REFUSED = [
    ("chain_study", ["--images", "1"], "expected a whole number from 2"),
    ("chain_study", ["absent.npz"], "absent.npz"),
    ("chain_study", ["--costs", "absent.json"], "absent.json"),
    ("certify", ["--runs", "some"], "expected a whole number from 0, got 'some'"),
    ("certify", ["--jobs", "0"], "expected a whole number from 1"),
    ("decide", ["--nodes", "1"], "argument --nodes: expected a whole number from 2, got '1'"),
    ("decide", ["--neighbours", "100", "--vocab-size", "100"], "--neighbours: expected less than --vocab-size 100"),
    ("decide", ["--neighbours", "3", "--vocab-size", "64", "--delta", "-1"], "delta"),
    ("device", ["--device", "cuda:99"], "there is no CUDA device here"),
    ("device", ["--device", "cpu", "--methods", "eagel2"], "there is no eagel2"),
    ("gpu", ["--rounds", "0"], "expected a whole number from 1, got '0'"),
    ("gpu", ["--backend", "cuda"], "invalid choice: 'cuda'"),
    ("grow", ["--depth", "deep"], "expected a whole number from 1, got 'deep'"),
    ("grow", ["--top-k", "65", "--vocab-size", "64"], "--top-k: expected at most the 64 codes"),
    ("llamagen_b", ["--threads", "0"], "expected a whole number from 1"),
    ("llamagen_b", ["--keep", "/proc/here"], "cannot write into /proc/here"),
    ("mulo", ["--prompts-count", "1"], "expected a whole number from 2"),
    ("mulo", ["--prompts-count", "1000"], "--prompts-count: expected at most 128"),
    ("pair_statistics", ["--resolution", "96"], "invalid choice: 96"),
    ("pair_statistics", ["--top-k", "101", "--resolution", "64"], "--top-k: expected at most 100 codes"),
    ("pair_statistics", ["--methods", "eagle2,lantern", "--resolution", "64"], "'lantern' is none"),
    ("pair_statistics", ["--methods", "eagel2", "--resolution", "64"], "did you mean 'eagle2'"),
    ("paired_speed", ["absent"], "no folder absent"),
    ("ties", ["absent"], "no folder absent"),
    ("quality_damage", ["--prompts-count", "7"], "expected a whole number from 8"),
    ("rank_acceptance", ["--ranks", "0"], "expected a whole number from 1"),
    ("roofline_study", ["--rules", "exact"], "expected rules of point, lantern"),
    ("roofline_study", ["--jobs", "0"], "expected a whole number from 1"),
    ("simulated_methods", ["--methods", "ar"], "expected methods of speculative"),
    ("simulated_methods", ["--images", "1"], "expected a whole number from 2"),
    ("samplers", ["--scenes", "1"], "expected a whole number from 2"),
    ("samplers", ["--from", "128", "--to", "64"], "--from 128 --to 64: expected the smaller side first"),
    ("samplers", ["--folder", "/nowhere", "--kinds", "bicubic"], "/nowhere"),
    ("settings", ["adtt"], "did you mean 'adt'"),
    ("settings", ["adt", "--variant", "betta=1"], "did you mean 'beta'"),
    ("settings", ["adt", "--variant", "beta=1", "--variant", "beta=-1", "--resolution", "64"], "beta"),
    ("settings", ["adt", "--temperature", "-1", "--resolution", "64"], "temperature must be >= 0"),
    ("settings", ["adt", "--folder", "/proc/here"], "cannot write into /proc/here"),
    ("simulate", ["--images", "0"], "expected a whole number from 2"),
    ("textured_training", ["--models", "absent"], "absent"),
    ("verification", ["--prompts-count", "0"], "expected a whole number from 1"),
]
POSITIONAL = {
    "settings": ["adt"],
    "paired_speed": ["absent"],
    "ties": ["absent"],
}
FOLDER = Path(report.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if "from benchmarks.report import" in path.read_text())


def refused(name, arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"benchmarks.{name}").main(arguments)
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert not shown.out
    return shown.err.splitlines()[-1]


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_bad_arguments_are_refused_in_one_line(name, arguments, message, capsys):
    last = refused(name, arguments, capsys)
    assert last.startswith(f"python -m benchmarks.{name}: error: ")
    assert message in last


@pytest.mark.parametrize("name", NAMES)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(name, capsys):
    first = POSITIONAL.get(name, [])
    assert "cannot write into /proc/here" in refused(name, [*first, "--out", "/proc/here/found.json"], capsys)
