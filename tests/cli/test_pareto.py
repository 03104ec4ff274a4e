import dataclasses
import json

import pytest
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.artifacts.results import read_results
from underpaint.cli.app import app
from underpaint.runtime.evaluation import drawer
from underpaint.runtime.evaluation.pareto import MOST_VARIANTS, is_pareto_optimal, variants
from underpaint.runtime.evaluation.report_row import ReportRow

FEW = ("--vary", "mulo.tau=0,0.2", "--vary", "mulo.radius=0,1", "--methods", "eagle2", "--prompts-count", "2")


@pytest.fixture(autouse=True)
def _small_models(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 128))


def swept(*arguments):
    return CliRunner().invoke(app, ["sweep", "--resolution", "64", *map(str, arguments)])


def test_variants_are_all_combinations_within_a_method():
    combinations = variants(["mulo.tau=0.1,0.2", "zipar.window=2", "mulo.rows=1,8"], ["mulo.k=5"], ["ar"])
    assert [one.label for one in combinations] == [
        "ar",
        "mulo tau=0.1 rows=1",
        "mulo tau=0.1 rows=8",
        "mulo tau=0.2 rows=1",
        "mulo tau=0.2 rows=8",
        "zipar window=2",
    ]
    assert combinations[2].settings == ("k=5", "tau=0.1", "rows=8")
    assert combinations[2].method == "mulo"


def test_semicolons_stand_between_values_that_have_commas():
    combinations = variants(["traversal.widths=2,1;2,2,1; 3", "zipar.window=2,3"], [], [])
    assert [one.settings for one in combinations] == [
        ("widths=2,1",),
        ("widths=2,2,1",),
        ("widths=3",),
        ("window=2",),
        ("window=3",),
    ]


def test_a_method_that_is_named_and_varied_is_drawn_both_ways():
    combinations = variants(["zipar.window=2,3"], ["zipar.preset=1"], ["ar", "zipar"])
    assert [one.label for one in combinations] == ["ar", "zipar", "zipar window=2", "zipar window=3"]
    assert [one.settings for one in combinations[1:3]] == [("preset=1",), ("preset=1", "window=2")]
    windows = ",".join(map(str, range(MOST_VARIANTS)))
    assert len(variants([f"zipar.window={windows}"], [], [])) == MOST_VARIANTS
    with pytest.raises(ValueError, match="at most 500 methods and variants, got 501"):
        variants([f"zipar.window={windows}"], [], ["zipar"])


@pytest.mark.parametrize(
    ("varied", "fixed", "message"),
    [
        (["tau=1"], [], "expected method.name=value"),
        (["mulo.tau"], [], "expected name=value"),
        (["mulo.tau="], [], "expected method.name=value"),
        (["mulo.tau=1", "mulo.tau=2"], [], "varies already"),
        (["mulo.tau=1"], ["zipar.window=2"], "no variant of 'zipar'"),
        (["mulo.tau=1,2"], ["mulo.tau=3"], "'mulo.tau' varies"),
    ],
)
def test_variants_that_make_no_sense(varied, fixed, message):
    with pytest.raises(ValueError, match=message):
        variants(varied, fixed, ["ar"])


def row(speedup, accuracy):
    values = {field.name: None for field in dataclasses.fields(ReportRow)}
    return ReportRow(**{**values, "speedup": speedup, "prompt_accuracy": accuracy})


def test_the_frontier_is_what_nothing_beats():
    rows = [row(1.0, 0.9), row(2.0, 0.9), row(3.0, 0.5), row(2.5, 0.4), row(0.5, 0.95), row(3.0, 0.5)]
    assert is_pareto_optimal(rows) == [False, True, True, False, True, True]


def test_a_sweep_stops_goes_on_and_ends_in_a_plot_and_figures(tmp_path, monkeypatch):
    real, drawings = drawer.draw, []

    def stopping(*arguments):
        drawings.append(real(*arguments))
        if len(drawings) == 6:  # each method warms up
            raise KeyboardInterrupt
        return drawings[-1]

    monkeypatch.setattr(drawer, "draw", stopping)
    stopped = swept(*FEW, "--out", tmp_path)
    assert stopped.exit_code == 130, stopped.output
    assert "2 of 12 drawings are done" in stopped.stderr
    monkeypatch.setattr(drawer, "draw", real)
    before = (tmp_path / "drawings.jsonl").read_text()
    done = swept(*FEW, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "drawings.jsonl").read_text().startswith(before)
    assert (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")
    plain = json.loads((tmp_path / "sweep.json").read_text())
    rows = {one["method"]: one for one in plain["rows"]}
    assert list(rows) == [
        "ar",
        "eagle2",
        *(f"mulo tau={tau} radius={radius}" for tau in ("0", "0.2") for radius in (0, 1)),
    ]
    whole = rows["mulo tau=0 radius=0"]
    assert (whole["kept_share"], whole["rejected_share"], whole["tokens_per_cycle"]) == (1.0, 0.0, None)
    assert whole["variant"] == ["tau=0", "radius=0"]
    assert rows["eagle2"]["rejected_share"] is None
    assert rows["ar"]["kept_share"] is None
    assert any(one["pareto"] for one in plain["rows"])


def test_a_sweep_draws_the_prompts_of_a_file(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("a woolly fox, an owl\na stone drum, an owl\n")
    done = swept("--vary", "zipar.window=2", "--prompts", file, "--prompts-skip", 1, "--out", tmp_path / "x")
    assert done.exit_code == 0, done.output
    plain = read_results(tmp_path / "x" / "sweep.json")
    assert plain["settings"]["prompts"] == [
        "a stone drum left of a glossy owl, on ochre sand, bright sky, lit from the left, sharp background"
    ]
    assert plain["settings"]["prompts_file"]["drawn"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "mulo.tauu=1"], "did you mean 'tau'"),
        (["--vary", "mulo.tau=1,nan"], "method 'mulo': tau must be at least 0, got nan"),
        (["--vary", "muloo.tau=1"], "did you mean 'mulo'"),
        (["--vary", "mulo.radius=0,9"], "method 'mulo radius=9': radius: expected 0..3"),
        (["--preset", "best"], "expected one of tuned, paper"),
        (["--methods", "eagel2"], "did you mean 'eagle2'"),
        (["--set", "adt.beta=0.2"], "no variant of 'adt'"),
        (["--vary", "mulo.tau=0.1,0.1"], "is named twice"),
        (["--temperature", "-1"], "temperature must be >= 0"),
    ],
)
def test_a_sweep_refuses_bad_input_before_any_work(tmp_path, arguments, message):
    result = swept(*arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_sweep_refuses_a_folder_that_cannot_be_written():
    result = swept("--out", "/proc/here")
    assert result.exit_code == 2
    assert "cannot write into /proc/here" in result.stderr
